// One meter per process, whichever of its shared objects opens a scope, and in whatever order they
// come and go.

#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_scope.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "../support/own_process.h"

namespace {

using namespace tidemark::literals;
using tidemark::MemoryScope;
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
    explicit Scope(Plugin& plugin)
        : plugin_(plugin), scope_(plugin.find<void*()>("plugin_open_scope")()) {}
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

INSTANTIATE_TEST_SUITE_P(Visibility, SharedMeter, ::testing::Values("default", "hidden"));

}  // namespace
