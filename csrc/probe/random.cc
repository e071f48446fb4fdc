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

// Choices by weights, in several parts, and what is no weight or probability.
ES_PROBE(weights, report) {
  Source source(19);
  for (int64_t width : {1, 7, 2500}) {
    const int64_t rows = 5, samples = 300;
    std::vector<double> weights(rows * width);
    for (double& one : weights) one = (double)(source.word() >> 11) * 0x1p-53;
    std::vector<double> upto = weights;
    std::vector<int64_t> choices(rows * samples);
    std::vector<float> out;
    const std::string at = " of " + std::to_string(width);
    out.push_back((float)random_numbers().sum_weights(rows, width, upto.data()));
    for (double one : upto) out.push_back((float)one), out.push_back((float)(one - (double)(float)one));
    report.say("sums of weights" + at, out);
    random_numbers().choose(7, rows, width, upto.data(), samples, choices.data());
    report.say("choices" + at, {choices.begin(), choices.end()});
    std::vector<float> found{(float)random_numbers().probabilities(rows * width, weights.data())};
    for (double wrong : {-0.1, 1.5, __builtin_inf(), __builtin_nan("")})
      for (int64_t row : {0, 3}) {
        upto = weights, upto[row * width + width / 2] = wrong;
        for (int64_t i = 0; i < width; ++i) upto[width + i] = 0;  // so that row 1 sums to 0
        found.push_back((float)random_numbers().probabilities(rows * width, upto.data()));
        found.push_back((float)random_numbers().sum_weights(rows, width, upto.data()));
      }
    report.say("what is wrong with weights" + at, found);
  }
}
