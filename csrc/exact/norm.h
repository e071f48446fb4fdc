// Layer, group and batch norm. Statistics are two passes in the order of reductions: the mean, then the squares of the
// distances from it. An output is fma(normal, weight, bias); a missing weight is 1, a missing bias +0.
#pragma once

#include "order.h"

ES_NAMESPACE {

template <class X>
ES_FN float mean_of(int64_t n, X x) {
  return divide(reduce<float>(n, [&](float total, int64_t i) { return total + x(i); }), (float)n);
}

// The sum of squared distances; divided by n it is the variance.
template <class X>
ES_FN float squared_distances(int64_t n, X x, float mean) {
  return reduce<float>(n, [&](float total, int64_t i) { return fma(x(i) - mean, x(i) - mean, total); });
}

ES_FN float inverse_deviation(float variance, float epsilon) { return divide(1.0f, square_root(variance + epsilon)); }

ES_FN float normal(float x, float mean, float inverse) { return (x - mean) * inverse; }
ES_FN float affine(float normal, float weight, float bias) { return fma(normal, weight, bias); }

// The gradient of x. `sum` and `dot` are the sums of the gradients g and of g * normal (by fma), divided by n.
// Layer and group norm: g = gradient * weight, scale = inverse. Batch norm: g = gradient, scale = inverse * weight.
ES_FN float norm_gradient(float g, float normal, float sum, float dot, float scale) {
  return fma(-normal, dot, g - sum) * scale;
}

// Running statistics; `rest` is 1 - momentum, rounded from binary64, as is `momentum`.
ES_FN float running_statistic(float before, float now, float momentum, float rest) {
  return fma(momentum, now, rest * before);
}

}
ES_NAMESPACE_END
