// Sums over the rows of each column: a thread has a block of a column, and blocks are joined afterwards.
#pragma once

#include "rows.h"

ES_NAMESPACE {

// partial: (sum, block, column).
template <int kSums, class Step>
ES_KERNEL void ES_THREADS(kThreads) column_blocks_kernel(int64_t rows, int64_t columns, Step step, float* partial) {
  const int64_t blocks = (rows + kBlock - 1) / kBlock;
  ES_EACH(task, blocks * columns) {
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
ES_KERNEL void ES_THREADS(kThreads)
    join_columns_kernel(int64_t blocks, int64_t columns, const float* partial, Outputs<kSums> outputs) {
  ES_EACH(column, columns)
    for (int s = 0; s < kSums; ++s) {
      PairwiseSum<float, 32> all;
      for (int64_t b = 0; b < blocks; ++b) all.add(partial[(s * blocks + b) * columns + column]);
      if (outputs.out[s]) outputs.out[s][column] = all.result();
    }
}

#if ES_HOST

// `step(totals, row, column)` adds an element to all sums. An output that is null is not wanted.
template <int kSums, class Step>
static void sum_columns(int64_t rows, int64_t columns, Step step, Outputs<kSums> outputs) {
  if (columns == 0) return;
  const int64_t blocks = (rows + kBlock - 1) / kBlock, tasks = blocks * columns;
  Memory partial((size_t)(kSums * tasks) * sizeof(float));
  if (tasks)
    ES_LAUNCH(blocks_for_threads(tasks), kThreads, (column_blocks_kernel<kSums, Step>), rows, columns, step,
              partial.as<float>());
  ES_LAUNCH(blocks_for_threads(columns), kThreads, join_columns_kernel<kSums>, blocks, columns, partial.as<float>(),
            outputs);
}

#endif

}
ES_NAMESPACE_END
