#include "../cpu/scatter.h"

#include "probe.h"

using namespace es;
using namespace es::probe;

ES_PROBE(scatter, report) {
  Source source(8);
  for (int64_t width : {1, 7, 40})
    for (int how = 0; how < 4; ++how) {
      const int64_t count = 300, places = 11;
      auto from = source.numbers(count * width), out = source.numbers(places * width), scale = source.numbers(count);
      std::vector<int64_t> to(count);
      for (auto& one : to) one = (int64_t)(source.word() % (places + 1)) - 1;
      scatter().rows({1, count, width, places, to.data(), nullptr, from.data(), how ? nullptr : scale.data(), out.data()},
                     how);
      report.say("scatter rows of " + std::to_string(width) + " how " + std::to_string(how), out);
    }
}
