/// \file
/// What training uses of tidemark. Apart from it, since only a source or two of a program need them
/// and they take the compiler longer, are what measures memory (memory.h) and what explains a
/// training (diagnostics.h); and, for what they need, the googletest helpers (tidemark/gtest/) and
/// memory/cuda_block_events.h.
#pragma once

/// \namespace tidemark
/// Lowers the high-water mark of memory in LibTorch training: checkpointed regions, mixed
/// precision, gradient accumulation, and measuring what a step does with memory.
///
/// What ends in `Options` is made as LibTorch's options are (TORCH_ARG): the reference shows a
/// member and its default, `bool early_stop = false`; `early_stop()` reads it, and
/// `early_stop(true)` sets it and returns the options, so that calls can follow each other:
///
///     auto options = tidemark::CheckpointOptions().name("enc1").early_stop(true);
///
/// Where the reference says no more than "throws", it is a c10::Error whose text says what to do.

#include <tidemark/amp_cast.h>
#include <tidemark/amp_function.h>
#include <tidemark/amp_scope.h>
#include <tidemark/checkpoint.h>
#include <tidemark/checkpoint_options.h>
#include <tidemark/checkpointed.h>
#include <tidemark/checkpointed_sequential.h>
#include <tidemark/grad_accumulator.h>
#include <tidemark/grad_accumulator_options.h>
#include <tidemark/grad_scaler.h>
#include <tidemark/grad_scaler_options.h>
#include <tidemark/nonfinite.h>
#include <tidemark/remember.h>
#include <tidemark/version.h>
