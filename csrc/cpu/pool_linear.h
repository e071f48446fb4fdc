// Upsampling by linear interpolation in up to three dimensions.
#pragma once

#include "../exact/pool_linear.h"
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

ES_NAMESPACE {

// The neighbours of an output position along a dimension, and one result from the corners around it.
ES_FN Between along(const es::Linear& l, int dimension, int64_t output) {
  if (dimension < 3 - l.dimensions) return {0, 0, 1, 0};
  return between(output, l.from[dimension], l.scale[dimension], l.align_corners);
}

ES_FN float between_corners(const es::Linear& l, const float* plane, const Between& d, const Between& h,
                            const Between& w) {
  auto line = [&](int64_t i, int64_t j) {
    const float* row = plane + (i * l.from[1] + j) * l.from[2];
    return interpolate(w, row[w.low], row[w.high]);
  };
  auto sheet = [&](int64_t i) {
    return l.dimensions < 2 ? line(i, 0) : interpolate(h, line(i, h.low), line(i, h.high));
  };
  return l.dimensions < 3 ? sheet(0) : interpolate(d, sheet(d.low), sheet(d.high));
}

ES_FN int64_t volume(const int64_t* size) { return size[0] * size[1] * size[2]; }

}
ES_NAMESPACE_END

ES_TABLE(PoolLinear, pool_linear)
