// Which module a tensor belongs to, by the memory that it is.

#include <gtest/gtest.h>
#include <tidemark/detail/module_names.h>
#include <torch/torch.h>

#include <string>

namespace {

using tidemark::detail::common_parent;
using tidemark::detail::ModuleNames;
using tidemark::detail::TensorName;
using torch::Tensor;

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    weight = register_parameter("weight", torch::randn({2, 3}));
    mean = register_buffer("mean", torch::zeros({3}));
  }
  Tensor weight;
  Tensor mean;
};
TORCH_MODULE(Layer);

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    register_module("first", first);
    register_module("second", second);
    scale = register_parameter("scale", torch::ones({2}));
  }
  Layer first;
  Layer second;
  Tensor scale;
};
TORCH_MODULE(Model);

/// The name that is found, or "-".
std::string name_of(ModuleNames& names, const Tensor& tensor) {
  const TensorName* name = names.find(tensor);
  return name != nullptr ? name->name : "-";
}

TEST(CommonParent, IsTheNearestModuleThatBothAreIn) {
  EXPECT_EQ(common_parent("net.a.conv1", "net.a.conv2"), "net.a");
  EXPECT_EQ(common_parent("net.a.conv1", "net.b"), "net");
  EXPECT_EQ(common_parent("net.a", "net.a.conv"), "net.a");
  EXPECT_EQ(common_parent("net.a.conv", "net.a"), "net.a");
  EXPECT_EQ(common_parent("net.a", "net.a"), "net.a");
  EXPECT_EQ(common_parent("net.a", "net.ab"), "net");
  EXPECT_EQ(common_parent("conv1", "conv2"), "");
  EXPECT_EQ(common_parent("", "conv"), "");
  EXPECT_EQ(common_parent("conv", ""), "");
}

TEST(ModuleNames, FindsParametersAndBuffersOfEveryLevel) {
  const Model model;
  ModuleNames names(*model);
  EXPECT_EQ(name_of(names, model->scale), "scale");
  EXPECT_EQ(name_of(names, model->second->weight), "second.weight");
  EXPECT_EQ(name_of(names, model->first->mean), "first.mean");
  EXPECT_EQ(names.find(model->scale)->module(), "");
  EXPECT_EQ(names.find(model->second->weight)->module(), "second");
  EXPECT_TRUE(names.find(model->second->weight)->parameter);
  EXPECT_FALSE(names.find(model->first->mean)->parameter);
  EXPECT_EQ(name_of(names, torch::zeros({2, 3})), "-");
  EXPECT_EQ(name_of(names, Tensor()), "-");
}

TEST(ModuleNames, FindsViewsOfAParameter) {
  const Model model;
  ModuleNames names(*model);
  EXPECT_EQ(name_of(names, model->first->weight.t()), "first.weight");
  EXPECT_EQ(name_of(names, model->first->weight.chunk(2)[1]), "first.weight");
  EXPECT_EQ(name_of(names, model->first->weight.data()), "first.weight");
}

TEST(ModuleNames, TellsParametersOfOneStorageApart) {
  const Model model;
  const Tensor flat = torch::zeros({20});
  model->first->weight.set_data(flat.narrow(0, 0, 6).view({2, 3}));
  model->second->weight.set_data(flat.narrow(0, 6, 6).view({2, 3}));
  ModuleNames names(*model);
  EXPECT_EQ(name_of(names, model->first->weight), "first.weight");
  EXPECT_EQ(name_of(names, model->second->weight), "second.weight");
  EXPECT_EQ(name_of(names, flat.narrow(0, 5, 1)), "first.weight");
  EXPECT_EQ(name_of(names, flat.narrow(0, 12, 8)), "-");
}

TEST(ModuleNames, LooksAgainForALeafThatItDoesNotKnow) {
  const Model model;
  ModuleNames names(*model);
  model->first->weight.set_data(torch::zeros({5, 3}));
  EXPECT_EQ(name_of(names, model->first->weight), "first.weight");
}

TEST(ModuleNames, RemembersThatALeafIsNotTheModels) {
  Model model;
  ModuleNames names(*model);
  const Tensor pose = torch::zeros({6}).requires_grad_();
  EXPECT_EQ(name_of(names, pose), "-");
  model->register_parameter("pose", pose);
  EXPECT_EQ(name_of(names, pose), "-");
  names.refresh();
  EXPECT_EQ(name_of(names, pose), "pose");
}

TEST(ModuleNames, DoesNotTakeNewMemoryForAParameterThatWasThere) {
  const Model model;
  ModuleNames names(*model);
  for (int i = 0; i < 100; ++i) {
    model->first->weight.set_data(torch::zeros({2, 3}));
    const Tensor other = torch::zeros({2, 3});  // likely where the old one was
    EXPECT_EQ(name_of(names, other), "-");
    EXPECT_EQ(name_of(names, model->first->weight), "first.weight");
  }
}

TEST(ModuleNames, GivesASharedTensorItsFirstName) {
  const Model model;
  model->second->weight.set_data(model->first->weight);
  ModuleNames names(*model);
  EXPECT_EQ(name_of(names, model->second->weight), "first.weight");
}

}  // namespace
