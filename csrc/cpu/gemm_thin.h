// Products with few rows, for which packing the right matrix would cost more than multiplying: vectors times matrices,
// and inner products. The same chains and chunks, fed from memory.
#pragma once

#include "gemm_block.h"

ES_NAMESPACE {

// So many rows are few.
constexpr int64_t kThinRows = 4;
// Columns whose chains are interrupted together, to go on in another cache line.
constexpr int64_t kStrip = 512;

template <class T>
ES_FN vfloat load_columns(const T* from, int64_t count) {
  return count >= kWidth ? load_widened(from) : load_some_widened(from, count);
}

// The chains of a strip of `columns` over `length` of k, from where `sum` is: kTileRows rows, kStrip apart. The left
// side is a panel. Rows of the right matrix are contiguous: kTogether of them at a time.
template <int kTogether, int kTileRows, class T>
ES_FN void along_rows(float* sum, const float* a, const T* b, int64_t row, int64_t columns) {
  vfloat left[kTogether][kTileRows];
  for (int t = 0; t < kTogether; ++t)
    for (int i = 0; i < kTileRows; ++i) left[t][i] = broadcast(a[t * kTileRows + i]);
  for (int64_t j = 0; j < columns; j += kWidth) {
    vfloat chain[kTileRows];
    for (int i = 0; i < kTileRows; ++i) chain[i] = load(sum + i * kStrip + j);
    for (int t = 0; t < kTogether; ++t) {
      vfloat right = load_columns(b + t * row + j, columns - j);
      for (int i = 0; i < kTileRows; ++i) chain[i] = fma(left[t][i], right, chain[i]);
    }
    for (int i = 0; i < kTileRows; ++i) store(sum + i * kStrip + j, chain[i]);
  }
}

// Columns of the right matrix are contiguous: squares of it are transposed in registers.
template <int kTileRows, class T>
ES_FN void along_columns(float* sum, const float* a, const T* b, int64_t column, int64_t columns, int64_t length) {
  for (int64_t j = 0; j < columns; j += kWidth) {
    vfloat chain[kTileRows] = {};
    const T* from = b + j * column;
    const int64_t wide = columns - j < kWidth ? columns - j : kWidth;
    int64_t k = 0;
    for (; k + kWidth <= length && wide == kWidth; k += kWidth) {
      vfloat x[kWidth];
#pragma GCC unroll 16
      for (int t = 0; t < kWidth; ++t) x[t] = load_widened(from + t * column + k);
      transpose(x);
#pragma GCC unroll 16
      for (int t = 0; t < kWidth; ++t)
        for (int i = 0; i < kTileRows; ++i) chain[i] = fma(broadcast(a[(k + t) * kTileRows + i]), x[t], chain[i]);
    }
    for (; k < length; ++k) {
      alignas(64) float x[kWidth] = {};
      for (int64_t t = 0; t < wide; ++t) x[t] = widen(from[t * column + k]);
      for (int i = 0; i < kTileRows; ++i) chain[i] = fma(broadcast(a[k * kTileRows + i]), load(x), chain[i]);
    }
    for (int i = 0; i < kTileRows; ++i) store(sum + i * kStrip + j, chain[i]);
  }
}

template <int kTileRows, class T, class Sink>
static void thin_rows(const LeftMatrix<T>& left, const RightMatrix<T>& right, const Sink& sink, Range columns,
                      Range chunks, int64_t k) {
  constexpr int64_t kLevel = kTileRows * kStrip;
  constexpr int kTogether = kTileRows == 1 ? 8 : 4;
  Scratch hold(kTileRows * kChunk + kSlack + kLevel * (stack_height(chunks.size()) + 1));
  float *a = hold.data(), *sum = a + kTileRows * kChunk + kSlack, *stack = sum + kLevel;
  for (int64_t j = columns.begin; j < columns.end; j += kStrip) {
    const int64_t width = columns.end - j < kStrip ? columns.end - j : kStrip;
    for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      const ChunkStep step(chunk - chunks.begin, chunks.size());
      const int64_t start = chunk * kChunk, length = k - start < kChunk ? k - start : kChunk;
      const T* b = right.data + start * right.row + j * right.column;
      left.pack_rows(a, 0, kTileRows, start, length);
      if (right.column == 1) {
        memset(sum, 0, kLevel * sizeof(float));
        int64_t at = 0;
        for (; at + kTogether <= length; at += kTogether)
          along_rows<kTogether, kTileRows>(sum, a + at * kTileRows, b + at * right.row, right.row, width);
        for (; at < length; ++at)
          along_rows<1, kTileRows>(sum, a + at * kTileRows, b + at * right.row, right.row, width);
      } else {
        along_columns<kTileRows>(sum, a, b, right.column, width, length);
      }
      float* to = step.last ? sum : stack + (step.height - step.merges) * kLevel;
      for (int64_t i = 0; i < kTileRows; ++i)
        for (int64_t v = i * kStrip; v < i * kStrip + width; v += kWidth) {
          vfloat x = load(sum + v);
          for (int merge = 1; merge <= step.merges; ++merge) x = load(stack + (step.height - merge) * kLevel + v) + x;
          store(to + v, x);
        }
    }
    alignas(64) float sums[kTileRows * kColumns];
    for (int64_t v = 0; v < width; v += kColumns) {
      for (int64_t i = 0; i < kTileRows; ++i)
        memcpy(sums + i * kColumns, sum + i * kStrip + v, sizeof(float) * kColumns);
      sink.finish(sums, 0, kTileRows, j + v, width - v < kColumns ? width - v : kColumns);
    }
  }
}

// kChains chains of an inner product, which lie a chunk apart, from `begin` to `end` of k: each of them waits for
// itself, not for the others.
template <int kChains, class A, class B>
ES_FN void inner_chains(float* sum, A a, B b, int64_t begin, int64_t end) {
  float chain[kChains];
  for (int c = 0; c < kChains; ++c) chain[c] = sum[c];
  for (int64_t k = begin; k < end; ++k)
#pragma GCC unroll 8
    for (int c = 0; c < kChains; ++c) chain[c] = fma(a(c * kChunk + k), b(c * kChunk + k), chain[c]);
  for (int c = 0; c < kChains; ++c) sum[c] = chain[c];
}

// As many chunks, of which the last one is of length `last`.
template <int kChains, class A, class B>
ES_FN void inner_chunks(PairwiseSum<float>& total, A a, B b, int64_t last) {
  float sum[kChains] = {};
  inner_chains<kChains>(sum, a, b, 0, last);
  if constexpr (kChains > 1) inner_chains<kChains - 1>(sum, a, b, last, kChunk);
  for (int c = 0; c < kChains; ++c) total.add(sum[c]);
}

template <class A, class B>
ES_FN float inner_sum(A a, B b, int64_t length) {
  PairwiseSum<float> total;
  for (int64_t start = 0; start < length;) {
    const int64_t rest = length - start, chunks = pieces(rest, kChunk);
    const int count = chunks >= 8 ? 8 : chunks >= 4 ? 4 : chunks >= 2 ? 2 : 1;
    const int64_t end = (count - 1) * kChunk, last = rest - end < kChunk ? rest - end : kChunk;
    const auto x = [&](int64_t k) { return a(start + k); };
    const auto y = [&](int64_t k) { return b(start + k); };
    if (count == 8)
      inner_chunks<8>(total, x, y, last);
    else if (count == 4)
      inner_chunks<4>(total, x, y, last);
    else if (count == 2)
      inner_chunks<2>(total, x, y, last);
    else
      inner_chunks<1>(total, x, y, last);
    start += count * kChunk;
  }
  return total.result();
}

template <class T, class Sink>
static void inner_product(const T* a, int64_t a_step, const T* b, int64_t b_step, const Sink& sink, Range chunks,
                          int64_t k) {
  const int64_t start = chunks.begin * kChunk, end = chunks.end * kChunk, length = (end < k ? end : k) - start;
  a += start * a_step, b += start * b_step;
  float sum;
  if (a_step == 1 && b_step == 1)
    sum = inner_sum([=](int64_t i) { return widen(a[i]); }, [=](int64_t i) { return widen(b[i]); }, length);
  else
    sum = inner_sum([=](int64_t i) { return widen(a[i * a_step]); }, [=](int64_t i) { return widen(b[i * b_step]); },
                    length);
  sink.finish(&sum, 0, 1, 0, 1);
}

// Whether `thin` is the way for a product of `m` rows.
template <class T>
ES_FN bool is_thin(int64_t m, const RightMatrix<T>& right) {
  return m <= kThinRows && (right.column == 1 || right.row == 1);
}

template <class T, class Sink>
static void thin(int64_t m, const LeftMatrix<T>& left, const RightMatrix<T>& right, const Sink& sink, Range columns,
                 Range chunks, int64_t k) {
  switch (m) {
    case 1:
      return thin_rows<1>(left, right, sink, columns, chunks, k);
    case 2:
      return thin_rows<2>(left, right, sink, columns, chunks, k);
    case 3:
      return thin_rows<3>(left, right, sink, columns, chunks, k);
    default:
      return thin_rows<4>(left, right, sink, columns, chunks, k);
  }
}

}
ES_NAMESPACE_END
