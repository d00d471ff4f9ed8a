// Meshes and their pictures: what is drawn where, files, and what is refused.

#include "common/views.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/mesh.h"
#include "common/rasterise.h"
#include "common/rgba_image.h"

namespace examples {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// In the plane z = -2, from the first corner to the opposite one.
void add_rectangle(Mesh& mesh, Vector2 from, Vector2 to, float z, Vector3 colour = {1, 1, 1}) {
  const Vector3 a{from[0], from[1], z}, b{to[0], from[1], z}, c{to[0], to[1], z},
      d{from[0], to[1], z};
  Triangle triangle;
  triangle.colours = {colour, colour, colour};
  triangle.corners = {a, b, c};
  mesh.triangles.push_back(triangle);
  triangle.corners = {a, c, d};
  mesh.triangles.push_back(triangle);
}

// At the origin, looking along -z. A point (x, y, -2) is on the screen at (4 + 2 x, 4 - 2 y).
Camera camera_of_8_pixels() {
  Camera camera;
  camera.pose = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  camera.width = 8;
  camera.height = 8;
  camera.focal = 4;
  return camera;
}

RasteriseOptions light_from(Vector3 light) {
  RasteriseOptions options;
  options.light = light;
  return options;
}

std::vector<int> pixel(const RgbaImage& image, int x, int y) {
  return {image.at(x, y), image.at(x, y) + 4};
}

TEST(Rasterise, FillsThePixelsThatTheProjectionCovers) {
  Mesh mesh;
  add_rectangle(mesh, {-1, 0}, {1, 1}, -2);
  const RgbaImage image = rasterise(mesh, camera_of_8_pixels(), light_from({0, 0, 3}));
  for (int y = 0; y < 8; ++y) {
    for (int x = 0; x < 8; ++x) {
      const bool inside = x >= 2 && x < 6 && y >= 2 && y < 4;
      EXPECT_EQ(image.at(x, y)[3], inside ? 255 : 0) << x << ", " << y;
      EXPECT_EQ(image.at(x, y)[0], inside ? 255 : 0) << x << ", " << y;
    }
  }
}

TEST(Rasterise, APixelThatIsHalfCoveredIsHalfTransparentAndOfTheSameColour) {
  Mesh mesh;
  add_rectangle(mesh, {0, 0}, {0.25F, 0.5F}, -2, {1, 0.6F, 0});  // columns 4 to 4.5, rows 3 to 4
  const RgbaImage image = rasterise(mesh, camera_of_8_pixels(), light_from({0, 0, 1}));
  EXPECT_THAT(pixel(image, 4, 3), ElementsAre(255, 153, 0, 128));
  EXPECT_EQ(image.at(3, 3)[3], 0);
}

TEST(Rasterise, LightAlongASurfaceLeavesTheAmbientPart) {
  Mesh mesh;
  add_rectangle(mesh, {-1, -1}, {1, 1}, -2);
  RasteriseOptions options = light_from({5, 0, 0});
  options.ambient = 0.2F;
  EXPECT_EQ(rasterise(mesh, camera_of_8_pixels(), options).at(4, 4)[1], 51);
}

TEST(Rasterise, WhatIsNearerHidesWhatIsBehindInAnyOrder) {
  for (const bool near_first : {true, false}) {
    Mesh mesh;
    for (const bool near : {near_first, !near_first}) {
      near ? add_rectangle(mesh, {-1, -1}, {1, 1}, -2, {0, 1, 0})
           : add_rectangle(mesh, {-9, -9}, {9, 9}, -3, {1, 0, 0});
    }
    const RgbaImage image = rasterise(mesh, camera_of_8_pixels(), light_from({0, 0, 1}));
    EXPECT_THAT(pixel(image, 4, 4), ElementsAre(0, 255, 0, 255));
    EXPECT_THAT(pixel(image, 0, 0), ElementsAre(255, 0, 0, 255));
  }
}

TEST(Rasterise, TexturesFollowThePerspective) {
  Mesh mesh;
  mesh.textures.push_back({64, 1, {}});
  for (int x = 0; x < 64; ++x) {
    const bool left = x < 32;
    for (const int value : {left ? 255 : 0, 0, left ? 0 : 255, 255}) {
      mesh.textures[0].pixels.push_back(static_cast<uint8_t>(value));
    }
  }
  // From (-1, ., -1) to (1, ., -3): the middle of the texture is at (0, ., -2), in the middle of
  // the screen, while the edges are drawn at columns 0 and 5 1/3.
  Triangle triangle;
  triangle.colours = {Vector3{1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
  triangle.texture = 0;
  triangle.corners = {Vector3{-1, -9, -1}, {1, -9, -3}, {1, 9, -3}};
  triangle.uv = {Vector2{0.01F, 0}, {0.99F, 0}, {0.99F, 1}};
  mesh.triangles.push_back(triangle);
  triangle.corners = {Vector3{-1, -9, -1}, {1, 9, -3}, {-1, 9, -1}};
  triangle.uv = {Vector2{0.01F, 0}, {0.99F, 1}, {0.01F, 1}};
  mesh.triangles.push_back(triangle);
  RasteriseOptions options;
  options.ambient = 1;
  const RgbaImage image = rasterise(mesh, camera_of_8_pixels(), options);
  for (const int row : {2, 4}) {
    EXPECT_THAT(pixel(image, 3, row), ElementsAre(255, 0, 0, 255));
    EXPECT_THAT(pixel(image, 4, row), ElementsAre(0, 0, 255, 255));
  }
}

TEST(Rasterise, WhatIsBehindTheCameraIsNotDrawn) {
  Mesh mesh;
  add_rectangle(mesh, {-1, -1}, {1, 1}, 2);
  const RgbaImage image = rasterise(mesh, camera_of_8_pixels());
  EXPECT_EQ(image.at(4, 4)[3], 0);
}

TEST(Poses, LookAtTheOriginFromTheSphereUpright) {
  const torch::Tensor poses = poses_around(20, 3);
  ASSERT_EQ(poses.sizes(), torch::IntArrayRef({20, 4, 4}));
  for (int64_t i = 0; i < 20; ++i) {
    const torch::Tensor rotation = poses[i].narrow(0, 0, 3).narrow(1, 0, 3);
    const torch::Tensor position = poses[i].narrow(0, 0, 3).select(1, 3);
    EXPECT_TRUE(torch::allclose(rotation.matmul(rotation.t()), torch::eye(3), 1e-5, 1e-5));
    EXPECT_NEAR(rotation.det().item<float>(), 1, 1e-5);
    EXPECT_TRUE(torch::allclose(position, 3 * rotation.select(1, 2), 1e-5, 1e-5));
    EXPECT_GT(rotation[1][1].item<float>(), 0);
    EXPECT_NEAR(rotation[1][0].item<float>(), 0, 1e-6);
  }
}

TEST(Views, EachIsTheMeshAsItsCameraSeesIt) {
  Mesh mesh;
  add_rectangle(mesh, {-1, -1}, {1, 1}, 0);
  // from (0, 0, 4) with 90 degrees: 8 units are 16 pixels wide
  torch::Tensor pose = torch::eye(4);
  pose[2][3] = 4;
  const Views views = render_views(mesh, torch::stack({pose, pose}), 16, M_PI / 2);
  EXPECT_NEAR(views.focal, 8, 1e-12);
  torch::Tensor alpha = torch::zeros({16, 16}, torch::kUInt8);
  alpha.narrow(0, 6, 4).narrow(1, 6, 4).fill_(255);
  for (int64_t i = 0; i < views.count(); ++i) {
    EXPECT_TRUE(views.images[i].select(2, 3).equal(alpha));
  }
}

Views numbered_views(int64_t count) {
  torch::manual_seed(5);
  Views views;
  views.images = torch::randint(256, {count, 6, 9, 4}).to(torch::kUInt8);
  views.poses = poses_around(count, 3);
  views.focal = 11.25;
  return views;
}

TEST(Views, HoldOutTakesTheMiddleOfEachFew) {
  const Views all = numbered_views(8);
  const auto [others, held_out] = hold_out(all, 4);
  EXPECT_TRUE(held_out.images.equal(torch::stack({all.images[2], all.images[6]})));
  EXPECT_TRUE(held_out.poses.equal(torch::stack({all.poses[2], all.poses[6]})));
  EXPECT_EQ(others.count(), 6);
  EXPECT_EQ(others.focal, all.focal);
  EXPECT_THROW(hold_out(numbered_views(2), 8), std::runtime_error);
}

TEST(Views, ShrinkingWeighsColoursByTheirAlpha) {
  Views views;
  views.images = torch::zeros({1, 2, 4, 4}, torch::kUInt8);
  // one opaque red pixel of four; on the right two of half the opacity, in red and blue
  const auto set = [&](int64_t y, int64_t x, std::vector<int> rgba) {
    views.images[0][y][x].copy_(torch::tensor(rgba));
  };
  set(0, 0, {200, 0, 0, 255});
  set(0, 1, {0, 99, 0, 0});
  set(0, 2, {255, 0, 0, 128});
  set(1, 3, {0, 0, 255, 128});
  views.poses = torch::eye(4).unsqueeze(0);
  views.focal = 10;
  const Views half = shrink(views, 2);
  EXPECT_EQ(half.focal, 5);
  EXPECT_TRUE(half.images[0][0].equal(
      torch::tensor({{200, 0, 0, 64}, {128, 0, 128, 64}}).to(torch::kUInt8)))
      << half.images[0][0];
  EXPECT_THROW(shrink(views, 3), std::runtime_error);
}

TEST(Views, TransparentIsWhite) {
  const torch::Tensor rgba = torch::tensor({{10, 20, 30, 0}, {255, 0, 51, 255}}).to(torch::kUInt8);
  EXPECT_TRUE(on_white(rgba).allclose(torch::tensor({{1.0F, 1.0F, 1.0F}, {1.0F, 0.0F, 0.2F}})));
}

class FilesTest : public ::testing::Test {
 protected:
  FilesTest() { std::filesystem::create_directories(folder_); }
  ~FilesTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // What is thrown when that is read; empty for nothing.
  template <class Read>
  std::string refusal(Read&& read) const {
    try {
      read();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }

  std::string mesh_refusal(const std::string& name, const std::string& content) const {
    const std::string file = write(name, content);
    return refusal([&] { read_mesh(file); });
  }

  const std::string folder_ = ::testing::TempDir() + "tidemark_views";
};

constexpr const char* kVertices = "v 0 0 0\nv 2 0 0\nv 2 2 0\nv 0 2 0\nvt 0 0\nvt 0.5 1\n";

TEST_F(FilesTest, ObjPolygonsBecomeAFanInTheColourOfTheirMaterial) {
  write("a.mtl", "newmtl red\nKd 1 0 0\nnewmtl blue\nKd 0 0 1\n");
  const Mesh mesh =
      read_mesh(write("a.obj", "# made by hand\r\nmtllib a.mtl\r\n" + std::string(kVertices) +
                                   "usemtl red\nf 1 2 3 4\nusemtl blue\n"
                                   "f -4//1 2/2/7 3/1\n"));
  ASSERT_EQ(mesh.triangles.size(), 3);
  EXPECT_THAT(mesh.triangles[1].corners,
              ElementsAre(Vector3{0, 0, 0}, Vector3{2, 2, 0}, Vector3{0, 2, 0}));
  EXPECT_EQ(mesh.triangles[1].colours[2], (Vector3{1, 0, 0}));
  EXPECT_THAT(mesh.triangles[2].corners,
              ElementsAre(Vector3{0, 0, 0}, Vector3{2, 0, 0}, Vector3{2, 2, 0}));
  EXPECT_EQ(mesh.triangles[2].uv[1], (Vector2{0.5F, 1}));
  EXPECT_EQ(mesh.triangles[2].colours[0], (Vector3{0, 0, 1}));
}

TEST_F(FilesTest, BrokenObjFilesAreRefusedWithTheirLine) {
  const std::string vertices = kVertices;
  EXPECT_THAT(mesh_refusal("a.obj", "v 0 0\n"), HasSubstr("a.obj:1: expected 3 numbers"));
  EXPECT_THAT(mesh_refusal("a.obj", "v 0 0 nan\n"), HasSubstr("a.obj:1: expected 3 numbers"));
  EXPECT_THAT(mesh_refusal("a.obj", vertices + "f 1 2\n"), HasSubstr("a.obj:7: a face with fewer"));
  EXPECT_THAT(mesh_refusal("a.obj", vertices + "f 1 2 5\n"), HasSubstr("vertex '5', of 4"));
  EXPECT_THAT(mesh_refusal("a.obj", vertices + "f 1 2 -5\n"), HasSubstr("vertex '-5', of 4"));
  EXPECT_THAT(mesh_refusal("a.obj", vertices + "f 1 2 0\n"), HasSubstr("vertex '0', of 4"));
  EXPECT_THAT(mesh_refusal("a.obj", vertices + "f 1 2 x\n"), HasSubstr("vertex 'x', of 4"));
  EXPECT_THAT(mesh_refusal("a.obj", vertices + "f 1/1 2/2 3/3\n"),
              HasSubstr("texture coordinate '3', of 2"));
  EXPECT_THAT(mesh_refusal("a.obj", vertices), HasSubstr("a.obj: has no triangles"));
  EXPECT_THAT(mesh_refusal("a.obj", "usemtl red\n"), HasSubstr("a.obj:1: unknown material 'red'"));
  EXPECT_THAT(mesh_refusal("a.obj", "mtllib b.mtl\n"), HasSubstr("b.mtl: no such file"));
  write("c.mtl", "newmtl red\nKd 1 0\n");
  EXPECT_THAT(mesh_refusal("a.obj", "mtllib c.mtl\n"), HasSubstr("c.mtl:2: expected 3 numbers"));
  EXPECT_THAT(refusal([&] { read_mesh(path("b.obj")); }), HasSubstr("b.obj: no such file"));
  EXPECT_THAT(mesh_refusal("a.stl", "solid"), HasSubstr("from .obj and .ply files"));
}

TEST_F(FilesTest, BrokenTexturesAreRefused) {
  if (!knows_png()) {
    GTEST_SKIP() << "built without libpng";
  }
  write("a.png", "junk");
  write("a.mtl", "newmtl red\nmap_Kd a.png\n");
  EXPECT_THAT(mesh_refusal("a.obj", "mtllib a.mtl\n"), HasSubstr("a.png: can't be read as PNG"));
}

constexpr const char* kPlyHeader =
    "ply\nformat ascii 1.0\ncomment made by hand\nelement vertex 4\nproperty float x\n"
    "property double y\nproperty float z\nproperty uchar red\nproperty uchar green\n"
    "property uchar blue\nelement face 1\nproperty list uchar int vertex_indices\nend_header\n";
constexpr const char* kPlyVertices =
    "0 0 0 255 0 0\n1 0 0 255 0 51\n1 1 0 255 0 0\n0 1 0 0 0 255\n";

TEST_F(FilesTest, PlyInTextHasItsCornersAndColours) {
  const Mesh mesh =
      read_mesh(write("a.ply", std::string(kPlyHeader) + kPlyVertices + "4 0 1 2 3\n"));
  ASSERT_EQ(mesh.triangles.size(), 2);
  EXPECT_THAT(mesh.triangles[1].corners,
              ElementsAre(Vector3{0, 0, 0}, Vector3{1, 1, 0}, Vector3{0, 1, 0}));
  EXPECT_EQ(mesh.triangles[0].colours[1], (Vector3{1, 0, 0.2F}));
  EXPECT_EQ(mesh.triangles[1].colours[2], (Vector3{0, 0, 1}));
}

TEST_F(FilesTest, PlyInBytesHasTheSame) {
  std::string bytes =
      "ply\nformat binary_little_endian 1.0\nelement vertex 3\nproperty float x\n"
      "property float y\nproperty float z\nelement face 1\n"
      "property list uchar ushort vertex_index\nend_header\n";
  for (const float value : {0.0F, 0.5F, 0.0F, 1.0F, 0.0F, -2.0F, 0.0F, 1.0F, 0.0F}) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  bytes += std::string("\x03\x02\x00\x00\x00\x01\x00", 7);
  const Mesh mesh = read_mesh(write("a.ply", bytes));
  ASSERT_EQ(mesh.triangles.size(), 1);
  EXPECT_THAT(mesh.triangles[0].corners,
              ElementsAre(Vector3{0, 1, 0}, Vector3{0, 0.5F, 0}, Vector3{1, 0, -2}));
  bytes.pop_back();
  EXPECT_THAT(mesh_refusal("a.ply", bytes), HasSubstr("ends or breaks in face 0 of 1"));
}

TEST_F(FilesTest, BrokenPlyFilesAreRefused) {
  const std::string header = kPlyHeader;
  EXPECT_THAT(refusal([&] { read_mesh(path("b.ply")); }), HasSubstr("b.ply: no such file"));
  EXPECT_THAT(mesh_refusal("a.ply", "junk"), HasSubstr("a.ply: is no PLY file"));
  EXPECT_THAT(mesh_refusal("a.ply", "ply\nformat ascii 1.0\n"), HasSubstr("has no end_header"));
  EXPECT_THAT(mesh_refusal("a.ply", "ply\nformat binary_big_endian 1.0\nend_header\n"),
              HasSubstr("'binary_big_endian'; ascii and"));
  EXPECT_THAT(mesh_refusal("a.ply", "ply\nelement vertex many\n"), HasSubstr("broken header"));
  EXPECT_THAT(mesh_refusal("a.ply", "ply\nelement vertex 3\nproperty real x\n"),
              HasSubstr("unknown type 'real'"));
  EXPECT_THAT(mesh_refusal("a.ply", "ply\nelement void 999999999999\nend_header\n"),
              HasSubstr("element void without a property"));
  EXPECT_THAT(mesh_refusal("a.ply",
                           "ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\n"
                           "end_header\n0\n"),
              HasSubstr("without a finite y"));
  EXPECT_THAT(mesh_refusal("a.ply", header + "0 0 0 255"), HasSubstr("in vertex 0 of 4"));
  EXPECT_THAT(mesh_refusal("a.ply", header + kPlyVertices + "3 0 1 4\n"),
              HasSubstr("face 0 has a corner that is none of the 4 vertices"));
  EXPECT_THAT(mesh_refusal("a.ply", header + kPlyVertices + "2 0 1\n"),
              HasSubstr("has no triangles"));
}

TEST(Mesh, FitsIntoASphereAroundTheOrigin) {
  Mesh mesh;
  add_rectangle(mesh, {10, 20}, {16, 28}, 5);  // corners are 5 from the middle
  fit_into_sphere(mesh, 2.5F);
  EXPECT_EQ(mesh.triangles[0].corners[0], (Vector3{-1.5F, -2, 0}));
  EXPECT_EQ(mesh.triangles[0].corners[2], (Vector3{1.5F, 2, 0}));
}

class TransformsTest : public FilesTest {
 protected:
  void SetUp() override {
    if (!knows_png() || !knows_transforms_json()) {
      GTEST_SKIP() << "built without libpng or nlohmann-json";
    }
  }

  std::string json_refusal(const std::string& content) const {
    const std::string file = write("transforms.json", content);
    return refusal([&] { read_views(file); });
  }
};

TEST_F(TransformsTest, AreReadAsTheyWereWritten) {
  const Views views = numbered_views(3);
  write_views(folder_, views);
  const Views read = read_views(path("transforms.json"));
  EXPECT_TRUE(read.images.equal(views.images));
  EXPECT_TRUE(read.poses.equal(views.poses));
  EXPECT_NEAR(read.focal, views.focal, 1e-9);
}

std::string frame(const std::string& image, const std::string& rows) {
  return R"({"file_path": ")" + image + R"(", "transform_matrix": [)" + rows + "]}";
}

constexpr const char* kIdentity = "[1,0,0,0],[0,1,0,0],[0,0,1,4],[0,0,0,1]";

TEST_F(TransformsTest, TheFocalLengthFollowsFromTheAngleOrIsGiven) {
  write_png(path("a.png"), {6, 1, std::vector<uint8_t>(24, 7)});
  const std::string frames = R"(, "frames": [)" + frame("a.png", kIdentity) + "]}";
  // the tangent of 45 degrees is 1: half the width
  write("transforms.json", R"({"camera_angle_x": 1.5707963267948966)" + frames);
  EXPECT_NEAR(read_views(path("transforms.json")).focal, 3, 1e-9);
  // for images of another width
  write("transforms.json", R"({"fl_x": 20, "w": 12)" + frames);
  EXPECT_NEAR(read_views(path("transforms.json")).focal, 10, 1e-9);
}

TEST_F(TransformsTest, BrokenFilesAreRefused) {
  write_png(path("a.png"), {2, 2, std::vector<uint8_t>(16, 7)});
  write_png(path("b.png"), {2, 3, std::vector<uint8_t>(24, 7)});
  write("c.png", "junk");
  const auto with_frames = [](const std::string& frames) {
    return R"({"camera_angle_x": 0.7, "frames": [)" + frames + "]}";
  };
  EXPECT_THAT(refusal([&] { read_views(path("b.json")); }), HasSubstr("b.json: no such file"));
  EXPECT_THAT(json_refusal("junk"), HasSubstr("transforms.json: is no JSON"));
  EXPECT_THAT(json_refusal("[1, 2]"), HasSubstr("is no transforms.json"));
  EXPECT_THAT(json_refusal("{}"), HasSubstr("is no transforms.json"));
  EXPECT_THAT(json_refusal(with_frames("")), HasSubstr("has no frames"));
  EXPECT_THAT(json_refusal(with_frames("{}")), HasSubstr("is no transforms.json"));
  EXPECT_THAT(json_refusal(with_frames(frame("a", "[1,0,0,0]"))),
              HasSubstr("is no transforms.json"));
  EXPECT_THAT(json_refusal(with_frames(frame("d", kIdentity))),
              HasSubstr("d.png: can't be read as PNG"));
  EXPECT_THAT(json_refusal(with_frames(frame("c", kIdentity))),
              HasSubstr("c.png: can't be read as PNG"));
  EXPECT_THAT(json_refusal(with_frames(frame("a", kIdentity) + "," + frame("b", kIdentity))),
              HasSubstr("b.png: has another size"));
  EXPECT_THAT(json_refusal(with_frames(frame("a", "[0,0,0,0],[0,0,0,0],[0,0,0,0],[0,0,0,1]"))),
              HasSubstr("no camera has"));
  EXPECT_THAT(json_refusal(with_frames(frame("a", "[1,0,0,1e99],[0,1,0,0],[0,0,1,0],[0,0,0,1]"))),
              HasSubstr("no camera has"));
  for (const char* angle : {"0", "-1", "3.2"}) {
    EXPECT_THAT(json_refusal(std::string(R"({"camera_angle_x": )") + angle + R"(, "frames": [)" +
                             frame("a", kIdentity) + "]}"),
                HasSubstr("camera_angle_x has to be between 0 and pi"));
  }
}

}  // namespace
}  // namespace examples
