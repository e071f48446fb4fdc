// Batch norm of contiguous floats; see exact/norm.h. `weight` and `bias` may both be null: 1 and 0.
#pragma once

#include "isa.h"

namespace es {

// (batch, channels, positions), or (batch * positions, channels) if the channels are last; statistics by channel.
struct Images {
  int64_t batch, channels, positions;
  bool channels_last;
};
struct BatchNorm {
  Images shape;
  const float *x, *weight, *bias;
  float* y;
  const float *mean, *inverse;
};
struct BatchStatistics {
  Images shape;
  const float* x;
  float epsilon, momentum, rest;  // rest = 1 - momentum
  float *mean, *inverse;
  float *running_mean, *running_variance;  // each may be null
};
struct BatchNormBackward {
  Images shape;
  const float *gradient, *x, *weight, *mean, *inverse;
  bool training;  // whether mean and inverse are functions of x
  float *dx, *dweight, *dbias;  // `dx` may be null
};

struct BatchNorms {
  void (*statistics)(const BatchStatistics&);
  void (*forward)(const BatchNorm&);
  void (*backward)(const BatchNormBackward&);
  // out[i] = 1 / sqrt(variance[i] + epsilon)
  void (*inverse_deviations)(const float* variance, float epsilon, float* out, int64_t count);
};

}
ES_TABLE(BatchNorms, batch_norm_kernels)
