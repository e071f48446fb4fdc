// Values put together where an index says, see exact/scatter.h.
#pragma once

#include "../exact/order.h"
#include "../exact/scatter.h"
#include "isa.h"

namespace es {

// For each position p = 0 .. count - 1 in this order: row to[p] of `out` is combined with row source[p] of `from`.
// Rows are `width` floats, one after the other. All rows are in range; a negative to[p] is left out. All of it again
// for each of `batches` of `places` rows of `out` and (without `source`) `count` rows of `from`.
struct Rows {
  int64_t batches, count, width, places;
  const int64_t* to;
  const int64_t* source;  // null: p
  const float* from;
  const float* scale;  // by position, for Combine::add; null: none
  float* out;
};

// index and from: (outer, length, inner), contiguous. In this order of k:
// out[o * outer_stride + index(o, k, i) * place_stride + i] is combined with from(o, k, i). `out` ends with the last
// outer_stride.
struct Lines {
  int64_t outer, length, inner;
  const int64_t* index;
  const float* from;
  float* out;
  int64_t outer_stride, place_stride;
};

// All use threads inside.
struct Scatter {
  void (*rows)(const Rows&, int how);  // a Combine
  // The same for any type, `width` in bytes: row to[p] becomes row p, in this order, so the last one stays.
  void (*assign)(int64_t batches, int64_t count, int64_t width, int64_t places, const int64_t* to, const char* from,
                 char* out);
  void (*lines)(const Lines&, int how);
  // The same for any type, of `size` bytes (up to 16): what is said of `combined` above is assigned, so the last one stays.
  void (*assign_lines)(const Lines&, int64_t size, const char* from, char* out);
  // out[p] = the contraction (exact/order.h) of row a_row[p] of a and row b_row[p] of b; 0 where a_row[p] is negative.
  void (*dots)(int64_t count, int64_t width, const float* a, const int64_t* a_row, const float* b, const int64_t* b_row,
               float* out);
  // Places are numbered in row-major order: out[p] = before[p] * size + index[p], a negative index counting from the end.
  // Without `before` it is the first dimension.
  void (*number)(int64_t count, int64_t size, const int64_t* index, const int64_t* before, int64_t* out);
  bool (*in_range)(const int64_t* index, int64_t count, int64_t lowest, int64_t end);
};

}

ES_NAMESPACE {

ES_FN int64_t numbered(int64_t before, int64_t size, int64_t index) {
  return before * size + index + (index < 0 ? size : 0);
}

// One of `dots`.
ES_FN float dot_of(int64_t width, const float* a, int64_t a_row, const float* b, int64_t b_row) {
  if (a_row < 0) return 0;
  const float *left = a + a_row * width, *right = b + b_row * width;
  return contract(width, [=](int64_t k) { return left[k]; }, [=](int64_t k) { return right[k]; });
}

}
ES_NAMESPACE_END

ES_TABLE(Scatter, scatter)
