/// \file
/// What explains a training: where its memory goes, and where its first NaN came from. Apart from
/// tidemark.h, since only one source or two of a program need it.
#pragma once

#include <tidemark/memory/explain_out_of_memory.h>
#include <tidemark/memory/memory_recorder.h>
#include <tidemark/memory/memory_report.h>
#include <tidemark/memory/module_scope.h>
#include <tidemark/memory/report_csv.h>
#include <tidemark/memory/report_files.h>
#include <tidemark/memory/report_html.h>
#include <tidemark/memory/report_json.h>
#include <tidemark/memory/report_snapshot.h>
#include <tidemark/memory/report_text.h>
#include <tidemark/memory/report_trace.h>
#include <tidemark/numerics_watch.h>
