// Bags of embeddings: which positions of the indices belong together, and the largest of their rows. Their sums are `rows`
// of scatter.h.
#pragma once

#include "../exact/search.h"
#include "isa.h"

namespace es {

// The largest of a bag's rows, column by column: the first of equals. Rows are `width` floats of `table`.
struct BagMaxima {
  int64_t bags, count, width, padding;  // whose rows are left out
  const int64_t* bag;                   // of each position; ascending
  const int64_t* row;                   // of each position
  const float* table;
  float* out;     // (bags, width); +0 for a bag that has nothing
  int64_t* from;  // the row that it is of; 0 for a bag that has nothing
};

// All use threads inside.
struct Bags {
  // The bag of each position: the last that begins at it or before, -1 without bags. `begins` is ascending.
  void (*of_positions)(int64_t count, int64_t bags, const int64_t* begins, int64_t* bag);
  // How many positions go to each of the places. A negative to[p] is left out.
  void (*counts)(int64_t count, int64_t places, const int64_t* to, int64_t* counts);
  void (*maxima)(const BagMaxima&);
};

}

ES_NAMESPACE {

// The first bag has what comes before it, too.
ES_FN int64_t bag_of(int64_t position, int64_t bags, const int64_t* begins) {
  return bags ? first_that(bags - 1, [=](int64_t b) { return begins[b + 1] > position; }) : -1;
}

// Of one bag and column. NaN is larger than nothing, and nothing than it.
ES_FN void bag_maximum(const es::BagMaxima& m, int64_t bag, int64_t column) {
  float most = 0;
  int64_t from = 0;
  bool any = false;
  const int64_t first = first_that(m.count, [&](int64_t p) { return m.bag[p] >= bag; });
  for (int64_t p = first; p < m.count && m.bag[p] == bag; ++p) {
    const int64_t row = m.row[p];
    if (row == m.padding) continue;
    const float x = m.table[row * m.width + column];
    if (any && !(x > most)) continue;
    most = x, from = row, any = true;
  }
  m.out[bag * m.width + column] = most, m.from[bag * m.width + column] = from;
}

}
ES_NAMESPACE_END

ES_TABLE(Bags, bags)
