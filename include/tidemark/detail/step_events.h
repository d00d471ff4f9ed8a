#pragma once

// What happens to memory during a training step, as one list of events.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <tidemark/detail/block_observer.h>
#include <tidemark/detail/held_bytes.h>
#include <tidemark/detail/spin_lock.h>
#include <tidemark/memory/memory_report.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>
#include <utility>

namespace tidemark::detail {

struct StepEvent {
  enum class Kind : uint8_t {
    kAllocated,
    kFreed,
    kGone,     // a block from before the recording, if its end was not seen
    kRefused,  // an allocation
    kOpBegan,
    kOpEnded,
    kRead,      // by an op; number: whether a tensor that requires grad
    kWritten,   // by an op
    kHeld,      // by a saved tensor of a graph
    kReleased,  // by that
    kKnown,     // to be of a category
    kCast,      // a parameter's, by autocast, is what the op allocates
  };
  static constexpr int32_t kNoOp = -1;

  Kind kind = Kind::kAllocated;
  MemoryCategory category = MemoryCategory::kOther;  // kKnown
  int32_t op = kNoOp;                                // that runs on the thread
  uint64_t address = 0;                              // of the block
  int64_t bytes = 0;
  int64_t number =
      0;  // kAllocated, kFreed, kGone: ns; kHeld, kReleased: which; kKnown: of the name
};

/// Where a thread is in a recording. `recording` tells whether it means this one.
struct OpOnThread {
  uint64_t recording = 0;
  int32_t op = StepEvent::kNoOp;
};

/// Whether the memory came from LibTorch's allocator, and not by from_blob().
inline bool is_allocated(const c10::Storage& storage) {
  if (!storage.device().is_cpu() || storage.allocator() != nullptr) {
    return true;
  }
  const c10::DeleterFnPtr deleter = storage.data_ptr().get_deleter();
  return deleter == c10::GetCPUAllocator()->raw_deleter() ||
         deleter == c10::GetDefaultCPUAllocator()->raw_deleter();
}

/// The list while it grows. Thread-safe.
class StepEvents final : public BlockObserver, public SavedAccount {
 public:
  StepEvents(c10::Device device, int64_t most)
      : device_(device), most_(static_cast<std::size_t>(most)) {}

  /// Tells this recording from others of the process.
  [[nodiscard]] uint64_t id() const { return id_; }

  [[nodiscard]] c10::Device device() const { return device_; }

  /// The op that allocations of the calling thread belong to.
  static OpOnThread& on_thread() {
    static thread_local OpOnThread on_thread;
    return on_thread;
  }

  [[nodiscard]] int64_t now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_).count();
  }

  [[nodiscard]] bool is_on_device(c10::Device device) const {
    return device.type() == device_.type() &&
           (device.is_cpu() || device.index() == device_.index());
  }

  void op_began(int32_t op) {
    last_op_.store(op, std::memory_order_relaxed);
    add({StepEvent::Kind::kOpBegan, {}, op, 0, 0, 0});
  }
  void op_ended(int32_t op, int32_t outer) {
    last_op_.store(outer, std::memory_order_relaxed);
    add({StepEvent::Kind::kOpEnded, {}, op, 0, 0, 0});
  }

  /// Something is the case for the memory of a tensor.
  void note(StepEvent::Kind kind, const c10::Storage& storage, int32_t op,
            MemoryCategory category = MemoryCategory::kOther, int64_t number = 0) {
    if (storage && storage.nbytes() != 0 && is_on_device(storage.device()) &&
        is_allocated(storage)) {
      add({kind, category, op, reinterpret_cast<uintptr_t>(storage.data()),
           static_cast<int64_t>(storage.nbytes()), number});
    }
  }
  void gone(uint64_t address) {
    add({StepEvent::Kind::kGone, {}, StepEvent::kNoOp, address, 0, now()});
  }
  void cast_began(int32_t op) { add({StepEvent::Kind::kCast, {}, op, 0, 0, 0}); }

  void allocated(c10::Device device, const void* address, int64_t bytes) noexcept override {
    if (bytes > 0 && is_on_device(device) && !t_own_work) {
      add({StepEvent::Kind::kAllocated,
           {},
           current_op(),
           reinterpret_cast<uintptr_t>(address),
           bytes,
           now()});
    }
  }
  void freed(c10::Device device, const void* address, int64_t bytes) noexcept override {
    if (bytes > 0 && is_on_device(device) && !t_own_work) {
      add({StepEvent::Kind::kFreed,
           {},
           current_op(),
           reinterpret_cast<uintptr_t>(address),
           bytes,
           now()});
    }
  }

  void refused(c10::Device device, int64_t bytes) noexcept override {
    if (is_on_device(device)) {
      add({StepEvent::Kind::kRefused, {}, current_op(), 0, bytes, 0});
    }
  }

  int64_t add(const c10::Storage& storage) override {
    const int64_t number = last_held_.fetch_add(1, std::memory_order_relaxed) + 1;
    note(StepEvent::Kind::kHeld, storage, current_op(), {}, number);
    return number;
  }
  void remove(c10::StorageImpl* /*storage*/, int64_t number) noexcept override {
    add({StepEvent::Kind::kReleased, {}, current_op(), 0, 0, number});
  }

  /// While alive, what this thread allocates and frees is not the step's.
  class OwnWork {
   public:
    OwnWork() : outer_(std::exchange(t_own_work, true)) {}
    OwnWork(const OwnWork&) = delete;
    OwnWork& operator=(const OwnWork&) = delete;
    ~OwnWork() { t_own_work = outer_; }

   private:
    bool outer_;
  };

  /// No more are taken from now on.
  void close() {
    const std::lock_guard<SpinLock> lock(lock_);
    closed_ = true;
    events_.clear();
  }

  /// What was taken, and how many were not for want of room.
  std::pair<std::deque<StepEvent>, int64_t> so_far() {
    const std::lock_guard<SpinLock> lock(lock_);
    return {events_, lost_};
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Threads of a pool that work for an op know nothing of it: then it is the last that began.
  [[nodiscard]] int32_t current_op() const noexcept {
    const OpOnThread here = on_thread();
    if (here.recording == id_) {
      return here.op;
    }
    return at::in_parallel_region() ? last_op_.load(std::memory_order_relaxed) : StepEvent::kNoOp;
  }

  void add(const StepEvent& event) noexcept {
    const std::lock_guard<SpinLock> lock(lock_);
    if (closed_) {
      return;
    }
    if (lost_ > 0 || events_.size() >= most_) {
      ++lost_;
      return;
    }
    try {
      events_.push_back(event);
    } catch (const std::bad_alloc&) {
      ++lost_;
    }
  }

  static uint64_t next_id() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }

  inline static thread_local bool t_own_work = false;

  const c10::Device device_;
  const std::size_t most_;
  const uint64_t id_ = next_id();
  const Clock::time_point begin_ = Clock::now();
  std::atomic<int32_t> last_op_{StepEvent::kNoOp};
  std::atomic<int64_t> last_held_{0};
  SpinLock lock_;
  std::deque<StepEvent> events_;
  int64_t lost_ = 0;
  bool closed_ = false;
};

}  // namespace tidemark::detail
