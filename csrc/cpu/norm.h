// Layer and group norm of contiguous floats; see exact/norm.h. `weight` and `bias` may both be null: 1 and 0.
#pragma once

#include "isa.h"

namespace es {

// `rows` rows of `length`, a weight and a bias for each place of a row.
struct LayerNorm {
  int64_t rows, length;
  const float *x, *weight, *bias;
  float epsilon;
  float *y, *mean, *inverse;  // `mean` and `inverse` by row
};
struct LayerNormBackward {
  int64_t rows, length;
  const float *gradient, *x, *weight, *mean, *inverse;
  float *dx, *dweight, *dbias;  // each may be null: it is not wanted
};

// (batch, channels, positions), statistics for each of `groups` in each of the batch.
struct GroupNorm {
  int64_t batch, channels, positions, groups;
  const float *x, *weight, *bias;
  float epsilon;
  float *y, *mean, *inverse;  // by (batch, group)
};
struct GroupNormBackward {
  int64_t batch, channels, positions, groups;
  const float *gradient, *x, *weight, *mean, *inverse;
  float *dx, *dweight, *dbias;
};

struct Norm {
  void (*layer_norm)(const LayerNorm&);
  void (*layer_norm_backward)(const LayerNormBackward&);
  void (*group_norm)(const GroupNorm&);
  void (*group_norm_backward)(const GroupNormBackward&);
};

}
ES_TABLE(Norm, norm_kernels)
