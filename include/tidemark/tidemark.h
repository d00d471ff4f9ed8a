/// All of tidemark but the googletest helpers, which need googletest: see tidemark/gtest/.
#pragma once

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
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/empty_cache.h>
#include <tidemark/memory/held_bytes_scope.h>
#include <tidemark/memory/measure.h>
#include <tidemark/memory/memory_scope.h>
#include <tidemark/memory/memory_stats.h>
#include <tidemark/nonfinite.h>
#include <tidemark/numerics_watch.h>
#include <tidemark/remember.h>
#include <tidemark/version.h>
