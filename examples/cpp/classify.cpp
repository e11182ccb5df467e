// Calls a package from C++ (11 or newer), with a class that owns it.
//
//     c++ -std=c++11 -I. examples/cpp/classify.cpp -o classify -ldl -pthread
//     ./classify classifier.twp 3
#define TILEWRIGHT_IMPLEMENTATION
#include "tilewright.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

class Package {
 public:
  explicit Package(const std::string &path) {
    tw_package *opened = nullptr;
    check(tw_open(path.c_str(), TW_VERIFY_WEIGHTS, &opened));
    package_.reset(opened);
  }

  // Rows of floats in, rows of floats out.
  std::vector<float> operator()(std::vector<float> &x, int64_t rows) {
    int64_t shape[] = {rows, static_cast<int64_t>(x.size()) / rows}, result[TW_MAX_RANK];
    tw_tensor in = {x.data(), TW_F32, 2, shape};
    check(tw_output_shape(package_.get(), &in, 1, 0, result));
    std::vector<float> y(static_cast<size_t>(result[0] * result[1]));
    tw_tensor out = {y.data(), TW_F32, 2, result};
    check(tw_run(package_.get(), &in, 1, &out, 1, nullptr));
    return y;
  }

 private:
  struct Close {
    void operator()(tw_package *p) const { tw_close(p); }
  };
  std::unique_ptr<tw_package, Close> package_;

  static void check(int code) {
    if (code) throw std::runtime_error(tw_error_text());
  }
};

int main(int argc, char **argv) {
  if (argc < 2) {
    std::fprintf(stderr, "classify PACKAGE [ROWS]\n");
    return 1;
  }
  try {
    const int64_t rows = argc > 2 ? std::atoll(argv[2]) : 1;
    Package package(argv[1]);
    std::vector<float> x(static_cast<size_t>(rows * 16));
    for (size_t k = 0; k < x.size(); k++) x[k] = static_cast<float>(k % 7) - 3;
    const std::vector<float> y = package(x, rows);
    for (size_t k = 0; k < y.size(); k++) std::printf("%.6f%c", y[k], (k + 1) % 4 ? ' ' : '\n');
  } catch (const std::exception &problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 1;
  }
  return 0;
}
