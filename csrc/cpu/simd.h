// Vectors of floats, as wide as the instruction set that this file is compiled for. Vectors run across outputs, never
// along a chain of accumulation, so their width is not visible in the bits.
#pragma once

#include "../exact/base.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

ES_NAMESPACE {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

// + - * / and comparisons are the compiler's, element by element.
typedef float vfloat __attribute__((vector_size(4 * kWidth)));
typedef int32_t vint __attribute__((vector_size(4 * kWidth)));

ES_FN vfloat load(const float* from) {
  vfloat x;
  memcpy(&x, from, sizeof(x));
  return x;
}
ES_FN void store(float* to, vfloat x) { memcpy(to, &x, sizeof(x)); }
ES_FN vfloat broadcast(float x) { return x - vfloat{}; }  // x - 0 is x, -0 and NaN included

#if defined(__x86_64__) && !defined(__FMA__)
// Two at once of what base.h does without the instruction.
ES_FN __m128d fma_to_odd(__m128d a, __m128d b, __m128d c) {
  __m128d product = a * b, sum = product + c, back = sum - product;
  __m128d error = (product - (sum - back)) + (c - back);
  __m128d inexact = _mm_and_pd(_mm_cmpneq_pd(error, _mm_setzero_pd()), _mm_cmpord_pd(error, error));
  __m128i word = _mm_castpd_si128(sum), one = _mm_set1_epi64x(1);
  __m128i differs = _mm_srai_epi32(_mm_xor_si128(word, _mm_castpd_si128(error)), 31);
  __m128i away = _mm_or_si128(_mm_shuffle_epi32(differs, _MM_SHUFFLE(3, 3, 1, 1)), one);  // -1 where the signs differ
  __m128i even = _mm_sub_epi64(_mm_and_si128(word, one), one);
  return _mm_castsi128_pd(_mm_add_epi64(word, _mm_and_si128(away, _mm_and_si128(even, _mm_castpd_si128(inexact)))));
}
#endif

ES_FN vfloat fma(vfloat a, vfloat b, vfloat c) {
#if defined(__AVX512F__)
  return (vfloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (vfloat)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (vfloat)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  static_assert(kWidth == 4);
  __m128 x = (__m128)a, y = (__m128)b, z = (__m128)c;
  __m128d low = fma_to_odd(_mm_cvtps_pd(x), _mm_cvtps_pd(y), _mm_cvtps_pd(z));
  __m128d high = fma_to_odd(_mm_cvtps_pd(_mm_movehl_ps(x, x)), _mm_cvtps_pd(_mm_movehl_ps(y, y)),
                            _mm_cvtps_pd(_mm_movehl_ps(z, z)));
  return (vfloat)_mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
#endif
}

#if defined(__AVX512F__)
#define ES_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ES_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX2__)
#define ES_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define ES_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define ES_LOW 0, 4, 1, 5
#define ES_HIGH 2, 6, 3, 7
#endif
// x0 y0 x1 y1 ..., of the lower and of the upper halves.
ES_FN vfloat interleave_low(vfloat x, vfloat y) { return __builtin_shufflevector(x, y, ES_LOW); }
ES_FN vfloat interleave_high(vfloat x, vfloat y) { return __builtin_shufflevector(x, y, ES_HIGH); }
#undef ES_LOW
#undef ES_HIGH

// The first `count` elements (0 .. kWidth); the others are +0, and not touched by the store.
ES_FN vfloat load_some(const float* from, int64_t count) {
#if defined(__AVX512F__)
  return (vfloat)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#else
  vfloat x = {};
  memcpy(&x, from, 4 * (size_t)count);
  return x;
#endif
}
ES_FN void store_some(float* to, vfloat x, int64_t count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)x);
#else
  memcpy(to, &x, 4 * (size_t)count);
#endif
}

}
ES_NAMESPACE_END
