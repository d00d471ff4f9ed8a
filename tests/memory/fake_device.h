#pragma once

// An allocator that stands for a device's: it keeps the statistics that caching allocators keep,
// with their one peak that can be reset.

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

namespace tidemark::tests {

constexpr auto kType = c10::DeviceType::PrivateUse1;
inline const c10::Device kDevice(kType, 0);

class FakeDevice : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const auto size = static_cast<int64_t>(bytes);
    stats.allocation[0].increase(1);
    stats.allocated_bytes[0].increase(rounded(size));
    if (tells_requested_bytes) {
      stats.requested_bytes[0].increase(size);
    }
    auto* block = new Block{*this, size};
    return {&block->memory, block, &release, kDevice};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool initialized() override { return is_initialized; }
  void emptyCache(c10::MempoolId_t) override { ++caches_emptied; }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {
    stats.allocation[0].reset_accumulated();
    stats.allocated_bytes[0].reset_accumulated();
    stats.requested_bytes[0].reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex) override {
    stats.allocated_bytes[0].reset_peak();
    stats.requested_bytes[0].reset_peak();
  }

  static int64_t rounded(int64_t bytes) { return (bytes + 511) / 512 * 512; }

  bool tells_requested_bytes = true;
  bool is_initialized = true;
  int caches_emptied = 0;
  c10::CachingDeviceAllocator::DeviceStats stats;

 private:
  struct Block {
    FakeDevice& device;
    int64_t size;
    char memory = 0;  // only for its address
  };

  static void release(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    auto& stats = block->device.stats;
    stats.allocation[0].decrease(1);
    stats.allocated_bytes[0].decrease(rounded(block->size));
    if (block->device.tells_requested_bytes) {
      stats.requested_bytes[0].decrease(block->size);
    }
  }
};

/// Allocators live as long as the process.
inline FakeDevice& new_device() {
  static std::deque<FakeDevice> devices;
  return devices.emplace_back();
}

}  // namespace tidemark::tests
