// Who watches blocks come and go is told of them in the order in which they are counted.

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/detail/block_observer.h>
#include <tidemark/detail/device_block_event.h>
#include <tidemark/detail/memory_meter.h>
#include <tidemark/gtest/memory_cap.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../support/threads.h"

namespace {

using namespace tidemark::literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using tidemark::MemoryScope;
using tidemark::detail::BlockObserver;
using tidemark::detail::MemoryMeter;
using tidemark::detail::ProcessMeter;
using tidemark::gtest::MemoryCap;
using tidemark::tests::on_threads;
using torch::Tensor;

Tensor bytes(int64_t count) { return torch::empty({count}, torch::kUInt8); }

/// An observer while it lives.
template <class Observer>
class Watching : public Observer {
 public:
  Watching() { ProcessMeter::get().add_observer(*this); }
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;
  ~Watching() override { ProcessMeter::get().remove_observer(*this); }
};

struct Event {
  c10::Device device;
  const void* address;
  int64_t bytes;  // negative for a block that goes

  bool operator==(const Event& other) const {
    return device == other.device && address == other.address && bytes == other.bytes;
  }
};

struct Recorder : BlockObserver {
  void allocated(c10::Device device, const void* address, int64_t bytes) noexcept override {
    events.push_back({device, address, bytes});
  }
  void freed(c10::Device device, const void* address, int64_t bytes) noexcept override {
    events.push_back({device, address, -bytes});
  }
  void refused(c10::Device device, int64_t bytes) noexcept override {
    refusals.emplace_back(device, bytes);
  }
  std::vector<Event> events;
  std::vector<std::pair<c10::Device, int64_t>> refusals;
};

TEST(BlockObserver, IsToldOfEveryBlockInOrder) {
  Watching<Recorder> watching;
  auto a = bytes(100);
  auto b = bytes(200);
  const void* first = a.data_ptr();
  const void* second = b.data_ptr();
  a.reset();
  std::thread([&] { b.reset(); }).join();
  EXPECT_THAT(watching.events,
              ElementsAre(Event{c10::kCPU, first, 100}, Event{c10::kCPU, second, 200},
                          Event{c10::kCPU, first, -100}, Event{c10::kCPU, second, -200}));
}

TEST(BlockObserver, IsToldOfABlockThatIsOlderWhenItGoes) {
  const MemoryScope counting;
  auto older = bytes(100);
  Watching<Recorder> watching;
  const void* address = older.data_ptr();
  older.reset();
  EXPECT_THAT(watching.events, ElementsAre(Event{c10::kCPU, address, -100}));
}

TEST(BlockObserver, SeveralAreToldAndNoneThatWasRemoved) {
  Watching<Recorder> first;
  {
    Watching<Recorder> second;
    bytes(10);
    EXPECT_EQ(second.events.size(), 2U);
    EXPECT_EQ(second.events, first.events);
  }
  bytes(10);
  EXPECT_EQ(first.events.size(), 4U);
  Recorder never_added;
  ProcessMeter::get().remove_observer(never_added);
  bytes(10);
  EXPECT_EQ(first.events.size(), 6U);
}

/// Keeps the books itself. No lock of its own: it is never called by two threads at once.
struct Books : BlockObserver {
  void allocated(c10::Device, const void* address, int64_t bytes) noexcept override {
    live += bytes;
    peak = std::max(peak, live);
    wrong += blocks.emplace(address, bytes).second ? 0 : 1;
  }
  void freed(c10::Device, const void* address, int64_t bytes) noexcept override {
    live -= bytes;
    const auto block = blocks.find(address);
    if (block == blocks.end() || block->second != bytes) {
      ++wrong;
    } else {
      blocks.erase(block);
    }
  }
  int64_t live = 0;
  int64_t peak = 0;
  int wrong = 0;
  std::unordered_map<const void*, int64_t> blocks;
};

TEST(BlockObserver, SeesTheSamePeaksAsTheMeterWhateverThreadsDo) {
  constexpr int kThreads = 3;
  const MemoryScope counting;
  for (int round = 0; round < 200; ++round) {
    Watching<Books> books;
    const MemoryScope scope;
    std::atomic<int> ready{0};
    on_threads(kThreads, [&](int t) {
      ++ready;
      while (ready < kThreads) {
        std::this_thread::yield();
      }
      for (int i = 0; i < 200; ++i) {
        const auto a = c10::GetCPUAllocator()->allocate(1 + (i * 7 + t) % 300);
        const auto b = c10::GetCPUAllocator()->allocate(1 + (i * 13 + t) % 3000);
      }
    });
    ASSERT_EQ(books.peak, scope.peak());
    ASSERT_EQ(books.live, 0);
    ASSERT_EQ(books.wrong, 0);
    ASSERT_THAT(books.blocks, IsEmpty());
  }
}

/// Notices to be called after its end.
struct Mortal : BlockObserver {
  static constexpr int kAlive = 12345;
  void allocated(c10::Device, const void*, int64_t) noexcept override { check(); }
  void freed(c10::Device, const void*, int64_t) noexcept override { check(); }
  void check() const {
    if (*state != kAlive) {
      std::abort();
    }
  }
  ~Mortal() override { *state = 0; }
  std::unique_ptr<int> state = std::make_unique<int>(kAlive);
};

TEST(BlockObserver, IsNotCalledOnceItsRemovalReturned) {
  std::atomic<bool> done{false};
  on_threads(3, [&](int t) {
    if (t == 0) {
      for (int i = 0; i < 2000; ++i) {
        auto mortal = std::make_unique<Watching<Mortal>>();
        bytes(10);
      }
      done = true;
    }
    while (!done) {
      bytes(10);
    }
  });
}

/// Takes its time, and looks at the end whether it was removed meanwhile.
struct Slow : BlockObserver {
  void allocated(c10::Device, const void*, int64_t) noexcept override {
    called = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    removed_meanwhile = removed.load();
  }
  void freed(c10::Device, const void*, int64_t) noexcept override {}
  std::atomic<bool> called{false};
  std::atomic<bool> removed{false};
  std::atomic<bool> removed_meanwhile{false};
};

TEST(BlockObserver, RemovalWaitsForTheCallThatIsUnderWay) {
  Slow slow;
  auto& meter = ProcessMeter::get();
  meter.add_observer(slow);
  std::thread allocating([] { c10::GetCPUAllocator()->allocate(10); });
  while (!slow.called) {
    std::this_thread::yield();
  }
  meter.remove_observer(slow);
  slow.removed = true;
  allocating.join();
  EXPECT_FALSE(slow.removed_meanwhile);
}

TEST(BlockObserver, IsToldOfAnAllocationThatIsRefusedAndOfNoBlock) {
  const MemoryCap cap(6000);
  Watching<Recorder> watching;
  const auto kept = bytes(4000);
  EXPECT_THROW(bytes(4001), c10::OutOfMemoryError);
  EXPECT_THAT(watching.refusals, ElementsAre(Pair(c10::Device(c10::kCPU), 4001)));
  EXPECT_EQ(watching.events.size(), 1U);
}

TEST(BlockObserver, CanComeAndGoWhileThereIsNoMemoryLeft) {
  const MemoryCap cap(0);
  Watching<Books> watching;
  EXPECT_THROW(bytes(1), c10::OutOfMemoryError);
  EXPECT_EQ(watching.live, 0);
}

TEST(BlockObserver, KnowsWhatIsLiveWhenAStepRunsOutOfMemory) {
  const MemoryCap cap(1_MiB);
  Watching<Books> watching;
  const auto kept = bytes(600_KiB);
  const auto other = bytes(300_KiB);
  int64_t live_then = 0;
  try {
    bytes(200_KiB);
    FAIL() << "no exception";
  } catch (const c10::OutOfMemoryError&) {
    live_then = watching.live;
  }
  EXPECT_EQ(live_then, 900_KiB);
  EXPECT_EQ(watching.blocks.at(kept.data_ptr()), 600_KiB);
  EXPECT_EQ(watching.blocks.at(other.data_ptr()), 300_KiB);
}

// ---- blocks of devices ----------------------------------------------------------------------

using Trace = c10::CachingDeviceAllocator::TraceEntry;
constexpr auto kType = c10::DeviceType::PrivateUse1;

void report(Trace::Action action, c10::DeviceIndex device, size_t address, size_t size) {
  tidemark::detail::report_device_event(ProcessMeter::get(), kType,
                                        Trace(action, device, address, size, nullptr, {0, 0}, 0));
}

Event device_event(c10::DeviceIndex device, size_t address, int64_t bytes) {
  return {c10::Device(kType, device), reinterpret_cast<const void*>(address), bytes};
}

TEST(BlockObserver, IsToldOfBlocksThatDevicesReport) {
  Watching<Recorder> watching;
  report(Trace::ALLOC, 0, 0x1000, 700);
  report(Trace::ALLOC, 1, 0x2000, 512);
  report(Trace::FREE_REQUESTED, 0, 0x1000, 700);
  EXPECT_EQ(watching.events.size(), 2U);  // another stream may still use it
  report(Trace::FREE_COMPLETED, 0, 0x1000, 700);
  report(Trace::FREE_COMPLETED, 1, 0x2000, 512);
  EXPECT_THAT(watching.events,
              ElementsAre(device_event(0, 0x1000, 700), device_event(1, 0x2000, 512),
                          device_event(0, 0x1000, -700), device_event(1, 0x2000, -512)));
}

TEST(BlockObserver, IsNotToldOfDeviceBlocksThatAreOlderThanTheReports) {
  Watching<Recorder> watching;
  report(Trace::FREE_COMPLETED, 0, 0x3000, 700);
  EXPECT_THAT(watching.events, IsEmpty());
}

TEST(BlockObserver, IsToldThatADeviceBlockWentWhoseAddressReturns) {
  Watching<Recorder> watching;
  report(Trace::ALLOC, 0, 0x1000, 700);
  report(Trace::ALLOC, 0, 0x1000, 100);
  report(Trace::FREE_COMPLETED, 0, 0x1000, 100);
  EXPECT_THAT(watching.events,
              ElementsAre(device_event(0, 0x1000, 700), device_event(0, 0x1000, -700),
                          device_event(0, 0x1000, 100), device_event(0, 0x1000, -100)));
}

TEST(BlockObserver, IsNotToldOfWhatElseAnAllocatorTraces) {
  Watching<Recorder> watching;
  for (const auto action : {Trace::SEGMENT_ALLOC, Trace::SEGMENT_FREE, Trace::SEGMENT_MAP,
                            Trace::SEGMENT_UNMAP, Trace::SNAPSHOT}) {
    report(action, 0, 0x1000, 700);
  }
  EXPECT_THAT(watching.events, IsEmpty());
  EXPECT_THAT(watching.refusals, IsEmpty());
}

TEST(BlockObserver, IsToldThatADeviceRanOutOfMemory) {
  Watching<Recorder> watching;
  report(Trace::OOM, 1, /*free bytes*/ 0x1000, 700);
  EXPECT_THAT(watching.refusals, ElementsAre(Pair(c10::Device(kType, 1), 700)));
  EXPECT_THAT(watching.events, IsEmpty());
}

TEST(BlockObserver, DevicesCountOnTheirOwn) {
  const MemoryScope cpu;
  report(Trace::ALLOC, 0, 0x1000, 700);
  EXPECT_EQ(cpu.allocations(), 0);
  report(Trace::FREE_COMPLETED, 0, 0x1000, 700);
}

TEST(BlockObserver, DevicesAreAttachedToOnceAndAgainWhenThatFailed) {
  static int attempts;
  attempts = 0;
  auto& meter = ProcessMeter::get();
  const auto attach = [](MemoryMeter&) {
    if (++attempts == 1) {
      throw std::runtime_error("not today");
    }
  };
  EXPECT_THROW(meter.watch_devices(kType, attach), std::runtime_error);
  EXPECT_FALSE(meter.watches(kType));
  meter.watch_devices(kType, attach);
  meter.watch_devices(kType, attach);
  EXPECT_EQ(attempts, 2);
  EXPECT_TRUE(meter.watches(kType));
  EXPECT_TRUE(meter.watches(c10::kCPU));
}

}  // namespace
