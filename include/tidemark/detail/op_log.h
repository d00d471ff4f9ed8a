#pragma once

// What a region's forward did, as far as its ops show: kept to hold a re-run to it.

#include <ATen/core/Tensor.h>
#include <tidemark/detail/fingerprint.h>
#include <tidemark/detail/generator_use.h>
#include <tidemark/detail/tensor_meta.h>
#include <tidemark/detail/vector.h>
#include <tidemark/detail/version_check.h>
#include <tidemark/detail/write_snapshot.h>

#include <cstddef>
#include <cstdint>

namespace tidemark::detail {

/// A storage that a region reads and did not make. Its fingerprint tells of all of it up to
/// `fingerprint_limit` bytes.
struct ExternalRead {
  ExternalRead(const at::Tensor& tensor, const char* reader, std::size_t fingerprint_limit)
      : storage(tensor.storage().getWeakStorageImpl()),
        identity(tensor.storage().unsafeGetStorageImpl()),
        check(tensor),
        content(fingerprint(*identity, fingerprint_limit)),
        meta(tensor),
        reader(reader) {}

  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  const c10::StorageImpl* identity;
  VersionCheck check;
  uint64_t content;
  TensorMeta meta;
  const char* reader;           // the op
  bool written = false;         // by the region itself: its snapshot stands for it
  bool overwritten = false;     // wholly, before anything read it
  std::size_t argument = 0;     // of an argument: its number
  int64_t argument_offset = 0;  // and where it begins in the storage
};

/// One outermost op: which, a hash of its sizes and scalars, and one of which tensors it works on.
struct OpMark {
  const char* name;
  uint64_t arguments;
  uint64_t operands;
};

/// One op that drew random numbers: for which devices, and on the CPU a fingerprint of the default
/// generator before and after it and of what it drew. That the generator ends where it ended before
/// proves little when other threads draw from it, too.
struct Draw {
  const char* op = nullptr;  // none if there was no draw
  c10::DeviceType type = c10::kCPU;
  uint64_t numbers = 0;
};

/// What the forward of a region did.
struct OpLog {
  Vector<OpMark> ops;
  Vector<ExternalRead> reads;           // in the order of their first use
  Vector<ExternalRead> arguments_read;  // of its arguments alone
  std::size_t fingerprint_limit = 0;
  Vector<WriteSnapshot> writes;
  Vector<GeneratorUse> generators;
  Vector<Draw> draws;
  bool random = false;            // whether an op ran that may draw
  bool remembered_draws = false;  // whether remember() drew on the CPU
  bool complete = true;           // false if nobody watched, or RecordFunction was off

  /// The log of a forward that nobody watched.
  static OpLog unseen() {
    OpLog log;
    log.complete = false;
    return log;
  }

  /// Whether an op drew random numbers for a tensor on devices of this type.
  [[nodiscard]] bool drew_on(c10::DeviceType type) const {
    for (const Draw& draw : draws) {
      if (draw.type == type) {
        return true;
      }
    }
    return false;
  }
};

}  // namespace tidemark::detail
