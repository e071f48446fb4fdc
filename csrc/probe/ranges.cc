#include "../cpu/ranges.h"

#include "../cpu/grid_sample.h"
#include "probe.h"

using namespace es;
using namespace es::probe;

ES_PROBE(ranges, report) {
  for (int64_t count : {1, 2, 5, 1001}) {
    std::vector<float> out(count), halves(2 * count);
    std::vector<double> doubles(count);
    const std::string at = " of " + std::to_string(count);
    auto say = [&](const char* name) {  // doubles as two words each
      __builtin_memcpy(halves.data(), doubles.data(), sizeof(double) * (size_t)count);
      report.say(name + at, halves);
    };
    ranges().arange(count, -1.1, 0.013, out.data());
    report.say("arange" + at, out);
    ranges().arange_of_doubles(count, -1.1, 0.013, doubles.data());
    say("arange of doubles");
    ranges().linspace(count, 0.1, 7.3, out.data());
    report.say("linspace" + at, out);
    ranges().linspace_of_doubles(count, 0.1, 7.3, doubles.data());
    say("linspace of doubles");
  }
}

ES_PROBE(grid_sample, report) {
  Source source(18);
  const int64_t batch = 2, channels = 3, height = 5, width = 9, points = 80;
  auto picture = source.numbers(batch * channels * height * width), grid = source.numbers(batch * points * 2);
  for (float& x : grid) x *= 2.5f;
  const auto any = source.hostiles(40);
  for (size_t i = 0; i < any.size(); ++i) grid[4 * i] = any[i];
  for (bool nearest : {false, true})
    for (bool corners : {false, true})
      for (int padding = 0; padding < 3; ++padding) {
        std::vector<float> out(batch * channels * points);
        grid_samples().forward({batch, channels, height, width, points, (Padding)padding, nearest, corners,
                                picture.data(), grid.data(), out.data()});
        report.say("grid sample " + std::to_string(nearest) + std::to_string(corners) + std::to_string(padding), out);
      }
}
