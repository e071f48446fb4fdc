// Products of what packers deliver: the walk over panels, tiles and chunks, by one thread. Matrix products give it
// matrices in memory, convolutions give it gathers from images.
//
// A packer of the left side has `pack_rows(panel, first row, rows, first k, length)`, one of the right side
// `pack_columns(panel, first column, columns, first k, length)`; both may write kSlack floats too many. `k_step()` is
// how many k it likes at once, before the same k of the neighbouring panel: few where neighbours share cache lines.
// Packers of matrices in memory also have `in_place` and `expect`, see gemm_pack.h. A sink takes the sums:
// `float* direct(row, column, &out_row)` says where they can be stored as they are, or null; then
// `finish(sums, row, rows, column, columns)` is given them, rows kColumns apart.
#pragma once

#include "gemm_pack.h"
#include "scratch.h"

ES_NAMESPACE {

struct Range {
  int64_t begin, end;
  ES_FN int64_t size() const { return end - begin; }
  // Part number `i` of `parts` of nearly the same size, whose borders are multiples of `unit`.
  ES_FN Range part(int64_t i, int64_t parts, int64_t unit = 1) const {
    int64_t units = (size() + unit - 1) / unit, from = begin + units * i / parts * unit,
            to = begin + units * (i + 1) / parts * unit;
    return {from, to < end ? to : end};
  }
};

ES_FN int64_t pieces(int64_t whole, int64_t size) { return (whole + size - 1) / size; }

// Panels of each side that are packed at once, for one chunk: together they stay in the L2 cache.
constexpr int64_t kLeftPanels = 8, kRightPanels = 12;
// How long a block may be in the direction that is not limited by the above, where there is more than one chunk and so
// a stack of all its tiles.
constexpr int64_t kManyPanels = 64;

constexpr int64_t kTileFloats = kRows * kColumns;

// A panel, or a part of a matrix in its place.
struct Panel {
  const float* data;
  int64_t along, k;  // how far apart neighbours are, and one k and the next; `along` is 1 on the right side
};

template <class Sink>
struct Block {
  const Sink& sink;
  Range rows, columns;
  int64_t row_panels, column_panels;
  float* stack;

  Range rows_of(int64_t p, int64_t count = 1) const {
    const int64_t last = p + count < row_panels ? p + count : row_panels;
    return {rows.part(p, row_panels).begin, rows.part(last - 1, row_panels).end};
  }
  Range columns_of(int64_t q, int64_t count = 1) const {
    const int64_t j = columns.begin + q * kColumns, end = j + count * kColumns;
    return {j, columns.end < end ? columns.end : end};
  }

  // One tile for one chunk, and what becomes of its sums.
  void tile(int64_t p, int64_t q, const Panel& a, const Panel& b, const ChunkStep& step, int64_t length) const {
    const Range i = rows_of(p), j = columns_of(q);
    const int64_t level = row_panels * column_panels * kTileFloats;
    float* bottom = stack + (p * column_panels + q) * kTileFloats;
    alignas(64) float sums[kTileFloats];
    int64_t out_row = kColumns;
    float* direct = step.last ? sink.direct(i.begin, j.begin, &out_row) : bottom + (step.height - step.merges) * level;
    Tile t{length, a.data, b.data, a.along, a.k, b.k, bottom + (step.height - 1) * level, level, step.merges,
           direct ? direct : sums, out_row, direct && step.last ? j.size() : padded(j.size())};
    const bool packed = a.along == 1 && a.k == i.size() && b.k == padded(j.size());
    (packed ? tile_kernel_for<true>(i.size(), j.size()) : tile_kernel_for<false>(i.size(), j.size()))(t);
    if (!direct) sink.finish(sums, i.begin, i.size(), j.begin, j.size());
  }
};

// Packs panels `from` .. `to`, in steps of k that the packer likes.
template <class Pack>
ES_FN void pack_panels(int64_t from, int64_t to, int64_t k_step, int64_t length, Pack&& pack) {
  for (int64_t k = 0; k < length; k += k_step)
    for (int64_t p = from; p < to; ++p) pack(p, k, length - k < k_step ? length - k : k_step);
}

// The sums over the chunks `chunks` of a length of `k`, for a block of the output with few panels on at least one side.
template <class Left, class Right, class Sink>
static void one_block(const Left& left, const Right& right, const Sink& sink, Range rows, Range columns, Range chunks,
                      int64_t k) {
  const int64_t row_panels = pieces(rows.size(), kRows), column_panels = pieces(columns.size(), kColumns);
  if (row_panels <= 0 || column_panels <= 0) return;
  const int64_t left_panel = kRows * kChunk + kSlack, right_panel = kColumns * kChunk + kSlack;
  const int64_t left_panels = row_panels < kLeftPanels ? row_panels : kLeftPanels;
  // With few rows a larger group has no use.
  const int64_t most = row_panels <= kLeftPanels ? kRightPanels / 2 : kRightPanels;
  const int64_t right_panels = pieces(column_panels, pieces(column_panels, most));
  const int64_t stack_size = stack_height(chunks.size()) * row_panels * column_panels * kTileFloats;
  Scratch hold(left_panels * left_panel + right_panels * right_panel + stack_size);
  float* a = hold.data();
  float* b = a + left_panels * left_panel;
  const Block<Sink> block{sink, rows, columns, row_panels, column_panels, b + right_panels * right_panel};
  Panel lefts[kLeftPanels], rights[kRightPanels];
  for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    const ChunkStep step(chunk - chunks.begin, chunks.size());
    const int64_t start = chunk * kChunk, length = k - start < kChunk ? k - start : kChunk;
    for (int64_t p0 = 0; p0 < row_panels; p0 += left_panels) {
      const int64_t p1 = p0 + left_panels < row_panels ? p0 + left_panels : row_panels;
      for (int64_t p = p0; p < p1; ++p) {
        lefts[p - p0] = {a + (p - p0) * left_panel, 1, block.rows_of(p).size()};
        if constexpr (requires { left.in_place(0, 0, 0); })
          if (auto at = left.in_place(block.rows_of(p).begin, start, column_panels))
            lefts[p - p0] = {at, left.row, left.column};
      }
      pack_panels(p0, p1, left.k_step(), length, [&](int64_t p, int64_t at, int64_t count) {
        float* panel = a + (p - p0) * left_panel;
        if (lefts[p - p0].data != panel) return;
        const Range i = block.rows_of(p);
        left.pack_rows(panel + at * i.size(), i.begin, i.size(), start + at, count);
      });
      for (int64_t q0 = 0; q0 < column_panels; q0 += right_panels) {
        const int64_t q1 = q0 + right_panels < column_panels ? q0 + right_panels : column_panels;
        if (p0 == 0 || right_panels < column_panels) {
          for (int64_t q = q0; q < q1; ++q) {
            const Range j = block.columns_of(q);
            rights[q - q0] = {b + (q - q0) * right_panel, 1, padded(j.size())};
            if constexpr (requires { right.in_place(0, 0, 0); })
              if (j.size() == padded(j.size()))
                if (auto at = right.in_place(start, j.begin, row_panels)) rights[q - q0] = {at, 1, right.row};
          }
          pack_panels(q0, q1, right.k_step(), length, [&](int64_t q, int64_t at, int64_t count) {
            float* panel = b + (q - q0) * right_panel;
            if (rights[q - q0].data != panel) return;
            const Range j = block.columns_of(q);
            right.pack_columns(panel + at * padded(j.size()), j.begin, j.size(), start + at, count);
          });
        }
        // What will be packed next is fetched meanwhile.
        const int64_t tiles = (p1 - p0) * (q1 - q0);
        const bool same = q1 < column_panels || p1 < row_panels;
        const bool left_next = q1 == column_panels && left_panels < row_panels;
        const int64_t soon = same ? start : start + kChunk, soon_length = k - soon < kChunk ? k - soon : kChunk;
        const Range soon_rows = block.rows_of(p1 < row_panels ? p1 : 0, left_panels);
        const Range soon_columns = block.columns_of(q1 < column_panels ? q1 : 0, right_panels);
        for (int64_t p = p0, tile = 0; p < p1; ++p)
          for (int64_t q = q0; q < q1; ++q, ++tile) {
            block.tile(p, q, lefts[p - p0], rights[q - q0], step, length);
            if (!same && step.last) continue;
            if (left_next) {
              if constexpr (requires { left.expect(0, 0, 0, 0, 0, 0); })
                left.expect(soon_rows.begin, soon_rows.size(), soon, soon_length, tile, tiles);
            } else if constexpr (requires { right.expect(0, 0, 0, 0, 0, 0); }) {
              right.expect(soon_columns.begin, soon_columns.size(), soon, soon_length, tile, tiles);
            }
          }
      }
    }
  }
}

// The same, for outputs of any size. There is at least one chunk.
template <class Left, class Right, class Sink>
static void blocks(const Left& left, const Right& right, const Sink& sink, Range rows, Range columns, Range chunks,
                   int64_t k) {
  const int64_t row_panels = pieces(rows.size(), kRows), column_panels = pieces(columns.size(), kColumns);
  const bool wide = row_panels <= kLeftPanels, many = chunks.size() > 1;
  const int64_t row_parts = wide ? 1 : many ? pieces(row_panels, kManyPanels) : 1;
  const int64_t column_parts = !wide ? pieces(column_panels, kRightPanels)
                               : many ? pieces(column_panels, kManyPanels)
                                      : 1;
  for (int64_t i = 0; i < row_parts; ++i)
    for (int64_t j = 0; j < column_parts; ++j)
      one_block(left, right, sink, rows.part(i, row_parts, kRows), columns.part(j, column_parts, kColumns), chunks, k);
}

}
ES_NAMESPACE_END
