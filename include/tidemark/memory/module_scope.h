#pragma once

/// \file
/// Names a stretch of a forward for reports, where the parameters that its ops read don't.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidemark {

/// What its thread does while it is open belongs to a module of that name in a MemoryReport, but
/// for ops that read parameters of a registered module: those show which one they belong to. A
/// scope inside another appends to its name.
///
///     struct GroupingImpl : torch::nn::Module {
///       torch::Tensor forward(torch::Tensor points) {
///         const tidemark::ModuleScope scope("ball_query");
///         return points.index_select(0, knn(points, 16).flatten());
///       }
///     };
///
/// Costs little when nobody records. Scopes of a thread close in reverse order.
class ModuleScope {
 public:
  /// `name` as in named_modules(), from the model down: "encoder.ball_query"; or, inside another
  /// scope, from there.
  explicit ModuleScope(std::string_view name) {
    std::string& path = current();
    before_ = path.size();
    if (!path.empty() && !name.empty()) {
      path += '.';
    }
    path += name;
  }
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;
  ~ModuleScope() { current().resize(before_); }

  /// The name of the open scopes of this thread; empty if there is none.
  static const std::string& path() { return current(); }

 private:
  static std::string& current() {
    static thread_local std::string path;
    return path;
  }

  std::string::size_type before_;
};

}  // namespace tidemark
