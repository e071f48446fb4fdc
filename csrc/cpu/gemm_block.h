// Products of what packers deliver: the walk over panels, tiles and chunks, by one thread. Matrix products give it
// matrices in memory, convolutions give it gathers from images.
//
// A packer of the left side has `pack_rows(panel, first row, rows, first k, length)`, one of the right side
// `pack_columns(panel, first column, columns, first k, length)`; both may write kSlack floats too many. A sink takes the
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

// Columns of the right matrix that are packed at once: a chunk of them is to stay in the L2 cache.
#if defined(__AVX512F__)
constexpr int64_t kBlockColumns = 12 * kColumns;
#else
constexpr int64_t kBlockColumns = 16 * kColumns;
#endif
// Rows of the left one: fewer panels than these are packed at once; more are packed one by one, for each block of columns.
constexpr int64_t kFewPanels = 8;
// Tiles that may be on a stack at once, for products of more than one chunk.
constexpr int64_t kBlockRows = 64 * kRows, kManyColumns = 64 * kColumns;

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

// The sums over the chunks `chunks` of a length of `k`, for one block of the output.
template <class Left, class Right, class Sink>
static void one_block(const Left& left, const Right& right, const Sink& sink, Range rows, Range columns, Range chunks,
                      int64_t k) {
  const int64_t row_panels = pieces(rows.size(), kRows), column_panels = pieces(columns.size(), kColumns);
  const bool few = row_panels <= kFewPanels;
  const int64_t left_panel = kRows * kChunk + kSlack, right_panel = kColumns * kChunk + kSlack;
  const int64_t left_size = (few ? row_panels : 1) * left_panel, right_size = (few ? 1 : column_panels) * right_panel;
  const int64_t stack_size = stack_height(chunks.size()) * row_panels * column_panels * kTileFloats;
  float* a = scratch(left_size + right_size + stack_size);
  float* b = a + left_size;
  const Block<Left, Right, Sink> block{left, right, sink, rows, columns, row_panels, column_panels, b + right_size};
  auto pack_left = [&](int64_t p, float* panel, int64_t start, int64_t length) {
    Range i = rows.part(p, row_panels);
    left.pack_rows(panel, i.begin, i.size(), start, length);
  };
  auto pack_right = [&](int64_t q, float* panel, int64_t start, int64_t length) {
    int64_t j = columns.begin + q * kColumns, rest = columns.end - j;
    right.pack_columns(panel, j, rest < kColumns ? rest : kColumns, start, length);
  };
  for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    const ChunkStep step(chunk - chunks.begin, chunks.size());
    const int64_t start = chunk * kChunk, length = k - start < kChunk ? k - start : kChunk;
    if (few) {
      for (int64_t p = 0; p < row_panels; ++p) pack_left(p, a + p * left_panel, start, length);
      for (int64_t q = 0; q < column_panels; ++q) {
        pack_right(q, b, start, length);
        for (int64_t p = 0; p < row_panels; ++p) block.tile(p, q, a + p * left_panel, b, step, length);
      }
    } else {
      for (int64_t q = 0; q < column_panels; ++q) pack_right(q, b + q * right_panel, start, length);
      for (int64_t p = 0; p < row_panels; ++p) {
        pack_left(p, a, start, length);
        for (int64_t q = 0; q < column_panels; ++q) block.tile(p, q, a, b + q * right_panel, step, length);
      }
    }
  }
}

// The same, for outputs of any size. There is at least one chunk.
template <class Left, class Right, class Sink>
static void blocks(const Left& left, const Right& right, const Sink& sink, Range rows, Range columns, Range chunks,
                   int64_t k) {
  const bool few = pieces(rows.size(), kRows) <= kFewPanels;
  const int64_t row_parts = chunks.size() > 1 ? pieces(rows.size(), kBlockRows) : 1;
  const int64_t column_parts = pieces(columns.size(), few ? kManyColumns : kBlockColumns);
  for (int64_t i = 0; i < row_parts; ++i)
    for (int64_t j = 0; j < column_parts; ++j)
      one_block(left, right, sink, rows.part(i, row_parts, kRows), columns.part(j, column_parts, kColumns), chunks, k);
}

}
ES_NAMESPACE_END
