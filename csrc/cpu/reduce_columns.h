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

// K totals over `rows` <= kBlock rows of each of `columns` <= kColumns columns, to out[k][column]. `step(totals, row, at,
// part)` adds a row's elements of columns at, at + 1, .. to `vfloat totals[K]`; Combine joins lanes.
template <int K, class Combine, class Step>
ES_FN void accumulate_columns(ColumnLanes<K>& lanes, int64_t rows, int64_t columns, float init, Step step,
                              float* const (&out)[K]) {
  int64_t used = rows < kLanes ? rows : kLanes;
  for (int64_t group = 0; group < rows; group += 4 * kLanes)
    for (int64_t l = 0; l < kLanes && group + l < rows; ++l) {
      int64_t row = group + l;
      bool four = row + 3 * kLanes < rows;
      each(columns, [&](int64_t at, auto part) {
        vfloat totals[K];
        for (int k = 0; k < K; ++k) totals[k] = group ? load(&lanes.at[k][l][at]) : broadcast(init);
        step(totals, row, at, part);
        if (four) {
          step(totals, row + kLanes, at, part);
          step(totals, row + 2 * kLanes, at, part);
          step(totals, row + 3 * kLanes, at, part);
        } else {
          for (int64_t r = row + kLanes; r < rows; r += kLanes) step(totals, r, at, part);
        }
        for (int k = 0; k < K; ++k) store(&lanes.at[k][l][at], totals[k]);
      });
    }
  // Lanes that no row went to hold `init`, which changes nothing.
  for (int k = 0; k < K; ++k)
    each(columns, [&](int64_t at, auto part) {
      vfloat lane[kLanes];
      for (int64_t l = 0; l < kLanes; ++l) lane[l] = l < used ? load(&lanes.at[k][l][at]) : broadcast(init);
      for (int64_t half = kLanes / 2; half > 0; half /= 2)
        for (int64_t l = 0; l < half; ++l)
          if (l + half < used) lane[l] = Combine::combine(lane[l], lane[l + half]);
      put(out[k] + at, lane[0], part);
    });
}

}
ES_NAMESPACE_END
