#include "common/volume_dataset.h"

#include <torch/torch.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "common/args.h"
#include "common/read_volume.h"

namespace examples {

namespace {

constexpr int64_t kMostClasses = 32;
constexpr int64_t kFewestSlices = 16;

template <class T>
std::string text(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

torch::Tensor checked_labels(const torch::Tensor& stored) {
  torch::Tensor labels = stored.to(torch::kInt64);
  const torch::Tensor numbers = stored.to(torch::kFloat64);
  const torch::Tensor wrong = numbers.ne(labels.to(torch::kFloat64)) |
                              (labels.ne(kNoClass) & (labels.lt(0) | labels.ge(kMostClasses)));
  if (wrong.any().item<bool>()) {
    throw std::runtime_error(
        "the labels hold " + text(numbers.masked_select(wrong)[0].item<double>()) + " (in " +
        text(wrong.sum().item<int64_t>()) + " voxels); classes are whole numbers from 0 to " +
        text(kMostClasses - 1) + ", and " + text(kNoClass) + " where there is none");
  }
  if (labels.ne(kNoClass).logical_and(labels.ne(0)).sum().item<int64_t>() == 0) {
    throw std::runtime_error("the labels hold nothing but background (class 0)");
  }
  return labels;
}

// The first and last index along `dim` where `inside` has a voxel.
std::pair<int64_t, int64_t> extent(const torch::Tensor& inside, int64_t dim) {
  const torch::Tensor hits =
      inside.movedim(dim, 0).reshape({inside.size(dim), -1}).any(1).nonzero();
  return {hits.min().item<int64_t>(), hits.max().item<int64_t>()};
}

// Zero mean and unit deviation over the object in the training slices.
torch::Tensor normalised(const torch::Tensor& scan, const std::vector<Slices>& training,
                         double background) {
  std::vector<torch::Tensor> seen;
  for (const Slices& part : training) {
    const torch::Tensor slices = scan.slice(0, part.begin, part.end);
    seen.push_back(slices.masked_select(slices.gt(background)));
  }
  const torch::Tensor object = torch::cat(seen);
  const double deviation = object.numel() > 1 ? object.std().item<double>() : 0;
  if (!(deviation > 0)) {
    throw std::runtime_error("the scan is the same everywhere in the slices to learn from");
  }
  return (scan - object.mean()) / deviation;
}

}  // namespace

Dataset Dataset::from_volumes(const torch::Tensor& scan, const torch::Tensor& labels) {
  if (scan.sizes() != labels.sizes()) {
    throw std::runtime_error("the scan has the sizes " + text(scan.sizes()) +
                             ", but its labels have " + text(labels.sizes()));
  }
  Dataset data;
  data.scan = scan.to(torch::kFloat32);
  data.labels = checked_labels(labels);
  if (!data.scan.isfinite().all().item<bool>()) {
    throw std::runtime_error("the scan holds values that aren't finite");
  }
  const auto background = data.scan.min().item<double>();
  const torch::Tensor inside = data.scan.gt(background);
  if (!inside.any().item<bool>()) {
    throw std::runtime_error("the scan is the same everywhere");
  }
  for (int64_t dim = 0; dim < 3; ++dim) {
    const auto [first, last] = extent(inside, dim);
    data.scan = data.scan.slice(dim, first, last + 1);
    data.labels = data.labels.slice(dim, first, last + 1);
    if (dim == 0) {
      data.first_slice = first;
    }
  }

  // The slices beside the held-out ones look like them, so they are not learnt from either.
  const int64_t depth = data.scan.size(0);
  if (depth < kFewestSlices) {
    throw std::runtime_error("the scan has " + text(depth) + " slices that aren't empty; " +
                             text(kFewestSlices) +
                             " are needed to learn from some and test others");
  }
  const int64_t margin = std::max<int64_t>(1, depth / 24);
  data.held_out.begin = (depth - depth / 8) / 2;
  data.held_out.end = data.held_out.begin + depth / 8;
  data.training = {{0, data.held_out.begin - margin}, {data.held_out.end + margin, depth}};

  data.scan = normalised(data.scan, data.training, background).contiguous();
  data.labels = data.labels.contiguous();
  const auto highest = data.labels.masked_fill(data.labels.eq(kNoClass), 0).max().item<int64_t>();
  for (int64_t i = 0; i <= std::max<int64_t>(highest, 1); ++i) {
    data.class_names.push_back("class " + std::to_string(i));
  }
  return data;
}

Dataset Dataset::load(const std::string& volume, const std::string& labels) {
  if (!volume.empty()) {
    return from_volumes(read_volume(volume), read_volume(labels));
  }
  const std::string folder = std::string(TIDEMARK_EXAMPLES_DATA_DIR) + "/itk-t1/";
  Dataset head = from_volumes(read_volume(folder + "scan.pt"), read_volume(folder + "labels.pt"));
  head.class_names = {"outside", "CSF", "grey matter", "white matter"};
  return head;
}

Dataset Dataset::load(const std::string& both) {
  const size_t comma = both.find(',');
  const std::string volume = both.substr(0, comma);
  const std::string labels = comma == std::string::npos ? "" : both.substr(comma + 1);
  if (volume.empty() != labels.empty() || labels.find(',') != std::string::npos) {
    throw UsageError("--data is '" + both + "'; it must be two files, SCAN,LABELS");
  }
  return load(volume, labels);
}

PatchSampler::PatchSampler(const Dataset& data, int64_t patch, int64_t batch)
    : scan_(data.scan), labels_(data.labels), patch_(patch), batch_(batch) {
  std::vector<torch::Tensor> lowest, highest, object;
  int64_t deepest = 0;
  for (const Slices& part : data.training) {
    deepest = std::max(deepest, part.count());
    if (patch > part.count()) {
      continue;
    }
    const torch::Tensor inside = labels_.slice(0, part.begin, part.end);
    torch::Tensor position = inside.ne(0).logical_and(inside.ne(kNoClass)).nonzero();
    position.select(1, 0) += part.begin;
    const auto number = static_cast<int64_t>(lowest.size());
    object.push_back(torch::cat({torch::full({position.size(0), 1}, number), position}, 1));
    lowest.push_back(torch::tensor({part.begin, int64_t{0}, int64_t{0}}));
    highest.push_back(
        torch::tensor({part.end - patch, scan_.size(1) - patch, scan_.size(2) - patch}));
  }
  if (lowest.empty() || patch > scan_.size(1) || patch > scan_.size(2)) {
    throw UsageError("--patch is " + text(patch) + ", but the slices to learn from are at most " +
                     text(deepest) + " x " + text(scan_.size(1)) + " x " + text(scan_.size(2)) +
                     " voxels without empty borders");
  }
  lowest_ = torch::stack(lowest);
  highest_ = torch::stack(highest);
  corners_ = (highest_ - lowest_ + 1).prod(1).cumsum(0).to(torch::kFloat64);
  object_ = torch::cat(object);
  if (object_.size(0) == 0) {
    throw std::runtime_error("the slices to learn from hold nothing but background (class 0)");
  }
}

torch::Tensor PatchSampler::corner() const {
  if (torch::rand({}).item<double>() < 0.5) {
    const torch::Tensor voxel =
        object_[torch::randint(object_.size(0), {}, torch::kInt64).item<int64_t>()];
    const auto part = voxel[0].item<int64_t>();
    const torch::Tensor corner = voxel.slice(0, 1) - torch::randint(patch_, {3}, torch::kInt64);
    return torch::minimum(torch::maximum(corner, lowest_[part]), highest_[part]);
  }
  const double pick = torch::rand({}, torch::kFloat64).item<double>() * corners_[-1].item<double>();
  const auto part = corners_.le(pick).sum().item<int64_t>();
  const torch::Tensor span = highest_[part] - lowest_[part] + 1;
  return lowest_[part] + (torch::rand({3}, torch::kFloat64) * span).floor().to(torch::kInt64);
}

Batch PatchSampler::next() const {
  std::vector<torch::Tensor> scans, labels;
  for (int64_t i = 0; i < batch_; ++i) {
    torch::Tensor scan = scan_;
    torch::Tensor label = labels_;
    const torch::Tensor start = corner();
    for (int64_t dim = 0; dim < 3; ++dim) {
      const auto first = start[dim].item<int64_t>();
      scan = scan.slice(dim, first, first + patch_);
      label = label.slice(dim, first, first + patch_);
    }
    scans.push_back(scan.unsqueeze(0));
    labels.push_back(label);
  }
  return {torch::stack(scans), torch::stack(labels)};
}

}  // namespace examples
