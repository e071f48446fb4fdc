// A block of a reduction over rows: many columns at once, side by side in vectors, the 16 lanes of each in memory that
// stays in the first-level cache. Rows are read nearly in order, four of one lane at a time.
#pragma once

#include "../exact/order.h"
#include "reduce_lanes.h"

ES_NAMESPACE {

// The lanes of K totals, 32 KB.
template <int K>
struct ColumnLanes {
  static constexpr int64_t kColumns = 512 / K;
  alignas(64) float at[K][kLanes][kColumns];
};

// Rows begin .. end of a block go to the lanes; `begin` is a multiple of 64, and 0 starts a block. `step(totals, row,
// at, part)` adds a row's elements of columns at, at + 1, .. to `vfloat totals[K]`.
template <int K, class Step>
ES_FN void add_rows(ColumnLanes<K>& lanes, int64_t begin, int64_t end, int64_t columns, float init, Step step) {
  for (int64_t group = begin; group < end; group += 4 * kLanes)
    for (int64_t l = 0; l < kLanes && group + l < end; ++l) {
      int64_t row = group + l;
      bool four = row + 3 * kLanes < end;
      each(columns, [&](int64_t at, auto part) {
        vfloat totals[K];
        for (int k = 0; k < K; ++k) totals[k] = group ? load(&lanes.at[k][l][at]) : broadcast(init);
        step(totals, row, at, part);
        if (four) {
          step(totals, row + kLanes, at, part);
          step(totals, row + 2 * kLanes, at, part);
          step(totals, row + 3 * kLanes, at, part);
        } else {
          for (int64_t r = row + kLanes; r < end; r += kLanes) step(totals, r, at, part);
        }
        for (int k = 0; k < K; ++k) store(&lanes.at[k][l][at], totals[k]);
      });
    }
}

// The lanes of a block of `rows`, joined by Combine, to out[k][column]. A lane that no row went to holds `init`.
template <int K, class Combine>
ES_FN void join_lanes(const ColumnLanes<K>& lanes, int64_t rows, int64_t columns, float init, float* const (&out)[K]) {
  for (int k = 0; k < K; ++k)
    each(columns, [&](int64_t at, auto part) {
      vfloat lane[kLanes];
#pragma GCC unroll 16
      for (int64_t l = 0; l < kLanes; ++l) lane[l] = l < rows ? load(&lanes.at[k][l][at]) : broadcast(init);
#pragma GCC unroll 4
      for (int64_t half = kLanes / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int64_t l = 0; l < half; ++l) lane[l] = Combine::combine(lane[l], lane[l + half]);
      put(out[k] + at, lane[0], part);
    });
}

// K totals over `rows` <= kBlock rows of each of `columns` <= kColumns columns, to out[k][column].
template <int K, class Combine, class Step>
ES_FN void accumulate_columns(ColumnLanes<K>& lanes, int64_t rows, int64_t columns, float init, Step step,
                              float* const (&out)[K]) {
  add_rows<K>(lanes, 0, rows, columns, init, step);
  join_lanes<K, Combine>(lanes, rows, columns, init, out);
}

}
ES_NAMESPACE_END
