// Copies of matrices as the panels of gemm_kernel.h, from any strides and types.
#pragma once

#include "../exact/half.h"
#include "gemm_kernel.h"

ES_NAMESPACE {

template <class T>
ES_FN vfloat load_widened(const T* from) {
  T x[kWidth];
  memcpy(x, from, sizeof(x));
  vfloat wide;
  for (int i = 0; i < kWidth; ++i) wide[i] = widen(x[i]);
  return wide;
}
ES_FN vfloat load_widened(const float* from) { return load(from); }
#if defined(__AVX512F__)
ES_FN vfloat load_widened(const bf16* from) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
  return (vfloat)_mm512_slli_epi32(wide, 16);
}
ES_FN vfloat load_widened(const fp16* from) {
  return (vfloat)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
}
#elif defined(__AVX2__)
ES_FN vfloat load_widened(const bf16* from) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
  return (vfloat)_mm256_slli_epi32(wide, 16);
}
ES_FN vfloat load_widened(const fp16* from) { return (vfloat)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from)); }
#endif

// The first `count`; the others are +0.
template <class T>
ES_FN vfloat load_some_widened(const T* from, int64_t count) {
  T x[kWidth] = {};
  for (int64_t i = 0; i < count; ++i) x[i] = from[i];
  return load_widened(x);
}
ES_FN vfloat load_some_widened(const float* from, int64_t count) { return load_some(from, count); }

// A square of registers: interleaving row i with row i + kWidth / 2, log2(kWidth) times.
ES_FN void transpose(vfloat (&x)[kWidth]) {
#pragma GCC unroll 4
  for (int round = 1; round < kWidth; round *= 2) {
    vfloat y[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth / 2; ++i) {
      y[2 * i] = interleave_low(x[i], x[i + kWidth / 2]);
      y[2 * i + 1] = interleave_high(x[i], x[i + kWidth / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) x[i] = y[i];
  }
}

// Floats that may be written beyond a panel's end.
constexpr int64_t kSlack = kWidth;

// panel[k * width + i] = from[i * along + k * across] for i < count, +0 for i in count .. width, k < length. Whole
// vectors are stored, and what goes beyond a row is overwritten by the next one; see kSlack.
template <class T>
static void pack(float* panel, const T* from, int64_t along, int64_t across, int64_t count, int64_t width,
                 int64_t length) {
  const int64_t tail = (count - 1) % kWidth + 1, last = count - tail;
  if (along == 1) {
    for (int64_t k = 0; k < length; ++k, panel += width, from += across) {
      for (int64_t i = 0; i < last; i += kWidth) store(panel + i, load_widened(from + i));
      store(panel + last, tail == kWidth ? load_widened(from + last) : load_some_widened(from + last, tail));
    }
  } else if (across == 1) {
    for (int64_t k = 0; k < length; k += kWidth) {
      const int64_t rows = length - k < kWidth ? length - k : kWidth;
      for (int64_t i = last; i >= 0; i -= kWidth) {
        const int64_t columns = i == last ? tail : kWidth;
        const T* corner = from + i * along + k;
        vfloat x[kWidth];
        if (rows == kWidth && columns == kWidth) {
#pragma GCC unroll 16
          for (int t = 0; t < kWidth; ++t) x[t] = load_widened(corner + t * along);
        } else {
          for (int t = 0; t < kWidth; ++t)
            x[t] = t >= columns      ? vfloat{}
                   : rows == kWidth ? load_widened(corner + t * along)
                                    : load_some_widened(corner + t * along, rows);
        }
        transpose(x);
        float* to = panel + k * width + i;
        if (rows == kWidth) {
#pragma GCC unroll 16
          for (int t = 0; t < kWidth; ++t) store(to + t * width, x[t]);
        } else {
          for (int t = 0; t < rows; ++t) store(to + t * width, x[t]);
        }
      }
    }
  } else {
    for (int64_t k = 0; k < length; ++k, panel += width, from += across) {
      for (int64_t i = 0; i < count; ++i) panel[i] = widen(from[i * along]);
      for (int64_t i = count; i < width; ++i) panel[i] = 0;
    }
  }
}

// The packers of `blocks` (gemm_block.h) for matrices in memory. Along contiguous rows a few k of all panels are packed
// before the next ones, so that cache lines are read from end to end.
constexpr int64_t kStepAcross = 32;
constexpr int64_t kFewUses = 3, kClose = 128;

// Whether a matrix is better read where it is, by as many panels of the other side as `uses`: where it is floats, and
// packing is for little use, or little is gained by it as its rows lie close together. `pitch` is between its k.
template <class T>
ES_FN bool stays(int64_t pitch, int64_t uses) {
  return sizeof(T) == sizeof(float) && (uses <= kFewUses || pitch <= kClose);
}

// Asks for part number `part` of `parts` of `runs` contiguous runs of `bytes`, which are `pitch` bytes apart.
ES_FN void prefetch(const void* from, int64_t pitch, int64_t runs, int64_t bytes, int64_t part, int64_t parts) {
  for (int64_t i = runs * part / parts; i < runs * (part + 1) / parts; ++i)
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char*)from + i * pitch + at, 0, 2);
}

// Elements of a matrix that will be packed soon: `along` one side, `across` the other.
template <class T>
ES_FN void prefetch(const T* from, int64_t along, int64_t across, int64_t count, int64_t length, int64_t part,
                    int64_t parts) {
  const int64_t size = sizeof(T);
  if (along == 1)
    prefetch(from, across * size, length, count * size, part, parts);
  else if (across == 1)
    prefetch(from, along * size, count, length * size, part, parts);
}

template <class T>
struct LeftMatrix {
  const T* data;
  int64_t row, column;
  int64_t k_step() const { return row == 1 ? kStepAcross : kChunk; }
  void pack_rows(float* panel, int64_t first, int64_t rows, int64_t k, int64_t length) const {
    pack(panel, data + first * row + k * column, row, column, rows, rows, length);
  }
  void expect(int64_t first, int64_t rows, int64_t k, int64_t length, int64_t part, int64_t parts) const {
    prefetch(data + first * row + k * column, row, column, rows, length, part, parts);
  }
  // Where the element (i, k) can be read, or null; elements are `row` and `column` apart. Rows that lie a multiple of a
  // page apart would be in each other's way in the cache.
  const float* in_place(int64_t i, int64_t k, int64_t uses) const {
    const bool good = row == 1 || (column == 1 && row % 1024 != 0);
    return good && stays<T>(row == 1 ? column : row, uses) ? (const float*)(data + i * row + k * column) : nullptr;
  }
};
template <class T>
struct RightMatrix {
  const T* data;
  int64_t row, column;
  int64_t k_step() const { return column == 1 ? kStepAcross : kChunk; }
  void pack_columns(float* panel, int64_t first, int64_t columns, int64_t k, int64_t length) const {
    pack(panel, data + first * column + k * row, column, row, columns, padded(columns), length);
  }
  void expect(int64_t first, int64_t columns, int64_t k, int64_t length, int64_t part, int64_t parts) const {
    prefetch(data + first * column + k * row, column, row, columns, length, part, parts);
  }
  const float* in_place(int64_t k, int64_t j, int64_t uses) const {
    return column == 1 && stays<T>(row, uses) ? (const float*)(data + k * row + j) : nullptr;
  }
};

}
ES_NAMESPACE_END
