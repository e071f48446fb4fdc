// Runs a pointwise operator of exact/pointwise.h over a TensorIterator: any shapes, strides and floating types of ours.
#pragma once

#include "../cpu/pointwise.h"
#include "registry.h"

namespace es::glue {

struct Numbers {
  float c[4] = {};
};

// The same for tensors on a device.
void run_on_device(at::TensorIteratorBase& iter, PointJob job, const char* what);

inline void run(at::TensorIteratorBase& iter, Point point, const char* what, Numbers numbers = {}) {
  PointJob job{point, {}, {numbers.c[0], numbers.c[1], numbers.c[2], numbers.c[3]}};
  const Pointwise& kernels = pointwise();
  TORCH_INTERNAL_ASSERT(iter.ntensors() == kernels.inputs(point) + 1, what);
  if (on_device()) return run_on_device(iter, job, what);
  for (int o = 0; o < iter.ntensors(); ++o) job.types[o] = element_or_refuse(iter.dtype(o), what);
  iter.for_each([&](char** data, const int64_t* strides, int64_t count) { kernels.strided(job, data, strides, count); });
}

}
