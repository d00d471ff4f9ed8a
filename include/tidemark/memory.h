/// \file
/// What measures memory: live and peak bytes of a stretch of code, and what a graph holds.
#pragma once

#include <tidemark/memory/bytes.h>
#include <tidemark/memory/empty_cache.h>
#include <tidemark/memory/held_bytes_scope.h>
#include <tidemark/memory/measure.h>
#include <tidemark/memory/memory_scope.h>
#include <tidemark/memory/memory_stats.h>
