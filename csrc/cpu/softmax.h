// Softmax and log-softmax along the middle axis of a contiguous array, and their gradients; see exact/softmax.h.
#pragma once

#include "isa.h"

namespace es {

struct SoftmaxForward {
  const float* in;
  float* out;  // does not overlap `in`
  int64_t outer, length, inner;
};

struct SoftmaxBackward {
  const float *gradient, *output;
  float* out;
  int64_t outer, length, inner;
};

struct Softmax {
  void (*softmax)(const SoftmaxForward&);
  void (*log_softmax)(const SoftmaxForward&);
  void (*softmax_gradient)(const SoftmaxBackward&);
  void (*log_softmax_gradient)(const SoftmaxBackward&);
};

}
ES_TABLE(Softmax, softmax_kernels)
