#pragma once

/// \file
/// A MemoryReport as a folder of files, in all formats.

#include <c10/util/Exception.h>
#include <tidemark/memory/memory_report.h>
#include <tidemark/memory/report_csv.h>
#include <tidemark/memory/report_html.h>
#include <tidemark/memory/report_json.h>
#include <tidemark/memory/report_snapshot.h>
#include <tidemark/memory/report_text.h>
#include <tidemark/memory/report_trace.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace tidemark::detail {

/// Writes the file under another name and then renames it, so that a reader sees all of it or what
/// was there before.
inline void write_file(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path partial = path;
  partial += ".partial";
  errno = 0;
  std::ofstream file(partial, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  std::error_code error;
  if (file.fail()) {
    error = {errno != 0 ? errno : EIO, std::generic_category()};
  } else {
    std::filesystem::rename(partial, path, error);
  }
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    TORCH_CHECK(false, "tidemark: write_report() can't write ", path.string(), ": ",
                error.message(), ". Is there space, and may it be written to?");
  }
}

}  // namespace tidemark::detail

namespace tidemark {

/// Writes the report into `folder`, which is made if it is not there: report.txt (to_text()),
/// report.html (to_html()), report.json (to_json()), timeline.csv (to_csv()), snapshot.pickle
/// (to_snapshot()) and trace.json (to_chrome_trace()). Returns their paths, in this order.
///
/// Files of these names are replaced, each at once: none is ever half written. Throws a c10::Error
/// that names the path if it can't be written; files before it are then written, those after it are
/// what they were. One writer for a folder at a time.
inline std::vector<std::string> write_report(const MemoryReport& report,
                                             const std::string& folder) {
  TORCH_CHECK(!folder.empty(),
              "tidemark: write_report() needs the name of a folder, \".\" for the current one.");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TORCH_CHECK(!error, "tidemark: write_report() can't make the folder ", folder, ": ",
              error.message(), ". Give one that is there or can be made.");
  std::vector<std::string> paths;
  const auto write = [&](const char* name, std::string_view content) {
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    detail::write_file(path, content);
    paths.push_back(path.string());
  };
  write("report.txt", to_text(report));
  write("report.html", to_html(report));
  write("report.json", to_json(report));
  write("timeline.csv", to_csv(report));
  write("snapshot.pickle", to_snapshot(report).pickle);
  write("trace.json", to_chrome_trace(report));
  return paths;
}

}  // namespace tidemark
