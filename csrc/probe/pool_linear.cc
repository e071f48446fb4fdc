#include "../cpu/pool_linear.h"

#include "probe.h"

using namespace es;
using namespace es::probe;

ES_PROBE(upsample, report) {
  Source source(10);
  const Linear linear{3, 2, {1, 7, 9}, {1, 13, 20}, {1, 7.0f / 13, 0.45f}, false};
  auto in = source.numbers(3 * 63), g = source.numbers(3 * 260);
  std::vector<float> out(3 * 260), back(3 * 63);
  pool_linear().forward(linear, in.data(), out.data());
  report.say("bilinear", out);
  pool_linear().backward(linear, g.data(), back.data());
  report.say("bilinear backward", back);
}

// Up and down, in one to three dimensions, from and to single elements; scales that do not fit the sizes.
ES_PROBE(upsample_more, report) {
  Source source(17);
  for (bool corners : {false, true})
    for (int64_t dimensions : {1, 2, 3})
      for (int64_t small : {1, 2, 5})
        for (int64_t large : {1, 3, 16}) {
          Linear l{2, dimensions, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, corners};
          for (int64_t d = 3 - dimensions; d < 3; ++d) {
            l.from[d] = small + d, l.to[d] = large + 2 - d;
            l.scale[d] = (float)l.from[d] / (float)l.to[d];
            if (corners) l.scale[d] = l.to[d] > 1 ? (float)(l.from[d] - 1) / (float)(l.to[d] - 1) : 0.0f;
            if (!corners && large == 16 && d == 2) l.scale[d] = 0.7f;
          }
          const int64_t size = 2 * l.from[0] * l.from[1] * l.from[2], results = 2 * l.to[0] * l.to[1] * l.to[2];
          auto in = source.numbers(size), g = source.numbers(results);
          std::vector<float> out(results), back(size);
          pool_linear().forward(l, in.data(), out.data());
          pool_linear().backward(l, g.data(), back.data());
          const std::string at = " in " + std::to_string(dimensions) + (corners ? " by corners, " : ", ") +
                                 std::to_string(small) + " to " + std::to_string(large);
          report.say("linear" + at, out);
          report.say("linear backward" + at, back);
        }
}
