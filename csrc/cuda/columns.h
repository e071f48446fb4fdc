// Sums over the rows of each column: a thread has a block of a column, and blocks are joined afterwards.
#pragma once

#include "rows.h"

ES_NAMESPACE {

// partial: (sum, block, column).
template <int kSums, class Step>
ES_KERNEL void ES_THREADS(kRowThreads) column_blocks_kernel(int64_t rows, int64_t columns, Step step, float* partial) {
  const int64_t blocks = (rows + kBlock - 1) / kBlock, stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t task = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; task < blocks * columns; task += stride) {
    const int64_t block = task / columns, column = task % columns, start = block * kBlock;
    float sums[kSums];
    sum_alone<kSums>(
        rows - start < kBlock ? rows - start : kBlock,
        [&](float* totals, int64_t i) { step(totals, start + i, column); }, sums);
    for (int s = 0; s < kSums; ++s) partial[(s * blocks + block) * columns + column] = sums[s];
  }
}

template <int kSums>
struct Outputs {
  float* out[kSums];
};

template <int kSums>
ES_KERNEL void ES_THREADS(kRowThreads)
    join_columns_kernel(int64_t blocks, int64_t columns, const float* partial, Outputs<kSums> outputs) {
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; column < columns; column += stride)
    for (int s = 0; s < kSums; ++s) {
      PairwiseSum<float, 32> all;
      for (int64_t b = 0; b < blocks; ++b) all.add(partial[(s * blocks + b) * columns + column]);
      if (outputs.out[s]) outputs.out[s][column] = all.result();
    }
}

// `step(totals, row, column)` adds an element to all sums. An output that is null is not wanted.
template <int kSums, class Step>
static void sum_columns(int64_t rows, int64_t columns, Step step, Outputs<kSums> outputs) {
  if (columns == 0) return;
  const int64_t blocks = (rows + kBlock - 1) / kBlock, tasks = blocks * columns;
  Memory partial((size_t)(kSums * tasks) * sizeof(float));
  auto grid = [](int64_t threads) { return blocks_for((threads + kRowThreads - 1) / kRowThreads); };
  if (tasks)
    ES_LAUNCH(grid(tasks), kRowThreads, (column_blocks_kernel<kSums, Step>), rows, columns, step, partial.as<float>());
  ES_LAUNCH(grid(columns), kRowThreads, join_columns_kernel<kSums>, blocks, columns, partial.as<float>(), outputs);
}

// `f(i)` for each i < count.
template <class F>
ES_KERNEL void ES_THREADS(kRowThreads) each_kernel(int64_t count, F f) {
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) f(i);
}

template <class F>
static void for_each(int64_t count, F f) {
  if (count) ES_LAUNCH(blocks_for((count + kRowThreads - 1) / kRowThreads), kRowThreads, each_kernel<F>, count, f);
}

}
ES_NAMESPACE_END
