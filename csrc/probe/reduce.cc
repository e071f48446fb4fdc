#include "../cpu/reduce.h"

#include "../cpu/norm.h"
#include "../cpu/softmax.h"
#include "probe.h"

using namespace es;
using namespace es::probe;

// Rows, columns and a strided array of (kept, reduced).
static void reductions(Report& report, const char* name, void (*kernel)(const Reduction&), Source& source, bool hostile,
                       const std::vector<int64_t>& lengths = {0, 1, 15, 16, 17, 1000, 1024, 1025, 3100}) {
  for (int64_t length : lengths)
    for (int layout = 0; layout < 3; ++layout) {
      const int64_t rows = 19, apart = layout == 2 ? 2 : 1;
      auto in = hostile ? source.hostiles(rows * (length + 1) * apart) : source.numbers(rows * (length + 1) * apart);
      std::vector<float> out(rows);
      Reduction r{};
      r.in = in.data(), r.out = out.data(), r.kept_axes = 1, r.reduced_axes = 1;
      r.kept[0] = {rows, layout == 1 ? 1 : length * apart, 1};
      r.reduced[0] = {length, layout == 1 ? rows : apart, 0};
      kernel(r);
      report.say(std::string(name) + " of " + std::to_string(length) + " layout " + std::to_string(layout), out);
    }
}

ES_PROBE(reduce, report) {
  Source source(3);
  const Reduce& kernels = reduce_kernels();
  reductions(report, "sum", kernels.sum, source, false);
  reductions(report, "long sum", kernels.sum, source, false, {9000, 40000, 140000});
  reductions(report, "sum of anything", kernels.sum, source, true);
  reductions(report, "sum of squares", kernels.sum_of_squares, source, false);
  reductions(report, "sum of magnitudes", kernels.sum_of_magnitudes, source, false);
  reductions(report, "product", kernels.product, source, false);
  reductions(report, "maximum", kernels.maximum, source, true);
  reductions(report, "minimum", kernels.minimum, source, true);
  reductions(report, "sum of numbers", kernels.sum_of_numbers, source, true);
  reductions(report, "count", kernels.count_of_nonzeros, source, false);
  reductions(report, "maximum magnitude", kernels.maximum_magnitude, source, true);
  reductions(report, "minimum magnitude", kernels.minimum_magnitude, source, true);
  auto in = source.numbers(3 * 2100 * 5);
  std::vector<float> out(in.size());
  kernels.running_sum({in.data(), out.data(), 3, 2100, 5});
  report.say("running sum", out);
}

ES_PROBE(softmax, report) {
  Source source(4);
  for (int64_t length : {1, 7, 16, 100, 1025})
    for (int64_t inner : {1, 3, 17}) {
      const int64_t outer = 5, count = outer * length * inner;
      auto x = source.numbers(count), g = source.numbers(count);
      for (auto& one : x) one *= 20;
      std::vector<float> y(count), dx(count);
      const std::string at = " of " + std::to_string(length) + " inner " + std::to_string(inner);
      softmax_kernels().softmax({x.data(), y.data(), outer, length, inner});
      report.say("softmax" + at, y);
      softmax_kernels().softmax_gradient({g.data(), y.data(), dx.data(), outer, length, inner});
      report.say("softmax gradient" + at, dx);
      softmax_kernels().log_softmax({x.data(), y.data(), outer, length, inner});
      report.say("log softmax" + at, y);
      softmax_kernels().log_softmax_gradient({g.data(), y.data(), dx.data(), outer, length, inner});
      report.say("log softmax gradient" + at, dx);
    }
}

// Rows of many blocks.
ES_PROBE(long_softmax, report) {
  Source source(11);
  for (int64_t length : {9000, 70000, 1100000}) {
    auto x = source.numbers(length), g = source.numbers(length);
    std::vector<float> y(length), dx(length);
    softmax_kernels().softmax({x.data(), y.data(), 1, length, 1});
    report.say("long softmax of " + std::to_string(length), y);
    softmax_kernels().softmax_gradient({g.data(), y.data(), dx.data(), 1, length, 1});
    report.say("long softmax gradient of " + std::to_string(length), dx);
    softmax_kernels().log_softmax({x.data(), y.data(), 1, length, 1});
    report.say("long log softmax of " + std::to_string(length), y);
  }
}

ES_PROBE(norm, report) {
  Source source(5);
  for (int64_t length : {1, 16, 100, 1030}) {
    const int64_t rows = 21;
    auto x = source.numbers(rows * length), g = source.numbers(rows * length);
    auto weight = source.numbers(length), bias = source.numbers(length);
    std::vector<float> y(x.size()), dx(x.size()), mean(rows), inverse(rows), dweight(length), dbias(length);
    norm_kernels().layer_norm(
        {rows, length, x.data(), weight.data(), bias.data(), 1e-5f, y.data(), mean.data(), inverse.data()});
    norm_kernels().layer_norm_backward({rows, length, g.data(), x.data(), weight.data(), mean.data(), inverse.data(),
                                        dx.data(), dweight.data(), dbias.data()});
    const std::string at = " of " + std::to_string(length);
    report.say("layer norm" + at, y);
    report.say("layer norm, by x" + at, dx);
    report.say("layer norm, by weight" + at, dweight);
    report.say("layer norm, by bias" + at, dbias);
  }
}
