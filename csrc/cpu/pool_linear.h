// Upsampling by linear interpolation in up to three dimensions.
#pragma once

#include "isa.h"

namespace es {

// Contiguous (planes, from[0], from[1], from[2]) and (planes, to[0], to[1], to[2]). The first 3 - `dimensions` have
// size 1 and are not interpolated.
struct Linear {
  int64_t planes, dimensions, from[3], to[3];
  float scale[3];
  bool align_corners;
};

struct PoolLinear {
  void (*forward)(const Linear&, const float* in, float* out);
  void (*backward)(const Linear&, const float* grad, float* grad_in);  // overwrites grad_in
};

}
ES_TABLE(PoolLinear, pool_linear)
