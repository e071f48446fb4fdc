// Values of each distribution from random words. A value depends on its words and the call's parameters alone.
#pragma once

#include "base.h"

ES_NAMESPACE {

// 0 <= u < 1, a multiple of 2^-24.
ES_FN float unit(uint32_t word) { return (float)(int32_t)(word >> 8) * 0x1p-24f; }

// 0 < u < 1, with as many digits near 0 as the word has.
ES_FN float open_unit(uint32_t word) {
  float u = fma((float)(int32_t)(word >> 1), 0x1p-31f, 0x1p-32f);
  return u < 1 ? u : 1 - 0x1p-24f;
}

// from + u * (to - from), below `to`: `last` is the largest value of the tensor's type that is allowed.
struct Uniform {
  float from, range, last;
};

ES_FN float uniform_of(uint32_t word, Uniform d) { return fma(unit(word), d.range, d.from); }

// 1 with probability p: where word * 2^-32 < p, compared exactly.
ES_FN bool bernoulli_of(uint32_t word, double p) { return (double)word * 0x1p-32 < p; }

// The upper 64 bits of the product.
ES_FN uint64_t multiply_high(uint64_t a, uint64_t b) {
  uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
  uint64_t middle = a1 * b0 + ((a0 * b0) >> 32);
  uint64_t other = a0 * b1 + (uint32_t)middle;
  return a1 * b1 + (middle >> 32) + (other >> 32);
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
