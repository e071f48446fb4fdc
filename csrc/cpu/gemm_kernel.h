// The heart of matrix products and convolutions: one tile of the output, one chunk of k, in registers.
//
// Panels. What a tile reads is copied ("packed") into panels first, by whoever knows where it lies in memory:
//   of the left matrix, `rows` <= kRows rows:           element (i, k) is panel[k * rows + i];
//   of the right matrix, `columns` <= kColumns columns: element (k, j) is panel[k * width + j], where `width` is
//   `padded(columns)`, and columns beyond are zero.
// Each output's chain runs in its own element of a register, k ascending from +0. The chunks of a tile are added up as
// PairwiseSum does, by a stack of tiles in memory: see ChunkStep.
#pragma once

#include "../exact/order.h"
#include "simd.h"

ES_NAMESPACE {

#if defined(__AVX512F__)
constexpr int kRows = 14, kVectors = 2;
#elif defined(__AVX2__)
constexpr int kRows = 6, kVectors = 2;
#elif defined(__aarch64__)
constexpr int kRows = 12, kVectors = 2;
#else
constexpr int kRows = 4, kVectors = 2;
#endif
constexpr int kColumns = kVectors * kWidth;

ES_FN int64_t padded(int64_t columns) { return (columns + kWidth - 1) / kWidth * kWidth; }

// What happens to the sum of chunk number `chunk` of `chunks`: it is added to the `merges` topmost of the `height` that
// are on the stack, topmost first. The result is the end for the last chunk, and for the others is pushed.
struct ChunkStep {
  int height, merges;
  bool last;
  ES_FN ChunkStep(int64_t chunk, int64_t chunks)
      : height(__builtin_popcountll(chunk)),
        merges(chunk == chunks - 1 ? height : __builtin_ctzll(~chunk)),
        last(chunk == chunks - 1) {}
};

// How many tiles a stack must hold.
ES_FN int stack_height(int64_t chunks) {
  int height = 0;
  while (((int64_t)1 << height) < chunks) ++height;
  return height;
}

// One tile, one chunk.
struct Tile {
  int64_t length;           // of the chunk
  const float *a, *b;       // panels
  int64_t a_row, a_k, b_k;  // element (i, k) of the left one: a[i * a_row + k * a_k]; right (k, j): b[k * b_k + j]
  const float* stack;       // the topmost sum on the stack; the one below is `below` before it; rows are kColumns apart
  int64_t below;
  int merges;
  float* out;  // where the sum goes, rows `out_row` apart
  int64_t out_row;
  int64_t columns;  // those beyond are not written
};

template <int kTileRows, int kTileVectors, bool kPacked>
static void tile_kernel(const Tile& t) {
  vfloat sum[kTileRows][kTileVectors] = {};
  const float *a = t.a, *b = t.b;
  const int64_t a_row = kPacked ? 1 : t.a_row, a_k = kPacked ? kTileRows : t.a_k;
  const int64_t b_k = kPacked ? kTileVectors * kWidth : t.b_k;
  for (int64_t k = t.length; k > 0; --k) {
    vfloat right[kTileVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) {
      right[v] = load(b + v * kWidth);
      if (kPacked) __builtin_prefetch(b + 8 * b_k + v * kWidth);  // panels are in the L2 cache
    }
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i) {
      vfloat left = broadcast(a[i * a_row]);
#pragma GCC unroll 16
      for (int v = 0; v < kTileVectors; ++v) sum[i][v] = fma(left, right[v], sum[i][v]);
    }
    a += a_k;
    b += b_k;
  }
  const float* stack = t.stack;
  for (int merge = 0; merge < t.merges; ++merge, stack -= t.below) {
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i)
#pragma GCC unroll 16
      for (int v = 0; v < kTileVectors; ++v) sum[i][v] = load(stack + i * kColumns + v * kWidth) + sum[i][v];
  }
  float* out = t.out;
  const int64_t tail = t.columns - (kTileVectors - 1) * kWidth;
#pragma GCC unroll 16
  for (int i = 0; i < kTileRows; ++i, out += t.out_row) {
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors - 1; ++v) store(out + v * kWidth, sum[i][v]);
    float* last = out + (kTileVectors - 1) * kWidth;
    if (tail == kWidth)
      store(last, sum[i][kTileVectors - 1]);
    else
      store_some(last, sum[i][kTileVectors - 1], tail);
  }
}

// The kernel for a tile of `rows` and `columns`.
using TileKernel = void (*)(const Tile&);

template <int kTileVectors, bool kPacked, int kTileRows = kRows>
static TileKernel kernel_of_rows(int64_t rows) {
  if constexpr (kTileRows > 1)
    if (rows < kTileRows) return kernel_of_rows<kTileVectors, kPacked, kTileRows - 1>(rows);
  return tile_kernel<kTileRows, kTileVectors, kPacked>;
}

template <bool kPacked>
static TileKernel tile_kernel_for(int64_t rows, int64_t columns) {
  static_assert(kVectors == 2);
  return columns > kWidth ? kernel_of_rows<2, kPacked>(rows) : kernel_of_rows<1, kPacked>(rows);
}

}
ES_NAMESPACE_END
