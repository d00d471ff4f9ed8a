#pragma once

// The CPU ops that draw random numbers.

#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tidemark::tests {

/// Name and op; an op takes a 4x4 float tensor with values between 0 and 1 and returns one. Each
/// draws from the default generator.
inline std::vector<std::pair<std::string, std::function<at::Tensor(const at::Tensor&)>>>
random_ops() {
  using at::Tensor;
  return {
      {"dropout", [](const Tensor& a) { return torch::dropout(a, 0.5, true); }},
      {"dropout_",
       [](const Tensor& a) {
         Tensor b = a * 1;
         return torch::dropout_(b, 0.5, true);
       }},
      {"native_dropout",
       [](const Tensor& a) { return std::get<0>(torch::native_dropout(a, 0.5, true)); }},
      {"alpha_dropout", [](const Tensor& a) { return torch::alpha_dropout(a, 0.5, true); }},
      {"feature_dropout", [](const Tensor& a) { return torch::feature_dropout(a, 0.5, true); }},
      {"feature_alpha_dropout",
       [](const Tensor& a) { return torch::feature_alpha_dropout(a, 0.5, true); }},
      {"rrelu", [](const Tensor& a) { return torch::rrelu(a - 0.5, 0.1, 0.9, true); }},
      {"bernoulli", [](const Tensor& a) { return torch::bernoulli(a.detach()); }},
      {"bernoulli with p", [](const Tensor& a) { return torch::bernoulli(a.detach(), 0.5); }},
      {"bernoulli_", [](const Tensor& a) { return torch::empty_like(a).bernoulli_(0.5); }},
      {"bernoulli_ with a tensor",
       [](const Tensor& a) { return torch::empty_like(a).bernoulli_(a.detach()); }},
      {"rand",
       [](const Tensor&) {
         return torch::rand({4, 4});
       }},
      {"rand_like", [](const Tensor& a) { return torch::rand_like(a); }},
      {"randn",
       [](const Tensor&) {
         return torch::randn({4, 4});
       }},
      {"randn_like", [](const Tensor& a) { return torch::randn_like(a); }},
      {"randint",
       [](const Tensor&) {
         return torch::randint(1, 9, {4, 4}).to(torch::kFloat);
       }},
      {"randint_like", [](const Tensor& a) { return torch::randint_like(a, 9); }},
      {"randperm", [](const Tensor& a) { return a.index_select(0, torch::randperm(4)); }},
      {"normal", [](const Tensor& a) { return at::normal(a.detach(), 0.5); }},
      {"normal of two tensors", [](const Tensor& a) { return at::normal(a.detach(), a.detach()); }},
      {"normal_", [](const Tensor& a) { return torch::empty_like(a).normal_(); }},
      {"uniform_", [](const Tensor& a) { return torch::empty_like(a).uniform_(); }},
      {"random_", [](const Tensor& a) { return torch::empty_like(a).random_(0, 5); }},
      {"exponential_", [](const Tensor& a) { return torch::empty_like(a).exponential_(); }},
      {"cauchy_", [](const Tensor& a) { return torch::empty_like(a).cauchy_().tanh(); }},
      {"log_normal_", [](const Tensor& a) { return torch::empty_like(a).log_normal_().tanh(); }},
      {"geometric_", [](const Tensor& a) { return torch::empty_like(a).geometric_(0.5); }},
      {"multinomial",
       [](const Tensor& a) {
         return a.index_select(0, torch::multinomial(torch::ones({4}), 3, true)).sum() * a;
       }},
      {"poisson", [](const Tensor& a) { return torch::poisson(a.detach() * 4); }},
      {"binomial",
       [](const Tensor& a) {
         return torch::binomial(torch::full({4, 4}, 9.0), a.detach());
       }},
      {"standard_gamma", [](const Tensor& a) { return torch::_standard_gamma(a + 1); }},
      {"dirichlet", [](const Tensor& a) { return torch::_sample_dirichlet(a.detach() + 1); }},
      {"gumbel",
       [](const Tensor& a) { return (a - torch::empty_like(a).exponential_().log()).softmax(1); }},
      {"attention with dropout",
       [](const Tensor& a) {
         const Tensor q = a.view({1, 1, 4, 4});
         return torch::scaled_dot_product_attention(q, q, q, {}, 0.5).view({4, 4});
       }},
      {"lstm with dropout",
       [](const Tensor& a) {
         const std::vector<Tensor> weights{torch::full({16, 4}, 0.1), torch::full({16, 4}, 0.2),
                                           torch::full({16, 4}, 0.3), torch::full({16, 4}, 0.1)};
         const Tensor state = torch::zeros({2, 1, 4});
         return std::get<0>(torch::lstm(a.view({4, 1, 4}), {state, state}, weights, false, 2, 0.5,
                                        true, false, false))
             .view({4, 4});
       }},
      {"fractional_max_pool",
       [](const Tensor& a) {
         const Tensor samples = torch::rand({1, 1, 2});
         return std::get<0>(
                    torch::fractional_max_pool2d(a.view({1, 1, 4, 4}), {2, 2}, {2, 2}, samples))
                    .sum() *
                a;
       }},
  };
}

}  // namespace tidemark::tests
