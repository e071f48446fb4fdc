// A pointwise operator over elements that lie in any way: what cpu/pointwise.h's table has no word for, since on a CPU
// ATen's iterator walks.
#pragma once

#include "../cpu/pointwise.h"

namespace es {

constexpr int kMostDimensions = 8;

// Operand o (the result first) of element (i0, i1, ...), the first of which vary fastest, is at data[o] + the sum of
// i[d] * strides[o][d] bytes; or it is the number constants[o], where data[o] is null.
struct Shaped {
  int dimensions;
  int64_t sizes[kMostDimensions];
  int64_t strides[4][kMostDimensions];
  char* data[4];
  float constants[4];
};

__attribute__((weak)) void pointwise_shaped(const PointJob& job, const Shaped& shaped);

}
