#pragma once

// Which blocks of memory came in some stretch of time and did not go.

#include <c10/core/Device.h>
#include <tidemark/detail/block_observer.h>
#include <tidemark/detail/memory_meter.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <new>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// The blocks that were allocated since it was made and are still live. Of devices but the CPU only
/// where somebody reports their blocks.
class SurvivingBlocks final : public BlockObserver {
 public:
  SurvivingBlocks() { ProcessMeter::get().add_observer(*this); }
  SurvivingBlocks(const SurvivingBlocks&) = delete;
  SurvivingBlocks& operator=(const SurvivingBlocks&) = delete;
  ~SurvivingBlocks() override { stop(); }

  /// Looks no longer. To be called before sizes().
  void stop() noexcept { ProcessMeter::get().remove_observer(*this); }

  /// The bytes of each block on `device`, or without an index on all of its type; largest first.
  [[nodiscard]] std::vector<int64_t> sizes(c10::Device device) const {
    std::vector<int64_t> sizes;
    for (const auto& [address, block] : blocks_) {
      const c10::Device at = block.first;
      if (at.type() == device.type() && (!device.has_index() || at.index() == device.index())) {
        sizes.push_back(block.second);
      }
    }
    std::sort(sizes.begin(), sizes.end(), std::greater<>());
    return sizes;
  }

  void allocated(c10::Device device, const void* address, int64_t bytes) noexcept override {
    try {
      blocks_.insert_or_assign(address, std::pair(device, bytes));
    } catch (const std::bad_alloc&) {  // then it is not listed
    }
  }

  void freed(c10::Device /*device*/, const void* address, int64_t /*bytes*/) noexcept override {
    blocks_.erase(address);
  }

 private:
  std::map<const void*, std::pair<c10::Device, int64_t>> blocks_;
};

}  // namespace tidemark::detail
