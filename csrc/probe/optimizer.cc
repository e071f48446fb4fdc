#include "../cpu/optimizer.h"

#include "probe.h"

using namespace es;
using namespace es::probe;

ES_PROBE(optimizer, report) {
  Source source(7);
  const int64_t count = 1003;
  auto param = source.numbers(count), grad = source.numbers(count), mean = source.numbers(count);
  std::vector<float> square(count), largest(count), buffer(count);
  for (float& x : square) x = source.number() * source.number() + 1.5f;
  for (int step = 0; step < 2; ++step) {
    const Gradient gradient{step ? 4.0f : 1.0f, step == 1, 0.01f};
    optimizer().adam(Element::f32, {gradient, 0.999f, 0.1f, 0.999f, 0.001f, 0.3f, 1e-8f, -0.01f, step == 1},
                     param.data(), grad.data(), mean.data(), square.data(), largest.data(), count);
    report.say("adam " + std::to_string(step), param);
    optimizer().sgd(Element::f32, {gradient, 0.9f, 1, -0.1f, step == 1, step == 0}, param.data(), grad.data(),
                    buffer.data(), count);
    report.say("sgd " + std::to_string(step), param);
    optimizer().adagrad(Element::f32, {gradient, 1e-10f, -0.1f}, param.data(), grad.data(), square.data(), count);
    report.say("adagrad " + std::to_string(step), param);
  }
}
