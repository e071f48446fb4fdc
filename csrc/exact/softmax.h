// Softmax, its logarithm, and the gradients of both, along one axis. Sums are in the
// order of reductions.
#pragma once

#include "functions.h"
#include "order.h"

ES_NAMESPACE {

// The largest element. NaN is passed over: it makes the sum of exponentials NaN, and with it every output.
template <class X>
ES_FN float largest(int64_t length, X x) {
  float most = -kInfinity;
  for (int64_t i = 0; i < length; ++i) most = x(i) > most ? x(i) : most;
  return most;
}

template <class X>
ES_FN float sum_of_exponentials(int64_t length, X x, float most) {
  return reduce<float>(length, [&](float total, int64_t i) { return total + exponential(x(i) - most); });
}

ES_FN float softmax(float x, float most, float sum) { return divide(exponential(x - most), sum); }
// `log_sum` is the logarithm of the sum.
ES_FN float log_softmax(float x, float most, float log_sum) { return (x - most) - log_sum; }

// `dot`: the sum of gradient * output, by fma.
ES_FN float softmax_gradient(float gradient, float output, float dot) { return (gradient - dot) * output; }
// `sum`: that of the gradients.
ES_FN float log_softmax_gradient(float gradient, float output, float sum) {
  return fma(-exponential(output), sum, gradient);
}

}
ES_NAMESPACE_END
