// Elements of arange and linspace, see exact/ranges.h.
#pragma once

#include "isa.h"

namespace es {

// Elements 0 .. count - 1, of which linspace has as many. Doubles are rounded once to floats.
struct Ranges {
  void (*arange)(int64_t count, double start, double step, float* out);
  void (*arange_of_doubles)(int64_t count, double start, double step, double* out);
  void (*linspace)(int64_t count, double start, double end, float* out);
  void (*linspace_of_doubles)(int64_t count, double start, double end, double* out);
};

}
ES_TABLE(Ranges, ranges)
