#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <string>
#include <utility>

namespace tidemark::tests {

/// Counts where a number is read on the host: there a device is waited for.
class HostReads {
 public:
  HostReads()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback([](const at::RecordFunction& fn)
                                           -> std::unique_ptr<at::ObserverContext> {
              const std::string name = fn.name();
              count += name == "aten::_local_scalar_dense" || name == "aten::is_nonzero" ||
                       name == "aten::nonzero" || name == "aten::equal";
              return nullptr;
            }).scopes({at::RecordScope::FUNCTION}))) {
    count = 0;
  }
  ~HostReads() { at::removeCallback(handle_); }
  HostReads(const HostReads&) = delete;
  HostReads& operator=(const HostReads&) = delete;

  /// Since the last call.
  static int taken() { return std::exchange(count, 0); }

 private:
  static inline int count = 0;
  at::CallbackHandle handle_;
};

}  // namespace tidemark::tests
