#pragma once

// Holds a re-run of a region to what its forward did.

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/op_log.h>
#include <tidemark/detail/tensor_meta.h>

#include <cstddef>
#include <string>

namespace tidemark::detail {

/// Throws at the first thing that a re-run does and the forward has not done. `now` is the log of
/// the re-run so far.
class RerunCheck {
 public:
  static constexpr const char* kSameOps =
      "A region must run the same ops each time. Was a module switched between train() and eval(), "
      "a result memoised, or another branch taken? Wrap what must run once in tidemark::remember.";
  static constexpr const char* kSameTensors =
      "A region's re-run must read what the forward read: change it after backward(), or pass it "
      "as an argument.";

  RerunCheck(const OpLog& forward, const OpLog& now) : forward_(forward), now_(now) {}

  /// The next op is `op`.
  void expect(const OpMark& op) const {
    const std::size_t index = now_.ops.size();
    TORCH_CHECK(index < forward_.ops.size(), "its ", forward_.ops.size(), " ops were followed by ",
                op.name, " when it was re-run. ", kSameOps);
    const OpMark& before = forward_.ops[index];
    TORCH_CHECK(before.name == op.name, "op #", index, " was ", before.name,
                " in the forward and is ", op.name, " when re-run. ", kSameOps);
    TORCH_CHECK(before.arguments == op.arguments, "op #", index, ", ", op.name,
                ", has other sizes or numbers among its arguments when re-run. ", kSameOps);
  }

  /// That op works on the same tensors.
  void expect_operands(const OpMark& op) const {
    TORCH_CHECK(forward_.ops[now_.ops.size()].operands == op.operands, "op #", now_.ops.size(),
                ", ", op.name, ", works on other tensors when re-run than in the forward. ",
                kSameOps);
  }

  /// The next storage from outside is read as `read`.
  void expect(const ExternalRead& read) const {
    const std::size_t index = now_.reads.size();
    TORCH_CHECK(index < forward_.reads.size(), read.reader, " reads a tensor from outside (",
                describe(read.meta), ") when it is re-run that the forward did not read. ",
                kSameTensors);
    const ExternalRead& before = forward_.reads[index];
    if (before.identity != read.identity || before.storage.expired()) {
      // Another tensor than in the forward; or one that the region makes afresh each time, past the
      // ops, and whose values then tell.
      const bool values_matter = !before.overwritten || !read.overwritten;
      TORCH_CHECK(before.meta == read.meta && (!values_matter || same_values(before, read)),
                  "the tensor that ", before.reader, " reads from outside (", describe(before.meta),
                  ") was replaced between forward and backward. ", kSameTensors);
    } else if (!before.written) {
      expect_unchanged(before, read, [&] {
        return "the tensor that " + std::string(before.reader) + " reads from outside";
      });
    }
  }

  /// An argument tensor of the region is read as `read`.
  void expect_argument(const ExternalRead& read) const {
    for (const ExternalRead& before : forward_.arguments_read) {
      if (before.argument == read.argument) {
        expect_unchanged(before, read,
                         [&] { return "argument tensor #" + std::to_string(read.argument); });
        return;
      }
    }
  }

  /// The argument whose storage `tensor` has from the forward, or nullptr: a region that captures
  /// its argument, too, finds another tensor there when the argument was recomputed.
  [[nodiscard]] const ExternalRead* argument_of_forward(const at::Tensor& tensor) const {
    for (const ExternalRead& read : forward_.arguments_read) {
      if (read.identity == tensor.storage().unsafeGetStorageImpl()) {
        return &read;
      }
    }
    return nullptr;
  }

  /// `op` writes to the storage that was read as number `read`.
  void expect_write(std::size_t read, const at::Tensor& tensor, const char* op) const {
    TORCH_CHECK(forward_.reads[read].written, op, " writes to a tensor from outside (",
                describe(tensor), ") that the forward did not write to. ", kSameOps);
  }

  /// The next random numbers are those of `draw`.
  void expect(const Draw& draw) const {
    const std::size_t index = now_.draws.size();
    TORCH_CHECK(index < forward_.draws.size() && forward_.draws[index].numbers == draw.numbers,
                draw.op,
                " drew other random numbers than in the forward. Another thread drew from "
                "the same generator meanwhile: give it a torch::Generator of its own, or draw "
                "outside the region and pass the numbers in.");
  }

  /// Nothing follows.
  void expect_end() const {
    TORCH_CHECK(now_.ops.size() >= forward_.ops.size(), "it ran ", forward_.ops.size(),
                " ops in the forward and only ", now_.ops.size(), " when re-run. ", kSameOps);
  }

 private:
  static bool same_values(const ExternalRead& before, const ExternalRead& now) {
    return before.content != 0 && before.content == now.content;
  }

  template <class Name>
  static void expect_unchanged(const ExternalRead& before, const ExternalRead& now, Name&& name) {
    before.check.expect_unchanged([&] { return name() + ", " + describe(before.meta) + ","; });
    TORCH_CHECK(before.content == now.content, name(), " (", describe(before.meta),
                ") has other values than in the forward, though its version says nothing of a "
                "write: an optimizer's step, a write through data(), or a custom kernel. ",
                kSameTensors);
  }

  const OpLog& forward_;
  const OpLog& now_;
};

}  // namespace tidemark::detail
