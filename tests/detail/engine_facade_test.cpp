#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <tidemark/detail/saved_tensor_hooks.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>

namespace {

using tidemark::detail::EngineLink;
using tidemark::detail::HookMaker;
using tidemark::detail::KeptTensor;
using tidemark::detail::SavedTensorHooksScope;
using torch::autograd::Engine;

class KeepingHooks final : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override { kept_ = KeptTensor(tensor); }
  at::Tensor call_unpack_hook() override { return kept_.unpack(); }

 private:
  KeptTensor kept_;
};

class CountingMaker final : public HookMaker {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override {
    ++made;
    return std::make_unique<KeepingHooks>();
  }
  int made = 0;
};

// exp saves its result: one saved tensor for each call.
at::Tensor save_one(const at::Tensor& x) { return x.exp(); }

at::Tensor leaf() { return torch::ones({3}).requires_grad_(); }

// An engine that is installed by somebody else, as an embedded Python interpreter does.
class OtherEngine final : public Engine {
 public:
  explicit OtherEngine(Engine& previous) : previous_(previous) {}
  ~OtherEngine() override { stop(); }

  static void install() {
    instance = new OtherEngine(Engine::get_default_engine());
    torch::autograd::set_default_engine_stub([]() -> Engine& { return *instance; });
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    ++asked;
    return nullptr;
  }
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return previous_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

  static inline OtherEngine* instance = nullptr;
  int asked = 0;

 private:
  Engine& previous_;
};

struct RunsABackwardInItsBackward : public torch::autograd::Function<RunsABackwardInItsBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x,
                            int64_t depth) {
    context->saved_data["depth"] = depth;
    context->save_for_backward({x});
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const int64_t depth = context->saved_data["depth"].toInt();
    if (depth > 0) {
      torch::AutoGradMode grad_mode(true);
      at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
      apply(x, depth - 1).sum().backward();
      return {x.grad() * grads[0], at::Tensor()};
    }
    return {grads[0], at::Tensor()};
  }
};

TEST(EngineFacade, AsksTheMakerOnlyWhileItsScopeIsOpen) {
  CountingMaker maker;
  save_one(leaf());
  EXPECT_EQ(maker.made, 0);
  {
    SavedTensorHooksScope scope(maker);
    save_one(leaf());
    EXPECT_EQ(maker.made, 1);
  }
  save_one(leaf());
  EXPECT_EQ(maker.made, 1);
  EXPECT_EQ(EngineLink::innermost_maker(), nullptr);
}

TEST(EngineFacade, InnermostMakerAloneIsAsked) {
  CountingMaker outer, inner;
  SavedTensorHooksScope outer_scope(outer);
  {
    SavedTensorHooksScope inner_scope(inner);
    save_one(leaf());
  }
  save_one(leaf());
  EXPECT_EQ(inner.made, 1);
  EXPECT_EQ(outer.made, 1);
}

TEST(EngineFacade, ScopesMayCloseInAnyOrder) {
  CountingMaker first, second, third;
  auto a = std::make_unique<SavedTensorHooksScope>(first);
  auto b = std::make_unique<SavedTensorHooksScope>(second);
  auto c = std::make_unique<SavedTensorHooksScope>(third);
  b.reset();
  save_one(leaf());
  c.reset();
  save_one(leaf());
  a.reset();
  save_one(leaf());
  EXPECT_EQ(third.made, 1);
  EXPECT_EQ(first.made, 1);
  EXPECT_EQ(second.made, 0);
  EXPECT_EQ(EngineLink::innermost_maker(), nullptr);
}

TEST(EngineFacade, MakersOfOneThreadAreNotAskedOnAnother) {
  CountingMaker maker;
  SavedTensorHooksScope scope(maker);
  std::thread([] { save_one(leaf()); }).join();
  EXPECT_EQ(maker.made, 0);
}

TEST(EngineFacade, ReachesItsMakersAfterAnotherEngineWasInstalled) {
  CountingMaker maker;
  { SavedTensorHooksScope scope(maker); }
  OtherEngine::install();
  save_one(leaf());
  EXPECT_EQ(OtherEngine::instance->asked, 1);
  {
    SavedTensorHooksScope scope(maker);
    OtherEngine::instance->asked = 0;
    save_one(leaf());
    EXPECT_EQ(maker.made, 1);
    EXPECT_EQ(OtherEngine::instance->asked, 0);
  }
  // Without a maker the other engine answers, as it did before.
  save_one(leaf());
  EXPECT_EQ(OtherEngine::instance->asked, 1);
  at::Tensor x = leaf();
  save_one(x).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), x.detach().exp()));
}

TEST(EngineFacade, AddsNoLinkWhenItIsReachedAlready) {
  CountingMaker maker;
  { SavedTensorHooksScope scope(maker); }
  const Engine* link = &Engine::get_default_engine();
  for (int i = 0; i < 3; ++i) {
    SavedTensorHooksScope scope(maker);
    EXPECT_EQ(&Engine::get_default_engine(), link);
  }
}

// With a facade that is a second engine this crashed: the pool's threads belong to the first one.
TEST(EngineFacade, ReentrantDepth100WorksAfterThePoolWasStartedThroughIt) {
  CountingMaker maker;
  { SavedTensorHooksScope scope(maker); }
  Engine::get_default_engine().initialize_device_threads_pool();
  at::Tensor x = leaf();
  RunsABackwardInItsBackward::apply(x, 100).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::ones({3})));
}

TEST(EngineFacade, QueuesCallbacksOfTheRunningBackward) {
  CountingMaker maker;
  { SavedTensorHooksScope scope(maker); }
  int called = 0;
  at::Tensor x = leaf();
  x.register_hook([&](at::Tensor grad) {
    Engine::get_default_engine().queue_callback([&] { ++called; });
    EXPECT_EQ(called, 0);
    return grad;
  });
  save_one(x).sum().backward();
  EXPECT_EQ(called, 1);
  EXPECT_ANY_THROW(Engine::get_default_engine().queue_callback([] {}));
}

TEST(EngineFacade, AnomalyModeStillNamesTheForward) {
  CountingMaker maker;
  { SavedTensorHooksScope scope(maker); }
  torch::autograd::DetectAnomalyGuard anomaly;
  at::Tensor x = torch::zeros({1}).requires_grad_();
  EXPECT_ANY_THROW((x.sqrt() * 0).backward());  // 0 * inf
}

TEST(EngineFacade, TokenLivesUntilBackwardEnds) {
  at::Tensor x = leaf();
  std::weak_ptr<int> seen;
  bool alive_at_the_last_node = false;
  x.register_hook([&](at::Tensor grad) {
    alive_at_the_last_node = !seen.expired();
    return grad;
  });
  at::Tensor y = x * 2;
  y.register_hook([&](at::Tensor grad) {
    auto token = std::make_shared<int>();
    seen = token;
    EngineLink::hold_until_backward_ends(std::move(token));
    return grad;
  });
  y.sum().backward();
  EXPECT_TRUE(alive_at_the_last_node);
  EXPECT_TRUE(seen.expired());
}

TEST(EngineFacade, TokenIsDroppedWhenBackwardFails) {
  at::Tensor x = leaf();
  std::weak_ptr<int> seen;
  x.register_hook([](at::Tensor) -> at::Tensor { throw std::runtime_error("boom"); });
  at::Tensor y = x * 2;
  y.register_hook([&](at::Tensor grad) {
    auto token = std::make_shared<int>();
    seen = token;
    EngineLink::hold_until_backward_ends(std::move(token));
    return grad;
  });
  EXPECT_THROW(y.sum().backward(), std::runtime_error);
  EXPECT_TRUE(seen.expired());
}

// In a process of its own: once the engine has threads, LibTorch refuses to go on after a fork.
TEST(EngineFacade, ChildProcessTrains) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fork_and_train = [] {
    CountingMaker maker;
    { SavedTensorHooksScope scope(maker); }
    const pid_t child = fork();
    if (child == 0) {
      at::Tensor x = leaf();
      SavedTensorHooksScope scope(maker);
      save_one(x).sum().backward();
      _exit(torch::equal(x.grad(), x.detach().exp()) ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  };
  EXPECT_EXIT(fork_and_train(), testing::ExitedWithCode(0), "");
}

// A LibTorch release that gives the engine another virtual must be looked at: it is forwarded, or
// known not to be called on the facade.
TEST(EngineFacade, KnowsEveryVirtualOfTheEngine) {
  const std::set<std::string> forwarded = {
      "execute", "execute_with_graph_task", "make_anomaly_metadata",
      "get_default_saved_variable_hooks", "get_node_creation_hooks"};
  const std::set<std::string> never_called_on_it = {"thread_on_exception", "thread_init",
                                                    "thread_main", "~Engine"};
  std::ifstream file(TIDEMARK_TORCH_INCLUDE_DIR "/torch/csrc/autograd/engine.h");
  ASSERT_TRUE(file.is_open());
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto begin = text.find("struct TORCH_API Engine {");
  ASSERT_NE(begin, std::string::npos);
  const std::string body = text.substr(begin, text.find("\n};", begin) - begin);
  const std::regex virtual_member("virtual[^(;]*?(~?\\w+)\\s*\\(");
  int found = 0;
  for (std::sregex_iterator i(body.begin(), body.end(), virtual_member), end; i != end; ++i) {
    const std::string name = (*i)[1];
    EXPECT_EQ(forwarded.count(name) + never_called_on_it.count(name), 1u) << name;
    ++found;
  }
  EXPECT_GE(found, 8);
}

// Hooks whose unpack opens a scope of its own, saves, and closes one that was opened before it.
TEST(EngineFacade, ScopesMayOpenAndCloseWhileATensorIsUnpacked) {
  struct Unpacks final : torch::autograd::SavedVariableHooks {
    explicit Unpacks(std::function<void()> work) : work(std::move(work)) {}
    void call_pack_hook(const at::Tensor& tensor) override { kept = KeptTensor(tensor); }
    at::Tensor call_unpack_hook() override {
      work();
      return kept.unpack();
    }
    std::function<void()> work;
    KeptTensor kept;
  };
  struct UnpacksMaker final : HookMaker {
    std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override {
      return std::make_unique<Unpacks>(work);
    }
    std::function<void()> work;
  };
  CountingMaker early, late;
  UnpacksMaker maker;
  auto early_scope = std::make_unique<SavedTensorHooksScope>(early);
  maker.work = [&] {
    const SavedTensorHooksScope late_scope(late);
    early_scope.reset();
    torch::AutoGradMode with_grad(true);
    save_one(leaf());
  };
  at::Tensor x = leaf(), y;
  {
    const SavedTensorHooksScope scope(maker);
    y = save_one(x);
  }
  y.sum().backward();
  EXPECT_EQ(late.made, 1);
  EXPECT_EQ(early.made, 0);
  EXPECT_TRUE(torch::equal(x.grad(), x.detach().exp()));
  EXPECT_EQ(EngineLink::innermost_maker(), nullptr);
}

TEST(EngineFacade, InstallsItselfAnewWhenTheBaseEngineIsPutBack) {
  CountingMaker maker;
  { SavedTensorHooksScope scope(maker); }
  torch::autograd::set_default_engine_stub([]() -> Engine& { return Engine::get_base_engine(); });
  save_one(leaf());
  EXPECT_EQ(maker.made, 0);
  at::Tensor x = leaf(), y;
  {
    SavedTensorHooksScope scope(maker);
    y = save_one(x);
  }
  EXPECT_EQ(maker.made, 1);
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), x.detach().exp()));
  at::Tensor deep = leaf();
  RunsABackwardInItsBackward::apply(deep, 100).sum().backward();
  EXPECT_TRUE(torch::equal(deep.grad(), torch::ones({3})));
}

}  // namespace
