// Reductions of strided arrays of floats, and running sums, in the orders of exact/reduction.h.
#pragma once

#include "isa.h"

namespace es {

constexpr int kMostAxes = 64;

// One axis of what is reduced or kept. Strides count elements; 0 is an expanded axis.
struct Axis {
  int64_t size, stride;
  int64_t out;  // stride in the output, of a kept axis
};

// out[kept] = reduction over the reduced axes. Their order is the logical one, outermost first: it decides the order of
// accumulation. That of the kept axes does not matter but for speed: the one with the smallest stride comes last.
struct Reduction {
  const void* in;
  void* out;
  int kept_axes, reduced_axes;
  Axis kept[kMostAxes], reduced[kMostAxes];
};

// Contiguous arrays of element (o, l, i): a running sum goes along l.
struct RunningLines {
  const float* in;
  float* out;
  int64_t outer, length, inner;
};

struct Reduce {
  void (*sum)(const Reduction&);
  void (*sum_of_numbers)(const Reduction&);
  void (*sum_of_magnitudes)(const Reduction&);
  void (*sum_of_squares)(const Reduction&);
  void (*count_of_nonzeros)(const Reduction&);
  void (*product)(const Reduction&);
  void (*maximum)(const Reduction&);
  void (*minimum)(const Reduction&);
  void (*maximum_magnitude)(const Reduction&);
  void (*minimum_magnitude)(const Reduction&);
  void (*sum_of_doubles)(const Reduction&);  // in and out are double, and so is all arithmetic
  void (*maximum_of_doubles)(const Reduction&);
  void (*minimum_of_doubles)(const Reduction&);
  void (*square_roots)(float* inout, int64_t count);
  void (*running_sum)(const RunningLines&);
  void (*running_product)(const RunningLines&);
};

}

ES_NAMESPACE {

static inline int64_t volume(const Axis* axes, int count) {
  int64_t size = 1;
  for (int a = 0; a < count; ++a) size *= axes[a].size;
  return size;
}

// Where element `index` of the axes lies, the last of which is the fastest, in the input and in the output.
struct Offsets {
  int64_t in, out;
};
ES_FN Offsets offsets_of(const Axis* axes, int count, int64_t index) {
  Offsets found = {0, 0};
  for (int a = count - 1; a > 0; --a) {
    int64_t at = index % axes[a].size;
    index /= axes[a].size;
    found.in += at * axes[a].stride;
    found.out += at * axes[a].out;
  }
  if (count) found = {found.in + index * axes[0].stride, found.out + index * axes[0].out};
  return found;
}

}
ES_NAMESPACE_END

ES_TABLE(Reduce, reduce_kernels)
