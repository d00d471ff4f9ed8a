// Two shared objects with tidemark in each, loaded by a program that has it too.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <tidemark/detail/saved_tensor_hooks.h>
#include <torch/torch.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

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
  void run_region(const torch::Tensor& x, const torch::Tensor& count, torch::Tensor& y,
                  int& remembered, int& reruns) {
    function<void(const torch::Tensor*, const torch::Tensor*, torch::Tensor*, int*, int*)>(
        "run_region")(&x, &count, &y, &remembered, &reruns);
  }
  void close() { dlclose(std::exchange(handle_, nullptr)); }

 private:
  template <class Signature>
  Signature* function(const char* name) {
    return reinterpret_cast<Signature*>(dlsym(handle_, name));
  }
  void* handle_;
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

// What one object pauses, remembers or runs again is known to all.
TEST_P(SharedObjects, ARegionOfTheProgramMayRunRegionsOfPlugins) {
  Plugin a(std::string(TIDEMARK_PLUGIN_DIR) + "/plugin_a_" + GetParam() + ".so");
  Plugin b(std::string(TIDEMARK_PLUGIN_DIR) + "/plugin_b_" + GetParam() + ".so");
  const torch::Tensor x = torch::rand({4}).requires_grad_();
  const torch::Tensor count = torch::zeros({1});
  int remembered = 0;
  int reruns = 0;
  std::vector<torch::Tensor> seen;
  const torch::Tensor loss = tidemark::checkpoint(
                                 [&](const torch::Tensor& t) {
                                   torch::Tensor y;
                                   torch::Tensor z;
                                   a.run_region(t.exp(), count, y, remembered, reruns);
                                   b.run_region(y * y, count, z, remembered, reruns);
                                   seen.push_back(z.detach().clone());
                                   return z.tanh();
                                 },
                                 x * 1)
                                 .sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  EXPECT_EQ(remembered, 2);
  EXPECT_EQ(reruns, 4);
  EXPECT_EQ(count.item<float>(), 2);
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_TRUE(torch::equal(seen[1], seen[0]));
  EXPECT_TRUE(torch::equal(seen[2], seen[0]));
}

TEST_P(SharedObjects, APluginMayBeClosedAfterItHasOpenedScopesAndRunRegions) {
  const torch::Tensor x = torch::rand({4}).requires_grad_();
  {
    Plugin plugin(std::string(TIDEMARK_PLUGIN_DIR) + "/plugin_a_" + GetParam() + ".so");
    torch::Tensor y;
    int ignored = 0;
    plugin.run_region(x, torch::zeros({1}), y, ignored, ignored);
    y.sum().backward();
    plugin.open_scope();
    save_one();
    plugin.close_scope();
    plugin.close();
  }
  x.mutable_grad().reset();
  tidemark::checkpoint([](const torch::Tensor& t) { return t.exp(); }, x).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), x.detach().exp()));
}

INSTANTIATE_TEST_SUITE_P(Visibility, SharedObjects, testing::Values("default", "hidden"));

}  // namespace
