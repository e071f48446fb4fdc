#include "../cpu/random.h"

#include "probe.h"

using namespace es;
using namespace es::probe;

ES_PROBE(random, report) {
  for (int64_t count : {1, 15, 64, 1000, 5003}) {
    std::vector<float> out(count);
    const Draw draw{0x123456789abcdefu + (uint64_t)count, count, out.data(), Kind::f32};
    const std::string at = " numbers: " + std::to_string(count);
    random_numbers().uniform(draw, -1, 3, 1.9999999f);
    report.say("uniform" + at, out);
    random_numbers().normal(draw, 0.5f, 2);
    report.say("normal" + at, out);
    random_numbers().exponential(draw, 1.5f);
    report.say("exponential" + at, out);
    random_numbers().bernoulli(draw, 0x40000000u);
    report.say("bernoulli" + at, out);
  }
}
