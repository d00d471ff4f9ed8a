#pragma once

// The dtypes that ops return under autocast, compared with what a Python run has recorded
// (record_dtypes.py, which has the same ops by the same names).

#include <gtest/gtest.h>
#include <tidemark/amp_scope.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace tidemark::tests {

/// Data in the dtype of a row of the table; weights and "other" in float32.
struct OpInputs {
  at::Device device;
  at::ScalarType dtype;

  [[nodiscard]] at::Tensor data(at::IntArrayRef sizes) const {
    return torch::full(sizes, 0.5, torch::dtype(dtype).device(device));
  }
  [[nodiscard]] at::Tensor other(at::IntArrayRef sizes) const {
    return torch::full(sizes, 0.5, torch::device(device));
  }
  [[nodiscard]] at::Tensor weight(at::IntArrayRef sizes) const {
    return other(sizes).requires_grad_();
  }
  [[nodiscard]] at::Tensor index(at::IntArrayRef sizes) const {
    return torch::zeros(sizes, torch::dtype(torch::kLong).device(device));
  }
  [[nodiscard]] at::Tensor volume() const { return data({1, 2, 4, 4, 4}); }
  [[nodiscard]] at::Tensor matrix() const { return data({3, 3}); }
};

using Op = std::function<at::Tensor(const OpInputs&)>;

inline std::map<std::string, Op> recorded_ops() {
  namespace F = torch::nn::functional;
  using I = OpInputs;
  const auto resize = [](const I& i, const F::InterpolateFuncOptions::mode_t& mode) {
    auto options =
        F::InterpolateFuncOptions().scale_factor(std::vector<double>{2, 2, 2}).mode(mode);
    if (std::holds_alternative<torch::enumtype::kTrilinear>(mode)) {
      options.align_corners(false);
    }
    return F::interpolate(i.volume(), options);
  };
  const auto sample = [](const at::Tensor& input, const at::Tensor& grid) {
    return F::grid_sample(input, grid, F::GridSampleFuncOptions().align_corners(false));
  };
  const auto pad = [](const I& i, const F::PadFuncOptions::mode_t& mode) {
    return F::pad(i.volume(), F::PadFuncOptions({1, 1, 1, 1, 1, 1}).mode(mode));
  };
  return {
      // matrix products and convolutions
      {"conv1d",
       [](const I& i) {
         return torch::conv1d(i.data({1, 2, 4}), i.weight({2, 2, 3}), i.weight({2}));
       }},
      {"conv2d",
       [](const I& i) {
         return torch::conv2d(i.data({1, 2, 4, 4}), i.weight({2, 2, 3, 3}), i.weight({2}));
       }},
      {"conv3d",
       [](const I& i) {
         return torch::conv3d(i.volume(), i.weight({2, 2, 3, 3, 3}), i.weight({2}));
       }},
      {"conv3d_same",
       [](const I& i) {
         return F::conv3d(i.volume(), i.weight({2, 2, 3, 3, 3}),
                          F::Conv3dFuncOptions().padding(torch::kSame));
       }},
      {"conv_transpose3d",
       [](const I& i) {
         return torch::conv_transpose3d(i.volume(), i.weight({2, 2, 2, 2, 2}));
       }},
      {"linear",
       [](const I& i) {
         return F::linear(i.matrix(), i.weight({3, 3}), i.weight({3}));
       }},
      {"linear_3d",
       [](const I& i) {
         return F::linear(i.data({2, 3, 3}), i.weight({3, 3}), i.weight({3}));
       }},
      {"mm",
       [](const I& i) {
         return i.matrix().mm(i.weight({3, 3}));
       }},
      {"matmul",
       [](const I& i) {
         return i.matrix().matmul(i.weight({3, 3}));
       }},
      {"addmm",
       [](const I& i) {
         return torch::addmm(i.weight({3}), i.matrix(), i.weight({3, 3}));
       }},
      {"bmm",
       [](const I& i) {
         return i.data({2, 3, 3}).bmm(i.other({2, 3, 3}));
       }},
      {"baddbmm",
       [](const I& i) {
         return torch::baddbmm(i.other({2, 3, 3}), i.data({2, 3, 3}), i.other({2, 3, 3}));
       }},
      {"einsum",
       [](const I& i) {
         return torch::einsum("bij,bjk->bik", {i.data({2, 3, 3}), i.other({2, 3, 3})});
       }},
      {"sdpa",
       [](const I& i) {
         return torch::scaled_dot_product_attention(i.data({1, 1, 2, 8}), i.data({1, 1, 2, 8}),
                                                    i.other({1, 1, 2, 8}));
       }},
      {"prelu", [](const I& i) { return torch::prelu(i.volume(), i.weight({2})); }},
      {"gru",
       [](const I& i) {
         torch::nn::GRU gru(3, 3);
         gru->to(i.device);
         return std::get<0>(gru(i.data({2, 1, 3})));
       }},
      // norms
      {"batch_norm",
       [](const I& i) {
         return F::batch_norm(
             i.volume(), i.other({2}), i.other({2}),
             F::BatchNormFuncOptions().weight(i.weight({2})).bias(i.weight({2})).training(true));
       }},
      {"instance_norm",
       [](const I& i) {
         return F::instance_norm(
             i.volume(), F::InstanceNormFuncOptions().weight(i.weight({2})).bias(i.weight({2})));
       }},
      {"group_norm",
       [](const I& i) {
         return F::group_norm(i.volume(),
                              F::GroupNormFuncOptions(1).weight(i.weight({2})).bias(i.weight({2})));
       }},
      {"layer_norm",
       [](const I& i) {
         return F::layer_norm(
             i.matrix(), F::LayerNormFuncOptions({3}).weight(i.weight({3})).bias(i.weight({3})));
       }},
      {"rms_norm", [](const I& i) { return torch::rms_norm(i.matrix(), {3}, i.weight({3})); }},
      {"normalize", [](const I& i) { return F::normalize(i.matrix()); }},
      // activations
      {"relu", [](const I& i) { return i.volume().relu(); }},
      {"gelu", [](const I& i) { return torch::gelu(i.volume()); }},
      {"silu", [](const I& i) { return torch::silu(i.volume()); }},
      {"sigmoid", [](const I& i) { return i.volume().sigmoid(); }},
      {"tanh", [](const I& i) { return i.volume().tanh(); }},
      {"softplus", [](const I& i) { return F::softplus(i.volume()); }},
      {"softmax", [](const I& i) { return i.matrix().softmax(1); }},
      {"log_softmax", [](const I& i) { return i.matrix().log_softmax(1); }},
      {"logsumexp", [](const I& i) { return i.matrix().logsumexp(1); }},
      {"dropout", [](const I& i) { return F::dropout(i.volume()); }},
      // pooling, resampling, padding
      {"max_pool3d", [](const I& i) { return torch::max_pool3d(i.volume(), 2); }},
      {"avg_pool3d", [](const I& i) { return torch::avg_pool3d(i.volume(), 2); }},
      {"adaptive_max_pool3d",
       [](const I& i) {
         return std::get<0>(torch::adaptive_max_pool3d(i.volume(), {2, 2, 2}));
       }},
      {"adaptive_avg_pool3d",
       [](const I& i) {
         return torch::adaptive_avg_pool3d(i.volume(), {2, 2, 2});
       }},
      {"upsample_nearest3d", [=](const I& i) { return resize(i, torch::kNearest); }},
      {"upsample_trilinear3d", [=](const I& i) { return resize(i, torch::kTrilinear); }},
      {"grid_sample_2d",
       [=](const I& i) {
         return sample(i.data({1, 1, 2, 2}), i.other({1, 1, 1, 2}));
       }},
      {"grid_sample_3d",
       [=](const I& i) {
         return sample(i.volume(), i.other({1, 1, 1, 1, 3}));
       }},
      {"affine_grid",
       [](const I& i) {
         return F::affine_grid(i.data({1, 3, 4}), {1, 1, 2, 2, 2}, false);
       }},
      {"replication_pad3d", [=](const I& i) { return pad(i, torch::kReplicate); }},
      {"reflection_pad3d", [=](const I& i) { return pad(i, torch::kReflect); }},
      {"constant_pad", [=](const I& i) { return pad(i, torch::kConstant); }},
      // elementwise
      {"exp", [](const I& i) { return i.matrix().exp(); }},
      {"log", [](const I& i) { return i.matrix().log(); }},
      {"pow", [](const I& i) { return i.matrix().pow(2); }},
      {"sqrt", [](const I& i) { return i.matrix().sqrt(); }},
      {"rsqrt", [](const I& i) { return i.matrix().rsqrt(); }},
      {"reciprocal", [](const I& i) { return i.matrix().reciprocal(); }},
      {"sin", [](const I& i) { return i.matrix().sin(); }},
      {"acos", [](const I& i) { return i.matrix().acos(); }},
      {"atan2",
       [](const I& i) {
         return torch::atan2(i.matrix(), i.other({3, 3}));
       }},
      {"mul_other",
       [](const I& i) {
         return i.matrix() * i.other({3, 3});
       }},
      {"addcmul", [](const I& i) { return torch::addcmul(i.matrix(), i.matrix(), i.matrix()); }},
      // reductions, distances
      {"sum", [](const I& i) { return i.matrix().sum(); }},
      {"sum_dim", [](const I& i) { return i.matrix().sum(0); }},
      {"mean", [](const I& i) { return i.matrix().mean(); }},
      {"var", [](const I& i) { return i.matrix().var(0); }},
      {"prod", [](const I& i) { return i.matrix().prod(); }},
      {"cumsum", [](const I& i) { return i.matrix().cumsum(0); }},
      {"cumprod", [](const I& i) { return i.matrix().cumprod(0); }},
      {"norm", [](const I& i) { return i.matrix().norm(); }},
      {"vector_norm",
       [](const I& i) { return torch::linalg_vector_norm(i.matrix(), 2, at::IntArrayRef{1}); }},
      {"max", [](const I& i) { return std::get<0>(i.matrix().max(0)); }},
      {"topk", [](const I& i) { return std::get<0>(i.matrix().topk(2)); }},
      {"cdist", [](const I& i) { return torch::cdist(i.matrix(), i.matrix()); }},
      {"cosine_similarity",
       [](const I& i) { return F::cosine_similarity(i.matrix(), i.matrix()); }},
      {"cross",
       [](const I& i) {
         return torch::cross(i.matrix(), i.other({3, 3}), 1);
       }},
      // losses
      {"mse_loss",
       [](const I& i) {
         return F::mse_loss(i.matrix(), i.other({3, 3}));
       }},
      {"l1_loss",
       [](const I& i) {
         return F::l1_loss(i.matrix(), i.other({3, 3}));
       }},
      {"smooth_l1_loss",
       [](const I& i) {
         return F::smooth_l1_loss(i.matrix(), i.other({3, 3}));
       }},
      {"huber_loss",
       [](const I& i) {
         return F::huber_loss(i.matrix(), i.other({3, 3}));
       }},
      {"kl_div",
       [](const I& i) {
         return F::kl_div(i.matrix(), i.other({3, 3}),
                          F::KLDivFuncOptions().reduction(torch::kBatchMean));
       }},
      {"nll_loss", [](const I& i) { return F::nll_loss(i.matrix(), i.index({3})); }},
      {"cross_entropy", [](const I& i) { return F::cross_entropy(i.matrix(), i.index({3})); }},
      {"binary_cross_entropy",
       [](const I& i) {
         return F::binary_cross_entropy(i.matrix(), i.other({3, 3}));
       }},
      {"bce_with_logits",
       [](const I& i) {
         return F::binary_cross_entropy_with_logits(i.matrix(), i.other({3, 3}));
       }},
      // joining and indexing
      {"cat",
       [](const I& i) {
         return torch::cat({i.matrix(), i.matrix()});
       }},
      {"cat_other",
       [](const I& i) {
         return torch::cat({i.matrix(), i.other({3, 3})});
       }},
      {"stack_other",
       [](const I& i) {
         return torch::stack({i.matrix(), i.other({3, 3})});
       }},
      {"where_other",
       [](const I& i) {
         return torch::where(i.matrix() > 0, i.matrix(), i.other({3, 3}));
       }},
      {"masked_fill", [](const I& i) { return i.matrix().masked_fill(i.matrix() > 0, 0.0); }},
      {"index_select", [](const I& i) { return i.matrix().index_select(0, i.index({2})); }},
      {"gather",
       [](const I& i) {
         return i.matrix().gather(0, i.index({2, 3}));
       }},
      {"index_add_other",
       [](const I& i) {
         return i.other({3, 3}).index_add(0, i.index({3}), i.matrix());
       }},
      {"scatter_add_other",
       [](const I& i) {
         return i.other({3, 3}).scatter_add(0, i.index({3, 3}), i.matrix());
       }},
      {"scatter_other",
       [](const I& i) {
         return i.other({3, 3}).scatter(0, i.index({3, 3}), i.matrix());
       }},
      {"scatter_reduce_other",
       [](const I& i) {
         return i.other({3, 3}).scatter_reduce(0, i.index({3, 3}), i.matrix(), "amax");
       }},
      {"index_put_other",
       [](const I& i) {
         return i.other({3, 3}).index_put({i.index({3})}, i.matrix());
       }},
      {"index_copy_other",
       [](const I& i) {
         return i.other({3, 3}).index_copy(0, i.index({1}), i.data({1, 3}));
       }},
      {"embedding",
       [](const I& i) {
         return F::embedding(i.index({2}), i.weight({3, 3}));
       }},
      {"inverse",
       [](const I& i) {
         return torch::linalg_inv(i.matrix() + torch::eye(3, torch::dtype(i.dtype)));
       }},
      {"det", [](const I& i) { return torch::linalg_det(i.matrix()); }},
      {"fftn", [](const I& i) { return torch::fft::fftn(i.matrix()); }},
  };
}

/// As Python spells it.
inline std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    case at::kFloat:
      return "float32";
    default: {
      std::string name = c10::toString(dtype);
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      return name == "complexfloat" ? "complex64" : name;
    }
  }
}

/// Runs every op of a recorded table on `device` and compares.
inline void expect_dtypes_as_recorded(at::Device device, const std::string& path) {
  std::ifstream file(path);
  std::string line;
  ASSERT_TRUE(std::getline(file, line)) << path;
  const auto recorded_with = line.substr(line.rfind(' ') + 1);
  const std::string release =
      std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + ".";
  const std::string hint =
      recorded_with.rfind(release, 0) == 0
          ? "the same release as this one: not the list of an op but a kernel or tidemark changed"
          : "this is " TORCH_VERSION
            ": the release may have moved the op to another of autocast's lists";

  const auto ops = recorded_ops();
  int rows = 0;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string name;
    std::string scope;
    std::string data;
    std::string expected;
    std::getline(fields, name, ',');
    std::getline(fields, scope, ',');
    std::getline(fields, data, ',');
    std::getline(fields, expected);
    ASSERT_EQ(ops.count(name), 1U) << name << " of " << path << " is not in op_dtypes.h";
    const auto low = scope == "bfloat16" ? at::kBFloat16 : at::kHalf;
    std::string result;
    try {
      const AmpScope amp(device, low);
      const auto dtype = data == "float32" ? at::kFloat : low;
      result = dtype_name(ops.at(name)({device, dtype}).scalar_type());
    } catch (const std::exception&) {
      result = "error";
    }
    EXPECT_EQ(result, expected) << name << " of " << data << " under AmpScope(" << device << ", "
                                << scope << "); recorded with torch " << recorded_with << ", "
                                << hint;
    ++rows;
  }
  EXPECT_GT(rows, 300);
}

}  // namespace tidemark::tests
