// Elements of any real type as unsigned numbers that are ordered as they are: NaN is above everything, and +0 and -0 are
// equal.
#pragma once

#include "half.h"

ES_NAMESPACE {

enum class Ordered { u8, i8, i16, i32, i64, f32, bf16, f16, f64 };

// How many of the lower bits of a key are in use.
ES_FN int key_bits(Ordered type) {
  switch (type) {
    case Ordered::u8:
    case Ordered::i8:
      return 8;
    case Ordered::i16:
      return 16;
    case Ordered::i64:
    case Ordered::f64:
      return 64;
    default:
      return 32;
  }
}

ES_FN uint64_t key_of(float x) {
  uint32_t word = bits(x);
  if (x != x) return 0xffffffffu;
  if (x == 0) return 0x80000000u;
  return word >> 31 ? (uint32_t)~word : word | 0x80000000u;
}

ES_FN uint64_t key_of(double x) {
  uint64_t word = bit_cast<uint64_t>(x);
  if (x != x) return ~(uint64_t)0;
  if (x == 0) return (uint64_t)1 << 63;
  return word >> 63 ? ~word : word | (uint64_t)1 << 63;
}

ES_FN uint64_t ascending_key(Ordered type, const void* data, int64_t at) {
  switch (type) {
    case Ordered::u8:
      return ((const uint8_t*)data)[at];
    case Ordered::i8:
      return (uint8_t)(((const uint8_t*)data)[at] ^ 0x80u);
    case Ordered::i16:
      return (uint16_t)(((const uint16_t*)data)[at] ^ 0x8000u);
    case Ordered::i32:
      return ((const uint32_t*)data)[at] ^ 0x80000000u;
    case Ordered::i64:
      return ((const uint64_t*)data)[at] ^ (uint64_t)1 << 63;
    case Ordered::f32:
      return key_of(((const float*)data)[at]);
    case Ordered::bf16:
      return key_of(widen(((const bf16*)data)[at]));
    case Ordered::f16:
      return key_of(widen(((const fp16*)data)[at]));
    default:
      return key_of(((const double*)data)[at]);
  }
}

// The largest key of a type.
ES_FN uint64_t last_key(Ordered type) { return ~(uint64_t)0 >> (64 - key_bits(type)); }

// Descending: the same backwards, but for equals, of which the first still comes first.
ES_FN uint64_t key_of(Ordered type, const void* data, int64_t at, bool descending) {
  const uint64_t key = ascending_key(type, data, at);
  return descending ? last_key(type) - key : key;
}

}
ES_NAMESPACE_END
