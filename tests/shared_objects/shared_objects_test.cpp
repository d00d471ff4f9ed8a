// Two shared objects with tidemark in each, loaded by a program that has it too.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <tidemark/detail/saved_tensor_hooks.h>
#include <torch/torch.h>

#include <set>
#include <string>

namespace {

class Plugin {
 public:
  explicit Plugin(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      throw std::runtime_error(dlerror());
    }
  }
  void open_scope() { function<void()>("open_scope")(); }
  void close_scope() { function<void()>("close_scope")(); }
  int made() { return function<int()>("made")(); }

 private:
  template <class Signature>
  Signature* function(const char* name) {
    return reinterpret_cast<Signature*>(dlsym(handle_, name));
  }
  void* handle_;  // never closed: the engine keeps pointing into it
};

void save_one() { torch::ones({3}).requires_grad_().exp(); }

class SharedObjects : public testing::TestWithParam<std::string> {};

TEST_P(SharedObjects, InnermostScopeWinsWhicheverObjectOpenedIt) {
  Plugin a(std::string(TIDEMARK_PLUGIN_DIR) + "/plugin_a_" + GetParam() + ".so");
  Plugin b(std::string(TIDEMARK_PLUGIN_DIR) + "/plugin_b_" + GetParam() + ".so");
  std::set<torch::autograd::Engine*> engines;
  for (int round = 1; round <= 5; ++round) {
    for (auto [outer, inner] : {std::pair(&a, &b), std::pair(&b, &a)}) {
      const int outer_before = outer->made();
      const int inner_before = inner->made();
      outer->open_scope();
      save_one();
      inner->open_scope();
      save_one();
      save_one();
      inner->close_scope();
      save_one();
      outer->close_scope();
      save_one();
      EXPECT_EQ(outer->made() - outer_before, 2);
      EXPECT_EQ(inner->made() - inner_before, 2);
    }
    engines.insert(&torch::autograd::Engine::get_default_engine());
  }
  // The chain of links does not grow with every change of order.
  EXPECT_EQ(engines.size(), 1u);
  torch::Tensor x = torch::ones({3}).requires_grad_();
  a.open_scope();
  torch::Tensor y = x.exp();
  a.close_scope();
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), x.detach().exp()));
}

INSTANTIATE_TEST_SUITE_P(Visibility, SharedObjects, testing::Values("default", "hidden"));

}  // namespace
