#include "../cpu/loss.h"

#include "probe.h"

using namespace es;
using namespace es::probe;

ES_PROBE(loss, report) {
  Source source(12);
  for (int64_t inner : {1, 7})
    for (bool weighted : {false, true}) {
      const int64_t outer = 67, classes = 11, ignored = 4, count = outer * inner;
      auto scores = source.numbers(outer * classes * inner), by_class = source.numbers(classes);
      auto gradient = source.numbers(count), total = source.numbers(1);
      std::vector<int64_t> targets(count);
      for (auto& one : targets) one = (int64_t)(source.word() % classes);
      const Picks picks{outer, classes, inner, ignored, targets.data(), weighted ? by_class.data() : nullptr};
      std::vector<float> terms(count), weights(count), each(scores.size()), mean(scores.size());
      loss().terms(picks, scores.data(), terms.data(), weights.data());
      loss().gradients(picks, gradient.data(), true, nullptr, each.data());
      loss().gradients(picks, gradient.data(), false, total.data(), mean.data());
      const std::string at = " inner " + std::to_string(inner) + (weighted ? " weighted" : "");
      report.say("nll terms" + at, terms);
      report.say("nll weights" + at, weights);
      report.say("nll gradients of each" + at, each);
      report.say("nll gradients of a mean" + at, mean);
      std::vector<float> misfits;
      for (int64_t wrong : {-1, 11, 4}) {
        for (int64_t at : {count - 1, count / 2}) targets[(size_t)at] = wrong;
        int64_t found = 0;
        misfits.push_back((float)loss().misfit(picks, &found));
        misfits.push_back((float)found);
      }
      report.say("nll misfits" + at, misfits);
    }
}
