#pragma once

/// \file
/// What a NumericsWatch has found.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace tidemark {

/// Where the first NaN or inf appeared.
struct Nonfinite {
  /// What appeared first. A result with both is reported as kNan.
  enum class Kind {
    kNan,  ///< A NaN, which the op made or which came in from outside.
    kInf,  ///< An inf of either sign, which the op made.
  };
  /// The part of the step in which it appeared.
  enum class Phase {
    kForward,   ///< Outside of backward; a step of the optimizer, too.
    kBackward,  ///< In a node of the autograd graph, or in a hook between two.
    kRerun,     ///< When a checkpointed region was run again for backward.
  };

  Kind kind = Kind::kNan;         ///< NaN, or inf and no NaN.
  Phase phase = Phase::kForward;  ///< Where `op` ran.
  std::string op;                 ///< The outermost op, as "aten::log".
  /// The module that the op (in backward: the op of the forward that the node belongs to) ran in,
  /// as "net.block.conv". It is the module whose parameters or buffers the op reads; for an op that
  /// reads none the nearest common parent of `previous` and `next`. Empty: the model itself,
  /// outside of it, or unknown.
  std::string module;
  std::string previous;    ///< The module named last before an op that reads no parameter.
  std::string next;        ///< The module named first after it.
  std::string node;        ///< In backward: "SqrtBackward0"; empty between two nodes.
  std::string forward_op;  ///< In backward: the outermost op that made the node.
  std::string result;      ///< "output 0", or the argument that the op wrote: "argument 0".
  at::ScalarType dtype = at::kFloat;  ///< Of that result, as the following.
  std::vector<int64_t> shape;         ///< Of the result, of a sparse tensor as if it were dense.
  c10::Device device = c10::kCPU;     ///< That holds the result.
  int64_t nan_count = 0;              ///< Of the values looked at, those that are NaN.
  int64_t inf_count = 0;              ///< Of the values looked at, those that are inf or -inf.
  int64_t numel = 0;  ///< Values looked at; of a sparse tensor those that it stores.
  /// Where the NaN came from when the op did not make it: "argument 0, the parameter
  /// 'net.conv.weight' (Float [2, 2] on cpu)". Empty if the op made it.
  std::string came_in;

  /// One sentence, as expect_finite() throws it, without a line break:
  /// "NaN first appeared in aten::log in the forward, in module 'net.block': output 0 (...) has
  /// ...".
  friend std::ostream& operator<<(std::ostream& out, const Nonfinite& found) {
    static const char* const kPhases[] = {"the forward", "backward", "a region's re-run"};
    out << (found.kind == Kind::kNan ? "NaN" : "inf");
    if (found.came_in.empty()) {
      out << " first appeared in ";
    } else {
      out << " came in from outside with " << found.came_in << ", into ";
    }
    out << found.op << " in " << kPhases[static_cast<std::size_t>(found.phase)];
    if (!found.node.empty()) {
      out << ", node " << found.node;
    }
    if (!found.forward_op.empty()) {
      out << " of " << found.forward_op;
    }
    if (!found.module.empty()) {
      out << ", in module '" << found.module << '\'';
    }
    if (!found.previous.empty()) {
      out << ", after '" << found.previous << '\'';
    }
    if (!found.next.empty()) {
      out << ", before '" << found.next << '\'';
    }
    return out << ": " << found.result << " (" << c10::toString(found.dtype) << ' '
               << c10::IntArrayRef(found.shape) << " on " << found.device << ") has "
               << found.nan_count << " NaN and " << found.inf_count << " inf in " << found.numel
               << (found.numel == 1 ? " value" : " values");
  }
};

}  // namespace tidemark
