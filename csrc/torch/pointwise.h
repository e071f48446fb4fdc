// Runs a pointwise operator of exact/pointwise.h over a TensorIterator: any shapes, strides and floating types of ours.
#pragma once

#include "../cpu/pointwise.h"
#include "registry.h"

namespace es::glue {

// float32, bfloat16 or float16; anything else is refused.
inline Element element(at::ScalarType type, const char* what) {
  switch (type) {
    case at::kFloat:
      return Element::float32;
    case at::kBFloat16:
      return Element::bfloat16;
    case at::kHalf:
      return Element::float16;
    default:
      refuse(what, c10::str("it is not specified for ", type, "; use float32, bfloat16 or float16"));
  }
}

struct Numbers {
  float c[4] = {};
};

inline void run(at::TensorIteratorBase& iter, Point point, const char* what, Numbers numbers = {}) {
  PointJob job{point, {}, {numbers.c[0], numbers.c[1], numbers.c[2], numbers.c[3]}};
  const Pointwise& kernels = pointwise();
  TORCH_INTERNAL_ASSERT(iter.ntensors() == kernels.inputs(point) + 1, what);
  for (int o = 0; o < iter.ntensors(); ++o) job.types[o] = element(iter.dtype(o), what);
  iter.for_each([&](char** data, const int64_t* strides, int64_t count) { kernels.strided(job, data, strides, count); });
}

}
