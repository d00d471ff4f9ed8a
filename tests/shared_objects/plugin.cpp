// A shared object that uses tidemark on its own, as a user's plugin would.

#include <tidemark/checkpoint.h>
#include <tidemark/detail/saved_tensor_hooks.h>
#include <tidemark/remember.h>

#include <memory>

namespace {

using tidemark::detail::HookMaker;
using tidemark::detail::KeptTensor;
using tidemark::detail::SavedTensorHooksScope;

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

CountingMaker maker;
std::unique_ptr<SavedTensorHooksScope> scope;

}  // namespace

#define PLUGIN_API extern "C" __attribute__((visibility("default")))

PLUGIN_API void open_scope() { scope = std::make_unique<SavedTensorHooksScope>(maker); }
PLUGIN_API void close_scope() { scope.reset(); }
PLUGIN_API int made() { return maker.made; }

/// x -> sin(x) * noise, as a region of its own that writes to `count`; counts what it remembers,
/// and what it does while some region is re-run.
PLUGIN_API void run_region(const at::Tensor* x, const at::Tensor* count, at::Tensor* y,
                           int* remembered, int* reruns) {
  *reruns += tidemark::recomputing() ? 1 : 0;
  *y = tidemark::checkpoint(
      [count = *count, remembered](const at::Tensor& a) {
        count.add_(1);
        const at::Tensor noise = tidemark::remember([&] {
          ++*remembered;
          return at::rand(a.sizes());
        });
        return a.sin() * noise;
      },
      *x);
}
