#pragma once

// Telling that memory ran out from all else that goes wrong.

#include <c10/util/Exception.h>
#include <tidemark/detail/device_allocator.h>  // empty_device_caches()

#include <algorithm>
#include <array>
#include <exception>
#include <new>
#include <string>

namespace tidemark::detail {

/// What an exception says, without a backtrace.
inline std::string text_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

/// Whether memory ran out, on the CPU or on a device. Most allocators and libraries say so by
/// their text alone. CUDNN_STATUS_NOT_SUPPORTED is not among them: it is rather a wrong argument.
inline bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
      dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return true;
  }
  static constexpr std::array kTexts{
      "DefaultCPUAllocator: can't allocate memory",
      "DefaultCPUAllocator: not enough memory",  // Windows
      "CUDA out of memory",
      "CUDA error: out of memory",
      "HIP out of memory",
      "HIP error: out of memory",
      "XPU out of memory",
      "MPS backend out of memory",
      "CUDNN_STATUS_ALLOC_FAILED",
      "CUBLAS_STATUS_ALLOC_FAILED",
      "CUSOLVER_STATUS_ALLOC_FAILED",
      "CUSPARSE_STATUS_ALLOC_FAILED",
      "CUFFT_ALLOC_FAILED",
  };
  const auto text = text_of(error);
  return std::any_of(kTexts.begin(), kTexts.end(),
                     [&](const char* known) { return text.find(known) != std::string::npos; });
}

}  // namespace tidemark::detail
