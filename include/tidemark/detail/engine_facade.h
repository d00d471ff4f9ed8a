#pragma once

// Default saved-tensor hooks in pure C++: the only file that names torch::autograd::Engine.
//
// Every SavedVariable asks the default engine for hooks. Only Python's engine answers, so tidemark
// puts a link before the default engine that answers from a per-thread list of hook makers and
// forwards everything else. It is no second engine: device threads and the reentrant thread pool
// are started once per process and belong to the engine that was there first.

#include <tidemark/detail/keep_loaded.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

namespace tidemark::detail {

// Types that several shared objects of one process may hand to each other.
inline namespace process_v1 {

/// Makes the hooks of every tensor that is saved while it is the innermost maker of its thread.
/// Makers of a thread form a list through `outer`; the innermost one alone is asked.
class HookMaker {
 public:
  HookMaker() = default;
  HookMaker(const HookMaker&) = delete;
  HookMaker& operator=(const HookMaker&) = delete;
  virtual ~HookMaker() = default;

  /// Hooks for the tensor that is about to be saved; nullptr saves it the plain way.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;

  HookMaker* outer = nullptr;
};

class RegionRun;

/// What the shared objects of a process know of one thread together. Plain values, so that they can
/// be read in any order of thread exit.
struct ThreadState {
  HookMaker* innermost_maker = nullptr;
  RegionRun* innermost_run = nullptr;
  bool ops_are_paused = false;
};
using ThisThread = ThreadState& (*)();

}  // namespace process_v1

inline ThreadState& this_thread_of_this_object() {
  static thread_local ThreadState state;
  return state;
}

// Set while a thread asks whether the default engine reaches one of our links.
inline thread_local bool* t_link_reached = nullptr;

// LibTorch 2.15 gave the engine one more virtual; forward it where it exists.
template <class Base, class = void>
class ForwardsNodeCreationHooks : public Base {
 public:
  explicit ForwardsNodeCreationHooks(Base& previous) : previous_(previous) {}

 protected:
  Base& previous_;
};

template <class Base>
class ForwardsNodeCreationHooks<
    Base, std::void_t<decltype(std::declval<Base&>().get_node_creation_hooks())>> : public Base {
 public:
  explicit ForwardsNodeCreationHooks(Base& previous) : previous_(previous) {}

  decltype(std::declval<Base&>().get_node_creation_hooks()) get_node_creation_hooks() override {
    return previous_.get_node_creation_hooks();
  }

 protected:
  Base& previous_;
};

inline namespace process_v1 {

/// One link before the engine that was the default when it was made. `previous` never changes
/// (pointing it elsewhere could close a cycle), and a link is never destroyed: the engine may be
/// asked for hooks until the process is gone.
// Not final: compilers may then decide a dynamic_cast by the address of one vtable, and each shared
// object has its own.
class EngineFacade : public ForwardsNodeCreationHooks<torch::autograd::Engine> {
 public:
  // A shared_ptr up to LibTorch 2.12, an intrusive_ptr from 2.13 on.
  using NodePtr = decltype(torch::autograd::Edge::function);

  EngineFacade(torch::autograd::Engine& previous, ThisThread this_thread)
      : ForwardsNodeCreationHooks(previous), this_thread_(this_thread) {
    // The pool is started by whichever engine is asked first, into its own members: a caller that
    // asked the facade would leave the real engine without threads.
    previous.initialize_device_threads_pool();
  }

  // Engine's rule for subclasses. Never runs, since links are leaked on purpose.
  ~EngineFacade() override { stop(); }

  EngineFacade* older = nullptr;  // all are kept in a list, lest leak checkers report one

  /// The state that this link answers from. Virtual: it belongs to the shared object that made it.
  virtual ThreadState& this_thread() { return this_thread_(); }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (t_link_reached != nullptr) {
      *t_link_reached = true;
      return nullptr;
    }
    HookMaker* maker = this_thread_().innermost_maker;
    return maker != nullptr ? maker->make_hooks() : previous_.get_default_saved_variable_hooks();
  }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return previous_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task, NodePtr graph_root,
      torch::autograd::InputBuffer&& input_buffer) override {
    return previous_.execute_with_graph_task(graph_task, std::move(graph_root),
                                             std::move(input_buffer));
  }

  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return previous_.make_anomaly_metadata();
  }

 private:
  ThisThread this_thread_;
};

}  // namespace process_v1

/// The link of this shared object, and the state of threads that it answers from.
class EngineLink {
 public:
  /// Makes sure that a tensor saved from now on reaches our makers: installs the first link, and a
  /// new one over today's default engine when another engine was installed since (an embedded
  /// Python interpreter does that). Thread-safe; costs two loads when nothing changed.
  static void ensure() {
    auto& engine = torch::autograd::Engine::get_default_engine();
    if (&engine != newest().load(std::memory_order_acquire) && !reaches_us(engine)) {
      install();
    }
  }

  /// The state of the calling thread.
  static ThreadState& this_thread() {
    if (newest().load(std::memory_order_acquire) == nullptr) {
      adopt(torch::autograd::Engine::get_default_engine());
    }
    EngineFacade* twin = shared().load(std::memory_order_acquire);
    return twin != nullptr ? twin->this_thread() : this_thread_of_this_object();
  }

  /// The innermost maker of the calling thread.
  static HookMaker*& innermost_maker() { return this_thread().innermost_maker; }

  /// Keeps `token` alive until the backward pass that runs on this thread is over, whether it ends
  /// well or not. Only to be called inside one.
  static void hold_until_backward_ends(std::shared_ptr<void> token) {
    // A pass that fails never calls the callback, but drops it.
    torch::autograd::Engine::get_default_engine().queue_callback(
        [token = std::move(token)]() mutable { token.reset(); });
  }

 private:
  static std::atomic<torch::autograd::Engine*>& newest() {
    static std::atomic<torch::autograd::Engine*> link{nullptr};
    return link;
  }

  // The link of another shared object that this one uses instead of a chain of its own: with one
  // state per thread the innermost maker wins, whichever object made it, and a region's re-run is
  // known to all of them.
  static std::atomic<EngineFacade*>& shared() {
    static std::atomic<EngineFacade*> link{nullptr};
    return link;
  }

  // Uses `engine` if it is another shared object's link and this one has none.
  static bool adopt(torch::autograd::Engine& engine) {
    auto* twin = dynamic_cast<EngineFacade*>(&engine);
    torch::autograd::Engine* none = nullptr;
    if (twin == nullptr || !newest().compare_exchange_strong(none, twin)) {
      return false;
    }
    shared().store(twin, std::memory_order_release);
    return true;
  }

  static torch::autograd::Engine& newest_link() { return *newest().load(); }

  static bool reaches_us(torch::autograd::Engine& engine) {
    if (newest().load() == nullptr) {
      return false;
    }
    auto* link = dynamic_cast<EngineFacade*>(&engine);
    if (link != nullptr && &link->this_thread() == &this_thread()) {
      return true;  // another shared object's link, answering from the same state
    }
    bool reached = false;
    t_link_reached = &reached;
    try {
      engine.get_default_saved_variable_hooks();
    } catch (...) {
      t_link_reached = nullptr;
      throw;
    }
    t_link_reached = nullptr;
    return reached;
  }

  static void install() {
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    auto& engine = torch::autograd::Engine::get_default_engine();
    if (reaches_us(engine) || adopt(engine)) {
      return;
    }
    keep_loaded(&ensure);
    auto* link = new EngineFacade(engine, &this_thread);
    static EngineFacade* links = nullptr;
    link->older = std::exchange(links, link);
    newest().store(link, std::memory_order_release);
    torch::autograd::set_default_engine_stub(&newest_link);
  }
};

}  // namespace tidemark::detail
