#include "nerf/density.h"

#include <tidemark/amp_function.h>
#include <torch/torch.h>

namespace nerf {

namespace {

constexpr double kMostRaw = 15;

struct TruncatedExp : torch::autograd::Function<TruncatedExp> {
  // By value, since AmpForward casts: bfloat16 has two decimal digits.
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor raw) {
    const tidemark::AmpForward amp(context, torch::kFloat, raw);
    context->save_for_backward({raw});
    return raw.exp();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const tidemark::AmpBackward amp(context);
    const torch::Tensor raw = context->get_saved_variables()[0];
    return {grads[0] * raw.clamp_max(kMostRaw).exp()};
  }
};

}  // namespace

torch::Tensor truncated_exp(const torch::Tensor& raw) { return TruncatedExp::apply(raw); }

}  // namespace nerf
