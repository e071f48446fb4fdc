// Values of each distribution from random words. A value depends on its words and the call's parameters alone.
#pragma once

#include "functions.h"
#include "search.h"

ES_NAMESPACE {

// 0 <= u < 1, a multiple of 2^-24.
ES_FN float unit(uint32_t word) { return (float)(int32_t)(word >> 8) * 0x1p-24f; }

// 0 < u < 1, with as many digits near 0 as the word has.
ES_FN float open_unit(uint32_t word) {
  float u = fma((float)(int32_t)(word >> 1), 0x1p-31f, 0x1p-32f);
  return u < 1 ? u : 1 - 0x1p-24f;
}

// from + u * range. (It can come to the end of the range when it is rounded: who stores it sees to that.)
struct Uniform {
  float from, range;
};

ES_FN float uniform_of(uint32_t word, Uniform d) { return fma(unit(word), d.range, d.from); }

// The same with 53 bits for binary64, from two words.
ES_FN double unit(uint64_t words) { return (double)(int64_t)(words >> 11) * 0x1p-53; }

// A direction: the sine and cosine of word * 2^-32 turns, from the nearest multiple of a quarter turn.
struct Direction {
  float sine, cosine;
};

ES_FN Direction direction_of(uint32_t word) {
  uint32_t quadrant = (word + 0x20000000u) >> 30;
  float r = (float)(int32_t)(word - (quadrant << 30)) * 0x1.921fb6p-30f;  // pi/2 * 2^-30, |r| <= pi/4
  float q = r * r, s = 0x1.7c2c50p-19f, c = 0x1.99e0eep-16f;
  s = fma(s, q, -0x1.a05954p-13f);
  s = fma(s, q, 0x1.111174p-7f);
  s = fma(s, q, -0x1.555556p-3f);
  s = fma(s, q * r, r);
  c = fma(c, q, -0x1.6c0c1ap-10f);
  c = fma(c, q, 0x1.55554ap-5f);
  c = fma(c, q, -0.5f);
  c = fma(c, q, 1.0f);
  float sine = (quadrant & 1) ? c : s, cosine = (quadrant & 1) ? s : c;
  return {(quadrant & 2) ? -sine : sine, ((quadrant + 1) & 2) ? -cosine : cosine};
}

// Two independent standard normal numbers (Box and Muller): .cosine and .sine times the radius.
ES_FN Direction normal_pair_of(uint32_t first, uint32_t second) {
  float radius = square_root(-2.0f * logarithm(open_unit(first)));
  Direction d = direction_of(second);
  return {radius * d.sine, radius * d.cosine};
}

ES_FN float exponential_of(uint32_t word, float rate) { return divide(-logarithm(open_unit(word)), rate); }

// The tangent of an odd multiple of 2^-32 turns, in half a turn: it has no pole there.
ES_FN float cauchy_of(uint32_t word, float median, float sigma) {
  Direction d = direction_of(word >> 1 | 1);
  return fma(divide(d.sine, d.cosine), sigma, median);
}

// The number of the first success: ceil(log(u) / log(1 - p)), at least 1. `scale` is log(1 - p).
ES_FN float geometric_of(uint32_t word, float scale) {
  float x = divide(logarithm(open_unit(word)), scale);
  float whole = (float)(int32_t)(x < 0x1p24f ? x : 0.0f);
  float up = whole < x ? whole + 1.0f : whole;
  up = x < 0x1p24f ? up : x;
  return up < 1 ? 1.0f : up;
}

// 1 with probability p: where word * 2^-32 < p, compared exactly.
ES_FN bool bernoulli_of(uint32_t word, double p) { return (double)word * 0x1p-32 < p; }

ES_FN bool is_probability(double p) { return p >= 0 && p <= 1; }
ES_FN bool is_weight(double w) { return w >= 0 && w < kInfinity; }

// An index below `width`, each as often as its weight says. `upto` holds the sums of the weights up to each.
ES_FN int64_t choice_of(uint64_t words, const double* upto, int64_t width) {
  const double u = unit(words) * upto[width - 1];
  return first_that(width - 1, [=](int64_t i) { return upto[i] > u; });
}

// The upper 64 bits of the product.
ES_FN uint64_t multiply_high(uint64_t a, uint64_t b) {
#if defined(__SIZEOF_INT128__) && !defined(__CUDACC__)
  return (uint64_t)(((unsigned __int128)a * b) >> 64);
#else
  uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
  uint64_t middle = a1 * b0 + ((a0 * b0) >> 32);
  uint64_t other = a0 * b1 + (uint32_t)middle;
  return a1 * b1 + (middle >> 32) + (other >> 32);
#endif
}

// base .. base + range - 1; a range of 0 is 2^64.
struct Integers {
  uint64_t range;
  int64_t base;
};

ES_FN int64_t integer_of(uint64_t words, Integers d) {
  return (int64_t)((d.range ? multiply_high(words, d.range) : words) + (uint64_t)d.base);
}

}
ES_NAMESPACE_END
