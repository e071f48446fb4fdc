// The 16 lanes of a reduction in vector registers, for rows that lie contiguously: `accumulate` for a block,
// `reduce_row` for a whole row. What an element contributes is said by a step on vectors; several totals are
// accumulated in one pass, of one row or of several, which hides the latency of additions.
#pragma once

#include "../exact/order.h"
#include "simd.h"

ES_NAMESPACE {

constexpr int kVectors = kLanes / kWidth;

// How much of a vector is there: all of it, or the first `count` elements.
struct Whole {};
struct Part {
  int64_t count;
};

ES_FN vfloat get(const float* from, Whole, float) { return load(from); }
// What is not there is `neutral`.
ES_FN vfloat get(const float* from, Part part, float neutral) {
#if defined(__AVX512F__)
  return (vfloat)_mm512_mask_loadu_ps(_mm512_set1_ps(neutral), (__mmask16)((1u << part.count) - 1), from);
#else
  vfloat x = broadcast(neutral);
  memcpy(&x, from, 4 * (size_t)part.count);
  return x;
#endif
}
ES_FN void put(float* to, vfloat x, Whole) { store(to, x); }
ES_FN void put(float* to, vfloat x, Part part) { store_some(to, x, part.count); }

// What is there; +0 for what is not.
ES_FN vfloat keep(vfloat x, Whole) { return x; }
ES_FN vfloat keep(vfloat x, Part part) {
  vint place;
  for (int i = 0; i < kWidth; ++i) place[i] = i;
  return (vfloat)((vint)x & (place < (int32_t)part.count));
}

// `f(at, part)` for vectors that cover 0 .. n.
template <class F>
ES_FN void each(int64_t n, F f) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) f(i, Whole{});
  if (i < n) f(i, Part{n - i});
}

// The lanes added pairwise: l and l + 8, then + 4, + 2, + 1.
ES_FN float add_lanes(const vfloat (&lanes)[kVectors]) {
#if defined(__x86_64__)
#if defined(__AVX512F__)
  __m512 all = (__m512)lanes[0];
  __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#elif defined(__AVX2__)
  __m256 eight = _mm256_add_ps((__m256)lanes[0], (__m256)lanes[1]);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#else
  __m128 four = (__m128)((lanes[0] + lanes[2]) + (lanes[1] + lanes[3]));
#endif
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  vfloat four = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
#endif
}

// K totals of a block of n <= kBlock elements: `step(totals, at, part)` adds elements at, at + 1, .. to `totals[K]`.
template <int K, class Step>
ES_FN void accumulate(int64_t n, float init, Step step, vfloat (&lanes)[K][kVectors]) {
  vfloat totals[kVectors][K];
  for (int v = 0; v < kVectors; ++v)
    for (int k = 0; k < K; ++k) totals[v][k] = broadcast(init);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int v = 0; v < kVectors; ++v) step(totals[v], i + v * kWidth, Whole{});
  for (int v = 0; v < kVectors; ++v) {
    int64_t rest = n - i - v * kWidth;
    if (rest > 0) step(totals[v], i + v * kWidth, Part{rest < kWidth ? rest : kWidth});
  }
  for (int v = 0; v < kVectors; ++v)
    for (int k = 0; k < K; ++k) lanes[k][v] = totals[v][k];
}

// K sums over a row of n elements, in the order of `reduce`.
template <int K, class Step>
ES_FN void reduce_row(int64_t n, Step step, float (&sums)[K]) {
  vfloat lanes[K][kVectors];
  if (n <= kBlock) {
    accumulate<K>(n, 0.0f, step, lanes);
    for (int k = 0; k < K; ++k) sums[k] = add_lanes(lanes[k]);
    return;
  }
  PairwiseSum<float> blocks[K];
  for (int64_t start = 0; start < n; start += kBlock) {
    int64_t count = n - start < kBlock ? n - start : kBlock;
    accumulate<K>(
        count, 0.0f, [&](vfloat* totals, int64_t at, auto part) { step(totals, start + at, part); }, lanes);
    for (int k = 0; k < K; ++k) blocks[k].add(add_lanes(lanes[k]));
  }
  for (int k = 0; k < K; ++k) sums[k] = blocks[k].result();
}

struct Rest {
  const float* from;
  float at[kLanes] = {};
};

// out[i] = f(in[i], ..) for i < n. Loops over `f` become vector code; so does the rest of a row, padded to 16.
template <class F, class... In>
ES_FN void map(int64_t n, float* out, F f, const In*... in) {
  int64_t whole = n & ~(kLanes - 1);
  for (int64_t i = 0; i < whole; ++i) out[i] = f(in[i]...);
  if (whole == n) return;
  float result[kLanes];
  [&](auto&&... rest) {
    (each(n - whole, [&](int64_t at, auto part) { store(rest.at + at, get(rest.from + at, part, 0)); }), ...);
    for (int64_t i = 0; i < kLanes; ++i) result[i] = f(rest.at[i]...);
  }(Rest{in + whole}...);
  each(n - whole, [&](int64_t at, auto part) { put(out + whole + at, load(result + at), part); });
}

}
ES_NAMESPACE_END
