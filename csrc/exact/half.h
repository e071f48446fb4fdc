// bf16 and fp16: widened exactly, rounded once, to nearest even. Subnormals are kept; NaN stays NaN.
#pragma once

#include "base.h"

ES_NAMESPACE {

struct bf16 {
  uint16_t word;
};
struct fp16 {
  uint16_t word;
};

ES_FN float widen(float x) { return x; }
ES_FN float widen(bf16 x) { return from_bits((uint32_t)x.word << 16); }

// Through a multiplication that moves the exponent, which is exact, subnormals included.
ES_FN float widen(fp16 x) {
  uint32_t sign = (uint32_t)(x.word & 0x8000) << 16, magnitude = (uint32_t)(x.word & 0x7fff) << 13;
  float scaled = from_bits(magnitude) * from_bits(0x77800000);  // 2^112
  bool special = (x.word & 0x7c00) == 0x7c00;
  return from_bits(sign | (special ? (magnitude | 0x7f800000) : bits(scaled)));
}

template <class T>
ES_FN T narrow(float x);

template <>
ES_FN float narrow<float>(float x) {
  return x;
}

template <>
ES_FN bf16 narrow<bf16>(float x) {
  uint32_t word = bits(x);
  uint32_t rounded = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
  uint32_t nan = (word >> 16) | 0x40;
  return bf16{(uint16_t)(x != x ? nan : rounded)};
}

template <>
ES_FN fp16 narrow<fp16>(float x) {
  uint32_t word = bits(x), sign = (word >> 16) & 0x8000, magnitude = word & 0x7fffffff;
  // Normal results: round the mantissa to 10 bits; a carry into the exponent is right. 65520 and more become infinite.
  uint32_t normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13;
  normal = normal > 0x7c00 ? 0x7c00 : normal;
  // Subnormal results: adding 0.5 puts the unit of the last place at 2^-24, so that the addition rounds there.
  uint32_t subnormal = bits(from_bits(magnitude) + 0.5f) - 0x3f000000;
  uint32_t result = magnitude < 0x38800000 ? subnormal : normal;
  result = magnitude >= 0x7f800000 ? (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00) : result;
  return fp16{(uint16_t)(sign | result)};
}

}
ES_NAMESPACE_END
