// Products of what packers deliver: the walk over panels, tiles and chunks, by one thread. Matrix products give it
// matrices in memory, convolutions give it gathers from images.
//
// A packer of the left side has `pack_rows(panel, first row, rows, first k, length)`, one of the right side
// `pack_columns(panel, first column, columns, first k, length)`; both may write kSlack floats too many. `k_step()` is how
// many k it likes at once, before the same k of the neighbouring panel: few where neighbours share cache lines. A sink takes the
// sums: `float* direct(row, column, &out_row)` says where they can be stored as they are, or null; then
// `finish(sums, row, rows, column, columns)` is given them, rows kColumns apart.
#pragma once

#include <cstdlib>

#include "gemm_pack.h"

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

// This thread's memory for panels and stacks: kept, and as large as it ever had to be. Aligned for vectors.
static float* scratch(int64_t floats) {
  struct Memory {
    float* data = nullptr;
    int64_t size = 0;
    ~Memory() { free(data); }
  };
  static thread_local Memory memory;
  if (memory.size < floats) {
    free(memory.data);
    memory.size = pieces(floats, 1 << 14) << 14;
    memory.data = (float*)aligned_alloc(64, memory.size * sizeof(float));
    if (!memory.data) abort();
  }
  return memory.data;
}

// Panels of each side that are packed at once, for one chunk: together they stay in the L2 cache.
constexpr int64_t kLeftPanels = 8;
#if defined(__AVX512F__)
constexpr int64_t kRightPanels = 12;
#else
constexpr int64_t kRightPanels = 16;
#endif
// How long a block may be in the direction that is not limited by the above, where there is more than one chunk and so a
// stack of all its tiles.
constexpr int64_t kManyPanels = 64;

constexpr int64_t kTileFloats = kRows * kColumns;

template <class Left, class Right, class Sink>
struct Block {
  const Left& left;
  const Right& right;
  const Sink& sink;
  Range rows, columns;
  int64_t row_panels, column_panels;
  float* stack;

  // All of one tile for one chunk that is neither the packing nor the panels' addresses.
  void tile(int64_t p, int64_t q, const float* a, const float* b, const ChunkStep& step, int64_t length) const {
    const Range i = rows.part(p, row_panels);
    const int64_t j = columns.begin + q * kColumns;
    const int64_t count = columns.end - j < kColumns ? columns.end - j : kColumns;
    const int64_t level = row_panels * column_panels * kTileFloats;
    float* bottom = stack + (p * column_panels + q) * kTileFloats;
    alignas(64) float sums[kTileFloats];
    int64_t out_row = kColumns;
    float* direct = step.last ? sink.direct(i.begin, j, &out_row) : bottom + (step.height - step.merges) * level;
    Tile t{length, a, b, 1, i.size(), padded(count), bottom + (step.height - 1) * level, level, step.merges,
           direct ? direct : sums, out_row, direct && step.last ? count : padded(count)};
    tile_kernel_for<true>(i.size(), count)(t);
    if (!direct) sink.finish(sums, i.begin, i.size(), j, count);
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
  const int64_t left_panel = kRows * kChunk + kSlack, right_panel = kColumns * kChunk + kSlack;
  const int64_t left_panels = row_panels < kLeftPanels ? row_panels : kLeftPanels;
  const int64_t right_panels = column_panels < kRightPanels ? column_panels : kRightPanels;
  const int64_t stack_size = stack_height(chunks.size()) * row_panels * column_panels * kTileFloats;
  float* a = scratch(left_panels * left_panel + right_panels * right_panel + stack_size);
  float* b = a + left_panels * left_panel;
  const Block<Left, Right, Sink> block{left, right, sink, rows, columns, row_panels, column_panels,
                                       b + right_panels * right_panel};
  for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    const ChunkStep step(chunk - chunks.begin, chunks.size());
    const int64_t start = chunk * kChunk, length = k - start < kChunk ? k - start : kChunk;
    for (int64_t p0 = 0; p0 < row_panels; p0 += left_panels) {
      const int64_t p1 = p0 + left_panels < row_panels ? p0 + left_panels : row_panels;
      pack_panels(p0, p1, left.k_step(), length, [&](int64_t p, int64_t at, int64_t count) {
        const Range i = rows.part(p, row_panels);
        left.pack_rows(a + (p - p0) * left_panel + at * i.size(), i.begin, i.size(), start + at, count);
      });
      for (int64_t q0 = 0; q0 < column_panels; q0 += right_panels) {
        const int64_t q1 = q0 + right_panels < column_panels ? q0 + right_panels : column_panels;
        if (p0 == 0 || right_panels < column_panels)
          pack_panels(q0, q1, right.k_step(), length, [&](int64_t q, int64_t at, int64_t count) {
            const int64_t j = columns.begin + q * kColumns;
            const int64_t width = columns.end - j < kColumns ? columns.end - j : kColumns;
            right.pack_columns(b + (q - q0) * right_panel + at * padded(width), j, width, start + at, count);
          });
        for (int64_t p = p0; p < p1; ++p)
          for (int64_t q = q0; q < q1; ++q)
            block.tile(p, q, a + (p - p0) * left_panel, b + (q - q0) * right_panel, step, length);
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
  const int64_t column_parts = wide ? (many ? pieces(column_panels, kManyPanels) : 1) : pieces(column_panels, kRightPanels);
  for (int64_t i = 0; i < row_parts; ++i)
    for (int64_t j = 0; j < column_parts; ++j)
      one_block(left, right, sink, rows.part(i, row_parts, kRows), columns.part(j, column_parts, kColumns), chunks, k);
}

}
ES_NAMESPACE_END
