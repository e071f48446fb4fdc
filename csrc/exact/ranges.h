// Elements of arange and linspace, in binary64 whatever the tensor's type; who stores them rounds.
#pragma once

#include "base.h"

ES_NAMESPACE {

ES_FN double arange_element(double start, double step, int64_t i) { return start + step * (double)i; }

// Symmetric: both ends are met exactly. `steps` is the number of elements.
ES_FN double linspace_element(double start, double end, int64_t steps, int64_t i) {
  if (steps == 1) return start;
  double step = (end - start) / (double)(steps - 1);
  return i < steps / 2 ? start + step * (double)i : end - step * (double)(steps - 1 - i);
}

}
ES_NAMESPACE_END
