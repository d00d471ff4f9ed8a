// One meter per process, whichever of its shared objects opens a scope, and in whatever order they
// come and go.

#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <tidemark/detail/memory_meter.h>
#include <tidemark/detail/meter_link.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_scope.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>

#include "../support/own_process.h"

namespace {

using namespace tidemark::literals;
using tidemark::MemoryScope;
using tidemark::detail::MemoryMeter;
using tidemark::detail::ProcessMeter;
using tidemark::tests::expect_in_own_process;

/// The program's own view of a plugin (meter_plugin.cpp).
class Plugin {
 public:
  explicit Plugin(const std::string& visibility)
      : handle_(dlopen((TIDEMARK_PLUGIN_DIR "/plugin_a_" + visibility + ".so").c_str(),
                       RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      throw std::runtime_error(dlerror());
    }
  }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;
  ~Plugin() { dlclose(handle_); }

  class Scope {
   public:
    explicit Scope(Plugin& plugin, const char* open = "plugin_open_scope")
        : plugin_(plugin), scope_(plugin.find<void*()>(open)()) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { plugin_.find<void(void*)>("plugin_close_scope")(scope_); }

    int64_t baseline() { return plugin_.find<int64_t(void*)>("plugin_baseline")(scope_); }
    int64_t current() { return plugin_.find<int64_t(void*)>("plugin_current")(scope_); }
    int64_t peak() { return plugin_.find<int64_t(void*)>("plugin_peak")(scope_); }

   private:
    Plugin& plugin_;
    void* scope_;
  };

  class Observer {
   public:
    explicit Observer(Plugin& plugin)
        : plugin_(plugin), observer_(plugin.find<void*()>("plugin_open_observer")()) {}
    Observer(const Observer&) = delete;
    Observer& operator=(const Observer&) = delete;
    ~Observer() { plugin_.find<void(void*)>("plugin_close_observer")(observer_); }

    int64_t live() { return plugin_.find<int64_t(void*)>("plugin_observed")(observer_); }

   private:
    Plugin& plugin_;
    void* observer_;
  };

  void watch(c10::DeviceType type, void (*attach)(MemoryMeter&)) {
    find<void(c10::DeviceType, void (*)(MemoryMeter&))>("plugin_watch")(type, attach);
  }

 private:
  template <class Function>
  Function* find(const char* name) {
    return reinterpret_cast<Function*>(dlsym(handle_, name));
  }

  void* handle_;
};

c10::DataPtr block(int64_t bytes) { return c10::GetCPUAllocator()->allocate(bytes); }

class SharedMeter : public ::testing::TestWithParam<std::string> {};

TEST_P(SharedMeter, ProgramAndPluginShareTheMeterOfTheProgram) {
  expect_in_own_process([] {
    const MemoryScope program;
    const auto before = block(1_MiB);
    Plugin plugin(GetParam());
    Plugin::Scope scope(plugin);
    EXPECT_EQ(scope.baseline(), 1_MiB) << "the plugin made a meter of its own";
    const auto after = block(2_MiB);
    EXPECT_EQ(scope.current(), 2_MiB);
    EXPECT_EQ(program.current(), 3_MiB);
  });
}

TEST_P(SharedMeter, ProgramAndPluginShareTheMeterOfThePlugin) {
  expect_in_own_process([] {
    Plugin plugin(GetParam());
    Plugin::Scope scope(plugin);
    const auto before = block(1_MiB);
    const MemoryScope program;
    EXPECT_EQ(program.baseline(), 1_MiB);
    block(4_MiB);
    EXPECT_EQ(program.peak(), 4_MiB);
    EXPECT_EQ(scope.peak(), 5_MiB);
  });
}

TEST_P(SharedMeter, ProgramGoesBackToPeaksOfThePluginAndToNoneWhereNothingCounts) {
  expect_in_own_process([] {
    EXPECT_EQ(tidemark::detail::mark_peaks(), nullptr);
    Plugin plugin(GetParam());
    Plugin::Scope scope(plugin);
    const auto before = tidemark::detail::mark_peaks();
    if (before == nullptr) {
      throw std::runtime_error("the program does not find the meter of the plugin");
    }
    block(1_MiB);
    before->put_back();
    EXPECT_EQ(scope.peak(), 0);
  });
}

TEST_P(SharedMeter, ScopeOfOneDoesNotTakeThePeakFromTheOther) {
  expect_in_own_process([] {
    const MemoryScope program;
    Plugin plugin(GetParam());
    block(8_MiB);
    {
      Plugin::Scope scope(plugin);
      block(2_MiB);
      EXPECT_EQ(scope.peak(), 2_MiB);
      {
        const MemoryScope inner;
        block(1_MiB);
      }
      EXPECT_EQ(scope.peak(), 2_MiB);
    }
    EXPECT_EQ(program.peak(), 8_MiB);
  });
}

TEST_P(SharedMeter, MeterStaysWhenThePluginThatInstalledItIsClosed) {
  expect_in_own_process([] {
    c10::DataPtr survivor;
    {
      Plugin plugin(GetParam());
      Plugin::Scope scope(plugin);
      survivor = block(1_MiB);
    }
    block(100);
    const MemoryScope program;
    EXPECT_EQ(program.baseline(), 1_MiB);
    survivor.clear();
    EXPECT_EQ(program.current(), -1_MiB);
  });
}

TEST_P(SharedMeter, PluginThatCantFindTheMeterCountsTheSame) {
  /// Hides the allocator that it wraps.
  struct Hiding : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override { return next->allocate(bytes); }
    [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return next->raw_deleter(); }
    void copy_data(void* to, const void* from, size_t bytes) const override {
      next->copy_data(to, from, bytes);
    }
    c10::Allocator* next = nullptr;
  };
  expect_in_own_process([] {
    const MemoryScope program;
    static Hiding hiding;
    hiding.next = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&hiding);
    Plugin plugin(GetParam());
    Plugin::Scope scope(plugin);
    auto kept = block(1_MiB);
    const MemoryScope inner;
    block(2_MiB);
    EXPECT_EQ(inner.peak(), 2_MiB);
    EXPECT_EQ(scope.peak(), 3_MiB);
    EXPECT_EQ(program.peak(), 3_MiB);
    kept.clear();
    EXPECT_EQ(scope.current(), 0);
    EXPECT_EQ(program.current(), 0);
  });
}

TEST_P(SharedMeter, ObserverOfAPluginSeesTheBlocksOfAll) {
  expect_in_own_process([] {
    const MemoryScope program;  // the meter is the program's
    auto before = block(1_MiB);
    Plugin plugin(GetParam());
    {
      Plugin::Observer observer(plugin);
      auto after = block(2_MiB);
      EXPECT_EQ(observer.live(), 2_MiB);
      std::thread([&] { after.clear(); }).join();
      EXPECT_EQ(observer.live(), 0);
      before.clear();
      EXPECT_EQ(observer.live(), -1_MiB);
    }
    block(1_MiB);
  });
}

TEST_P(SharedMeter, ObserverOfTheProgramWatchesTheMeterOfAPlugin) {
  expect_in_own_process([] {
    struct : tidemark::detail::BlockObserver {
      void allocated(c10::Device, const void*, int64_t bytes) noexcept override { live += bytes; }
      void freed(c10::Device, const void*, int64_t bytes) noexcept override { live -= bytes; }
      int64_t live = 0;
    } observer;
    {
      Plugin plugin(GetParam());
      Plugin::Observer first(plugin);  // the meter is the plugin's
      ProcessMeter::get().add_observer(observer);
      const auto kept = block(1_MiB);
      EXPECT_EQ(first.live(), 1_MiB);
      EXPECT_EQ(observer.live, 1_MiB);
    }
    const auto kept = block(10);
    EXPECT_EQ(observer.live, 10);
    ProcessMeter::get().remove_observer(observer);
  });
}

TEST_P(SharedMeter, ScopesOfAThreadAreOneAccountForProgramAndPlugin) {
  expect_in_own_process([] {
    const char* const kOpen = "plugin_open_thread_scope";
    Plugin plugin(GetParam());
    Plugin::Scope outer(plugin, kOpen);
    auto kept = block(1_MiB);
    const MemoryScope inner(MemoryScope::Threads::kThis);
    EXPECT_EQ(inner.baseline(), 1_MiB);
    std::thread([&] {
      Plugin::Scope other(plugin, kOpen);
      EXPECT_EQ(other.baseline(), 0);
      const auto own = block(100);
      kept.clear();
      EXPECT_EQ(other.current(), 100);
      const MemoryScope same(MemoryScope::Threads::kThis);
      EXPECT_EQ(same.baseline(), 100);
    }).join();
    EXPECT_EQ(inner.current(), -1_MiB);
    EXPECT_EQ(outer.current(), 0);
    EXPECT_EQ(outer.peak(), 1_MiB);
  });
}

TEST_P(SharedMeter, BlocksOfAThreadOutliveThePluginThatCountedThem) {
  expect_in_own_process([] {
    c10::DataPtr survivor;
    std::thread([&] {
      Plugin plugin(GetParam());
      Plugin::Scope scope(plugin, "plugin_open_thread_scope");
      survivor = block(1_MiB);
    }).join();
    const MemoryScope program;
    const MemoryScope mine(MemoryScope::Threads::kThis);
    survivor.clear();
    EXPECT_EQ(program.current(), -1_MiB);
    EXPECT_EQ(mine.current(), 0);
  });
}

TEST_P(SharedMeter, DevicesAreAttachedToOnceForProgramAndPlugin) {
  expect_in_own_process([] {
    static int attached;
    const auto attach = [](MemoryMeter&) { ++attached; };
    const MemoryScope program;
    Plugin plugin(GetParam());
    plugin.watch(c10::kCUDA, attach);
    ProcessMeter::get().watch_devices(c10::kCUDA, attach);
    plugin.watch(c10::kCUDA, attach);
    EXPECT_EQ(attached, 1);
    Plugin::Observer observer(plugin);
    int place = 0;
    ProcessMeter::get().device_allocated(c10::Device(c10::kCUDA, 0), &place, 100);
    EXPECT_EQ(observer.live(), 100);
    ProcessMeter::get().device_freed(c10::Device(c10::kCUDA, 0), &place);
    EXPECT_EQ(observer.live(), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Visibility, SharedMeter, ::testing::Values("default", "hidden"));

}  // namespace
