// The orders of accumulation. They are the specification (docs/numerics.md): functions of logical lengths alone, never
// of threads, tiles, layout, batch or instruction set. The functions here are the definition, one element at a time;
// kernels may group the work in any way that gives the same bits.
#pragma once

#include "base.h"

ES_NAMESPACE {

// Contractions (matrix products, convolutions, attention): within chunks of this many, one chain of fma in ascending k.
constexpr int64_t kChunk = 512;

// Reductions (sums, norms, statistics): blocks of this many, in each of which element i is added to lane i % kLanes.
constexpr int64_t kBlock = 1024;
constexpr int64_t kLanes = 16;

// Pairwise sum of a sequence: neighbours 2i and 2i+1 are added, an odd one out is kept, until one is left. As a stack:
// after n elements it holds one sum for each set bit of n, largest first. An empty one is +0.
template <class T, int kLevels = 44>
struct PairwiseSum {
  T level[kLevels];
  int height = 0;
  uint64_t count = 0;

  ES_FN void add(T x) {
    for (uint64_t rest = count++; rest & 1; rest >>= 1) x = level[--height] + x;
    level[height++] = x;
  }
  ES_FN T result() const {
    if (height == 0) return T{};
    T x = level[height - 1];
    for (int i = height - 2; i >= 0; --i) x = level[i] + x;
    return x;
  }
};

// sum over k of a(k) * b(k). Each chunk's chain begins with +0.
template <class A, class B>
ES_FN float contract(int64_t length, A a, B b) {
  PairwiseSum<float> chunks;
  for (int64_t start = 0; start < length; start += kChunk) {
    int64_t end = start + kChunk < length ? start + kChunk : length;
    float chain = 0;
    for (int64_t k = start; k < end; ++k) chain = fma(a(k), b(k), chain);
    chunks.add(chain);
  }
  return chunks.result();
}

// The lanes of a block, added pairwise: l and l + 8, then + 4, + 2, + 1.
template <class T>
ES_FN T sum_lanes(T* lane) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
  return lane[0];
}

// Accumulation over i by `step(accumulator, i)`, which begins with +0: addition of x(i) for a sum, fma(x(i), x(i), acc)
// for a sum of squares. T is float (double where an operator says so).
template <class T, class Step>
ES_FN T reduce(int64_t length, Step step) {
  PairwiseSum<T> blocks;
  for (int64_t start = 0; start < length; start += kBlock) {
    int64_t end = start + kBlock < length ? start + kBlock : length;
    T lane[kLanes] = {};
    for (int64_t i = start; i < end; ++i) lane[i % kLanes] = step(lane[i % kLanes], i);
    blocks.add(sum_lanes(lane));
  }
  return blocks.result();
}

}
ES_NAMESPACE_END
