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

ES_FN vfloat fma(vfloat a, vfloat b, vfloat c) {
#if defined(__AVX512F__)
  return (vfloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (vfloat)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (vfloat)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  vfloat result;
  for (int i = 0; i < kWidth; ++i) result[i] = fma(a[i], b[i], c[i]);
  return result;
#endif
}

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
