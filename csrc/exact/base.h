// What every exact kernel stands on: the operations of IEEE-754 binary32 that are allowed, spelled so that no compiler
// contracts, splits or replaces them. Compiles for the host (each instruction set by itself) and for CUDA.
//
// Everything here lives in a namespace of its own for each instruction set: an inline function compiled for AVX-512
// must never be the copy that the linker keeps for a processor without it.
#pragma once

#include <cstdint>
#include <cstring>

#ifndef ES_ISA
#define ES_ISA portable
#endif
#define ES_NAMESPACE namespace es { inline namespace ES_ISA
#define ES_NAMESPACE_END }

#ifdef __CUDACC__
#define ES_FN __host__ __device__ __forceinline__
#else
#define ES_FN inline __attribute__((always_inline))
#endif

// Whether the target has a fused multiply-add instruction.
#if defined(__CUDA_ARCH__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
#define ES_HAS_FMA 1
#else
#define ES_HAS_FMA 0
#endif

ES_NAMESPACE {

template <class To, class From>
ES_FN To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);
constexpr float kNaN = __builtin_bit_cast(float, 0x7fc00000u);

ES_FN uint32_t bits(float x) { return bit_cast<uint32_t>(x); }
ES_FN float from_bits(uint32_t x) { return bit_cast<float>(x); }

// round(a * b + c), rounded once. Without the instruction: the product of two floats is exact in a double; the sum is
// rounded there to odd (the last bit stands for all that was lost), so that rounding it to float is right.
ES_FN float fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif ES_HAS_FMA
  return __builtin_fmaf(a, b, c);
#else
  double product = (double)a * (double)b, addend = c;
  double sum = product + addend;
  double back = sum - product;
  double error = (product - (sum - back)) + (addend - back);
  int64_t word = bit_cast<int64_t>(sum);
  bool inexact = error != 0 && error == error;  // it is NaN where the sum is not finite, and then nothing was lost
  int64_t away = ((error > 0) == (sum > 0)) ? 1 : -1;
  int64_t odd = word + ((word & 1) ? 0 : away);
  return (float)bit_cast<double>(inexact ? odd : word);
#endif
}

// Correctly rounded everywhere: hardware on CPUs, and NVRTC's default (-prec-div, -prec-sqrt).
ES_FN float divide(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

ES_FN float square_root(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

ES_FN bool is_nan(float x) { return x != x; }

// The larger of two; NaN if either is; of two zeros +0. (`fmaxf` differs between processors in both.)
ES_FN float maximum(float a, float b) {
  float larger = a > b ? a : b;
  larger = a == b ? from_bits(bits(a) & bits(b)) : larger;
  return a != a ? a : (b != b ? b : larger);
}

// The smaller of two; NaN if either is; of two zeros -0.
ES_FN float minimum(float a, float b) {
  float smaller = a < b ? a : b;
  smaller = a == b ? from_bits(bits(a) | bits(b)) : smaller;
  return a != a ? a : (b != b ? b : smaller);
}

}
ES_NAMESPACE_END
