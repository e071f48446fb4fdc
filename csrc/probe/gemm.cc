#include "../cpu/gemm.h"

#include "probe.h"

using namespace es;
using namespace es::probe;

ES_PROBE(gemm, report) {
  Source source(1);
  for (int64_t m : {1, 3, 17, 40})
    for (int64_t n : {1, 5, 33})
      for (int64_t k : {0, 1, 7, 511, 512, 513, 1300})
        for (int layout = 0; layout < 4; ++layout) {
          auto a = source.numbers(2 * m * k), b = source.numbers(2 * k * n), c = source.numbers(n);
          std::vector<float> out(2 * m * n);
          Matrix left = layout & 1 ? Matrix{a.data(), m * k, 1, m} : Matrix{a.data(), m * k, k, 1};
          Matrix right = layout & 2 ? Matrix{b.data(), k * n, 1, k} : Matrix{b.data(), k * n, n, 1};
          float alpha = layout == 3 ? 1.25f : 1, beta = layout == 3 ? 0.5f : 0;
          gemm().product({Element::f32, 2, m, n, k, left, right, {c.data(), 0, 0, 1}, alpha, beta, {out.data(), m * n, n, 1}});
          report.say("gemm " + std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n) + " layout " +
                         std::to_string(layout),
                     out);
        }
  for (int64_t k : {3, 8, 13}) {  // too small to be told from -0, which a padded zero would make +0
    std::vector<float> tiny(2 * k, 0x1p-100f), negative(2 * k, -0x1p-100f), zeros(4);
    gemm().product({Element::f32, 1, 2, 2, k, {tiny.data(), 0, k, 1}, {negative.data(), 0, 2, 1}, {}, 1, 0,
                    {zeros.data(), 0, 2, 1}});
    report.say("gemm of tiny numbers " + std::to_string(k), zeros);
  }
  auto a = source.hostiles(9 * 30), b = source.hostiles(30 * 20);
  std::vector<float> out(9 * 20);
  gemm().product({Element::f32, 1, 9, 20, 30, {a.data(), 0, 30, 1}, {b.data(), 0, 20, 1}, {}, 1, 0, {out.data(), 0, 20, 1}});
  report.say("gemm of anything", out);
}
