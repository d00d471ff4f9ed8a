#include "common/ply.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <istream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

namespace examples {

namespace {

// Little-endian, which is what all machines that LibTorch runs on are.
template <class T>
double read_binary(std::istream& in) {
  T value{};
  in.read(reinterpret_cast<char*>(&value), sizeof(value));
  return static_cast<double>(value);
}

double read_ascii(std::istream& in) {
  double value = 0;
  in >> value;
  return value;
}

using ReadNumber = double (*)(std::istream& in);

struct Property {
  std::string name;
  ReadNumber read = nullptr;
  ReadNumber read_count = nullptr;  // of a list; none for a single number
};

struct Element {
  std::string name;
  int64_t count = 0;
  std::vector<Property> properties;
};

class PlyReader {
 public:
  explicit PlyReader(const std::string& path) : path_(path), in_(path, std::ios::binary) {
    if (!in_) {
      fail("no such file");
    }
  }

  Mesh read() {
    read_header();
    for (const Element& element : elements_) {
      for (int64_t i = 0; i < element.count; ++i) {
        read_row(element);
        if (!in_) {
          fail("ends or breaks in " + element.name + " " + std::to_string(i) + " of " +
               std::to_string(element.count));
        }
        if (element.name == "vertex") {
          add_vertex();
        } else if (element.name == "face") {
          add_face(i);
        }
      }
    }
    if (mesh_.triangles.empty()) {
      fail("has no triangles");
    }
    return std::move(mesh_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(path_ + ": " + what);
  }

  [[nodiscard]] ReadNumber reader_of(const std::string& type) const {
    static const std::map<std::string, ReadNumber> kReaders{
        {"char", read_binary<int8_t>},     {"int8", read_binary<int8_t>},
        {"uchar", read_binary<uint8_t>},   {"uint8", read_binary<uint8_t>},
        {"short", read_binary<int16_t>},   {"int16", read_binary<int16_t>},
        {"ushort", read_binary<uint16_t>}, {"uint16", read_binary<uint16_t>},
        {"int", read_binary<int32_t>},     {"int32", read_binary<int32_t>},
        {"uint", read_binary<uint32_t>},   {"uint32", read_binary<uint32_t>},
        {"float", read_binary<float>},     {"float32", read_binary<float>},
        {"double", read_binary<double>},   {"float64", read_binary<double>}};
    const auto found = kReaders.find(type);
    if (found == kReaders.end()) {
      fail("has a property of the unknown type '" + type + "'");
    }
    return ascii_ ? read_ascii : found->second;
  }

  void read_header() {
    std::string line;
    std::getline(in_, line);
    if (line.substr(0, 3) != "ply") {
      fail("is no PLY file");
    }
    while (std::getline(in_, line)) {
      std::istringstream words(line);
      std::string word, type;
      words >> word;
      if (word == "format") {
        words >> type;
        ascii_ = type == "ascii";
        if (!ascii_ && type != "binary_little_endian") {
          fail("is in the format '" + type + "'; ascii and binary_little_endian can be read");
        }
      } else if (word == "element") {
        Element element;
        if (!(words >> element.name >> element.count) || element.count < 0) {
          fail("has a broken header: " + line);
        }
        elements_.push_back(element);
      } else if (word == "property") {
        Property property;
        words >> type;
        if (type == "list") {
          words >> type;
          property.read_count = reader_of(type);
          words >> type;
        }
        property.read = reader_of(type);
        if (!(words >> property.name) || elements_.empty()) {
          fail("has a broken header: " + line);
        }
        elements_.back().properties.push_back(property);
      } else if (word == "end_header") {
        for (const Element& element : elements_) {
          if (element.properties.empty()) {
            fail("has a broken header: element " + element.name + " without a property");
          }
        }
        return;
      }
    }
    fail("has no end_header");
  }

  void read_row(const Element& element) {
    numbers_.clear();
    list_.clear();
    for (const Property& property : element.properties) {
      if (property.read_count == nullptr) {
        numbers_[property.name] = property.read(in_);
        continue;
      }
      const double count = property.read_count(in_);
      const bool corners = property.name == "vertex_indices" || property.name == "vertex_index";
      for (double k = 0; k < count && in_; ++k) {
        const double value = property.read(in_);
        if (corners) {
          list_.push_back(value);
        }
      }
    }
  }

  [[nodiscard]] float number(const std::string& name) const {
    const auto found = numbers_.find(name);
    if (found == numbers_.end() || !std::isfinite(found->second)) {
      fail("has a vertex without a finite " + name);
    }
    return static_cast<float>(found->second);
  }

  void add_vertex() {
    positions_.push_back({number("x"), number("y"), number("z")});
    if (numbers_.count("red") == 0) {
      colours_.push_back({0.8F, 0.8F, 0.8F});
    } else {
      colours_.push_back({number("red") / 255, number("green") / 255, number("blue") / 255});
    }
  }

  // A fan around the first corner.
  void add_face(int64_t index) {
    for (const double corner : list_) {
      if (!(corner >= 0 && corner < static_cast<double>(positions_.size()))) {
        fail("face " + std::to_string(index) + " has a corner that is none of the " +
             std::to_string(positions_.size()) + " vertices before it");
      }
    }
    for (size_t k = 2; k < list_.size(); ++k) {
      Triangle triangle;
      const std::array<double, 3> corners{list_[0], list_[k - 1], list_[k]};
      for (size_t i = 0; i < 3; ++i) {
        const auto vertex = static_cast<size_t>(corners[i]);
        triangle.corners[i] = positions_[vertex];
        triangle.colours[i] = colours_[vertex];
      }
      mesh_.triangles.push_back(triangle);
    }
  }

  std::string path_;
  std::ifstream in_;
  bool ascii_ = false;
  std::vector<Element> elements_;
  std::map<std::string, double> numbers_;  // of the row that is being read
  std::vector<double> list_;               // its corners
  std::vector<Vector3> positions_;
  std::vector<Vector3> colours_;
  Mesh mesh_;
};

}  // namespace

Mesh read_ply(const std::string& path) { return PlyReader(path).read(); }

}  // namespace examples
