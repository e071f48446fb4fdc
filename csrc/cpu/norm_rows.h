// Pieces of the norms: statistics of what lies in one piece or in segments, and sums over rows by column.
#pragma once

#include "../exact/norm.h"
#include "../exact/reduction.h"
#include "parallel.h"
#include "reduce_columns.h"
#include "reduce_lanes.h"
#include "scratch.h"

ES_NAMESPACE {

struct SumStep {
  const float* x;
  template <class Extent>
  ES_FN void operator()(vfloat* totals, int64_t at, Extent part) const {
    totals[0] += get(x + at, part, 0);
  }
};

struct SquareStep {
  const float* x;
  float mean;
  template <class Extent>
  ES_FN void operator()(vfloat* totals, int64_t at, Extent part) const {
    vfloat distance = keep(get(x + at, part, 0) - mean, part);
    totals[0] = fma(distance, distance, totals[0]);
  }
};

// The sums of g and of g * normal.
struct GradientStep {
  const float *g, *x;
  float mean, inverse;
  template <class Extent>
  ES_FN void operator()(vfloat* totals, int64_t at, Extent part) const {
    vfloat gradient = get(g + at, part, 0), normals = keep((get(x + at, part, 0) - mean) * inverse, part);
    totals[0] += gradient;
    totals[1] = fma(gradient, normals, totals[1]);
  }
};

// A channel of (batch, channels, positions): its elements in the order of (batch, position), block by block.
struct Channel {
  int64_t batch, channels, positions, index;

  int64_t length() const { return batch * positions; }
  int64_t place(int64_t n) const { return (n * channels + index) * positions; }

  // `f(n, from, count, at)`: elements of batch number n, at `from` in the array, which are at, at + 1, .. of the block.
  template <class F>
  ES_FN void segments(int64_t start, int64_t end, F f) const {
    for (int64_t i = start; i < end;) {
      int64_t n = i / positions, position = i % positions, rest = positions - position;
      int64_t count = rest < end - i ? rest : end - i;
      f(n, place(n) + position, count, i - start);
      i += count;
    }
  }

  // The block's elements, side by side: where they are, or copied to `scratch`.
  const float* block(const float* x, int64_t start, int64_t end, float* scratch) const {
    if (start / positions == (end - 1) / positions) return x + place(start / positions) + start % positions;
    segments(start, end, [&](int64_t, int64_t from, int64_t count, int64_t at) {
      memcpy(scratch + at, x + from, 4 * (size_t)count);
    });
    return scratch;
  }

  // K sums over the channel; `step(start, end)` makes the step of a block.
  template <int K, class Step>
  ES_FN void sums(Step step, float (&out)[K]) const {
    PairwiseSum<float> blocks[K];
    for (int64_t start = 0; start < length(); start += kBlock) {
      int64_t end = length() - start < kBlock ? length() : start + kBlock;
      float block[K];
      reduce_row<K>(end - start, step(start, end), block);
      for (int k = 0; k < K; ++k) blocks[k].add(block[k]);
    }
    for (int k = 0; k < K; ++k) out[k] = blocks[k].result();
  }
};

// out[k][column] = K sums over the rows of each column; `step(totals, row, at, part)` as for `accumulate_columns`. With
// `prepare(begin, end)`, that is done with every 64 rows right before they are added up, while they are in the cache.
struct Nothing {
  void operator()(int64_t, int64_t) const {}
};
template <int K, class Step, class Prepare = Nothing>
static inline void sum_columns(int64_t rows, int64_t columns, Step step, float* const (&out)[K],
                               Prepare prepare = Nothing{}) {
  using Lanes = ColumnLanes<K>;
  constexpr bool kPrepares = !__is_same(Prepare, Nothing);
  int64_t blocks = (rows + kBlock - 1) / kBlock, strips = (columns + Lanes::kColumns - 1) / Lanes::kColumns;
  if (blocks == 0) {
    for (int k = 0; k < K; ++k) memset(out[k], 0, 4 * (size_t)columns);
    return;
  }
  Scratch sums(K * blocks * columns);
  float* partial = sums.data();
  int64_t most = rows < kBlock ? rows : kBlock, width = columns < Lanes::kColumns ? columns : Lanes::kColumns;
  int64_t together = kPrepares ? strips : 1;  // strips of a task
  parallel_for(blocks * strips / together, 1 + 16384 / (most * width), [&](int64_t begin, int64_t end) {
    Scratch hold(together * (int64_t)(sizeof(Lanes) / sizeof(float)));
    Lanes* lanes = hold.as<Lanes>();
    for (int64_t task = begin; task < end; ++task) {
      int64_t b = task * together / strips, first = task * together % strips;
      int64_t start = b * kBlock, height = rows - start < kBlock ? rows - start : kBlock;
      auto each_strip = [&](auto f) {
        for (int64_t s = first; s < first + together; ++s) {
          int64_t column = s * Lanes::kColumns;
          f(lanes[s - first], column, columns - column < Lanes::kColumns ? columns - column : Lanes::kColumns);
        }
      };
      int64_t rise = kPrepares ? 4 * kLanes : height;
      for (int64_t row = 0; row < height; row += rise) {
        int64_t top = height - row < rise ? height : row + rise;
        prepare(start + row, start + top);
        each_strip([&](Lanes& strip, int64_t column, int64_t count) {
          add_rows<K>(strip, row, top, count, 0.0f, [&](vfloat* totals, int64_t row, int64_t at, auto part) {
            step(totals, start + row, column + at, part);
          });
        });
      }
      each_strip([&](Lanes& strip, int64_t column, int64_t count) {
        float* to[K];
        for (int k = 0; k < K; ++k) to[k] = partial + (b * K + k) * columns + column;
        join_lanes<K, Sum>(strip, height, count, 0.0f, to);
      });
    }
  });
  for (int k = 0; k < K; ++k)
    for (int64_t c = 0; c < columns; ++c) {
      PairwiseSum<float> total;
      for (int64_t b = 0; b < blocks; ++b) total.add(partial[(b * K + k) * columns + c]);
      out[k][c] = total.result();
    }
}

}
ES_NAMESPACE_END
