// Scalar functions of binary32 whose inside is binary64: `+ - * /` and square root of doubles, without fma (which a
// baseline processor would have to emulate). Their results are off by little more than half a unit of the last place.
// For functions that training needs rarely: a GPU computes doubles slowly.
//
// Branch-free but for huge arguments of `tangent`.
#pragma once

#include "functions.h"

ES_NAMESPACE {

constexpr double kLn2 = 0x1.62e42fefa39efp-1, kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kPi = 0x1.921fb54442d18p+1;
constexpr double kWideShift = 0x1.8p+52;  // as kShift
constexpr double kWideInfinity = kInfinity;

ES_FN uint64_t word(double x) { return bit_cast<uint64_t>(x); }
ES_FN double wide_absolute(double x) { return bit_cast<double>(word(x) & 0x7fffffffffffffffull); }
ES_FN double wide_root(double x) {
#if defined(__CUDA_ARCH__)
  return __dsqrt_rn(x);
#else
  return __builtin_sqrt(x);
#endif
}

// v = 2^k m with m in [sqrt(1/2), sqrt(2)), v normal and positive; log(m).
struct WideLogarithm {
  double k, of_m;
};
ES_FN WideLogarithm wide_split(double v) {
  uint64_t moved = word(v) - 0x3fe6a09e667f3bcdull;
  int64_t exponent = (int64_t)(moved & 0xfff0000000000000ull);
  double m = bit_cast<double>(word(v) - (uint64_t)exponent);
  // The exponent as a double: its 12 bits in the mantissa of 1.5 * 2^52.
  double k = bit_cast<double>(0x4338000000000000ull + ((uint64_t)exponent >> 52)) - kWideShift;
  k = k >= 2048.0 ? k - 4096.0 : k;
  double s = (m - 1.0) / (m + 1.0), u = s * s;
  double p = polynomial(u, 0x1.2f04f621ffbebp-3, 0x1.39a1cc72bd249p-3, 0x1.74663de52de52p-3, 0x1.c71c521055303p-3,
                           0x1.24924941e522ap-2, 0x1.999999997feefp-2, 0x1.5555555555592p-1);
  return {k, p * (s * u) + (s + s)};
}
ES_FN double wide_logarithm(double v) {
  WideLogarithm l = wide_split(v);
  return l.k * kLn2 + l.of_m;
}

// log(1 + u) for u > -1: below 2^-10 its series, elsewhere the logarithm, corrected by what 1 + u lost.
ES_FN double wide_logarithm_1_plus(double u) {
  double v = 1.0 + u, lost = u - (v - 1.0);
  double large = wide_logarithm(v) + lost / v;
  double small = ((((0.2 * u - 0.25) * u + 1.0 / 3) * u - 0.5) * u) * u + u;
  return wide_absolute(u) < 0x1p-10 ? small : large;
}

// e^r - 1 for |r| <= ln(2)/2.
ES_FN double wide_exponential_core(double r) {
  double p = polynomial(r, 0x1.28bc5d2b0a737p-22, 0x1.72ea62bb7be81p-19, 0x1.a0198957f997ep-16, 0x1.a0198c1fb9346p-13,
                           0x1.6c16c18a77625p-10, 0x1.11111126101edp-7, 0x1.555555554ebe7p-5, 0x1.55555555505bep-3,
                           0x1.000000000000ep-1);
  return p * (r * r) + r;
}
// 2^k for a k that was shifted by kWideShift, |k| <= 1000.
ES_FN double wide_power_of_two(double shifted) { return bit_cast<double>((word(shifted) + 1023) << 52); }

// e^x for |x| <= 600.
ES_FN double wide_exponential(double x) {
  double shifted = x * 0x1.71547652b82fep+0 + kWideShift, k = shifted - kWideShift;
  double core = wide_exponential_core((x - k * kLn2High) - k * kLn2Low);
  return (1.0 + core) * wide_power_of_two(shifted);
}
ES_FN double wide_exponential_minus_1(double x) {
  double shifted = x * 0x1.71547652b82fep+0 + kWideShift, k = shifted - kWideShift;
  double core = wide_exponential_core((x - k * kLn2High) - k * kLn2Low), power = wide_power_of_two(shifted);
  return power * core + (power - 1.0);
}

ES_FN float logarithm2(float x) {
  WideLogarithm l = wide_split((double)x);
  return logarithm_at_borders(x, (float)(l.k + l.of_m * 0x1.71547652b82fep+0));
}

ES_FN float logarithm10(float x) {
  return logarithm_at_borders(x, (float)(wide_logarithm((double)x) * 0x1.bcb7b1526e50ep-2));
}

// Without a branch, where a compiler would make one of `?:` and lose the vector code.
ES_FN float select(bool condition, float yes, float no) {
  uint32_t mask = 0u - (uint32_t)condition;
  return from_bits((bits(yes) & mask) | (bits(no) & ~mask));
}

// x^y, general: 2^(y log2 |x|) with the rules of IEEE for zeros, infinities and signs.
ES_FN float power(float x, float y) {
  float t = absolute(x), size = absolute(y);
  WideLogarithm l = wide_split((double)t);
  double log2 = l.k + l.of_m * 0x1.71547652b82fep+0;
  log2 = t == 0 ? -kWideInfinity : log2;
  log2 = t == kInfinity ? kWideInfinity : log2;
  double z = (double)y * log2;
  z = z < -200.0 ? -200.0 : z;
  z = z > 200.0 ? 200.0 : z;
  double shifted = z + kWideShift;
  double core = wide_exponential_core((z - (shifted - kWideShift)) * kLn2);
  float result = (float)((1.0 + core) * wide_power_of_two(shifted));
  // Whether y is an integer, and odd. From 2^24 on every float is an even one.
  float limited = from_bits(bits(size) < bits(0x1p24f) ? bits(size) : bits(0x1p24f));
  int32_t whole = (int32_t)limited;
  uint32_t odd = (uint32_t)whole << 31;
  bool integer = (float)whole == limited;
  result = select(t == 1.0f, 1.0f, result);
  result = from_bits(bits(result) | (integer ? odd & bits(x) : 0u));
  result = select(!integer & (x < 0) & (t != kInfinity), kNaN, result);
  result = select((x != x) | (y != y), kNaN, result);
  return select((y == 0) | (x == 1.0f), 1.0f, result);
}

// atan(q) for 0 <= q <= 1.
ES_FN double wide_arc_tangent(double q) {
  bool far = q > 0x1.a827999fcef32p-2;  // tan(pi/8)
  double t = far ? (q - 1.0) / (q + 1.0) : q, u = t * t;
  double p = polynomial(u, 0x1.5ca5897f4d3a9p-6, -0x1.653c65e6b32c3p-5, 0x1.d26211ed96801p-5, -0x1.10067db981c2ap-4,
                           0x1.3afc5da9b55c1p-4, -0x1.745bc62caf907p-4, 0x1.c71c65f1cdb39p-4, -0x1.24924905ebef7p-3,
                           0x1.999999994ad4cp-3, -0x1.5555555555324p-2);
  double y = p * (u * t) + t;
  return far ? y + kPi / 4 : y;
}
// The angle of the point (x, y), neither of them NaN, with the sign of y.
ES_FN double wide_arc_tangent_2(double y, double x) {
  double a = wide_absolute(y), b = wide_absolute(x);
  double larger = a > b ? a : b, smaller = a > b ? b : a;
  double q = smaller == larger ? 1.0 : smaller / larger;  // of two infinities 1
  q = larger == 0 ? 0.0 : q;
  double angle = wide_arc_tangent(q);
  angle = a > b ? kPi / 2 - angle : angle;
  angle = (word(x) >> 63) ? kPi - angle : angle;
  return (word(y) >> 63) ? -angle : angle;
}

ES_FN float arc_tangent(float x) { return x != x ? x : (float)wide_arc_tangent_2((double)x, 1.0); }
ES_FN float arc_tangent_2(float y, float x) {
  float result = (float)wide_arc_tangent_2((double)y, (double)x);
  return x != x || y != y ? kNaN : result;
}
ES_FN float arc_sine(float x) {
  double y = (double)x;
  float result = (float)wide_arc_tangent_2(y, wide_root((1.0 - y) * (1.0 + y)));
  return absolute(x) <= 1.0f ? result : kNaN;
}
ES_FN float arc_cosine(float x) {
  double y = (double)x;
  float result = (float)wide_arc_tangent_2(wide_root((1.0 - y) * (1.0 + y)), y);
  return absolute(x) <= 1.0f ? result : kNaN;
}

ES_FN float hyperbolic_sine(float x) {
  double t = (double)absolute(x), e = wide_exponential_minus_1(t > 100.0 ? 100.0 : t);
  float result = (float)((e + e / (e + 1.0)) * 0.5);
  return x != x ? x : copy_sign(result, x);
}
ES_FN float hyperbolic_cosine(float x) {
  double t = (double)absolute(x), e = wide_exponential(t > 100.0 ? 100.0 : t);
  float result = (float)((e + 1.0 / e) * 0.5);
  return x != x ? x : result;
}
ES_FN float arc_hyperbolic_sine(float x) {
  double t = (double)absolute(x), square = t * t;
  float result = (float)wide_logarithm_1_plus(t + square / (1.0 + wide_root(square + 1.0)));
  return x != x || absolute(x) == kInfinity ? x : copy_sign(result, x);
}
ES_FN float arc_hyperbolic_cosine(float x) {
  double t = (double)x - 1.0;
  float result = (float)wide_logarithm_1_plus(t + wide_root(t * (t + 2.0)));
  return x >= 1.0f ? (x == kInfinity ? x : result) : kNaN;
}
ES_FN float arc_hyperbolic_tangent(float x) {
  double t = (double)absolute(x);
  float result = (float)(0.5 * wide_logarithm_1_plus((t + t) / (1.0 - t)));
  result = t < 1.0 ? result : (t == 1.0 ? kInfinity : kNaN);
  return copy_sign(result, x);
}

ES_FN float tangent_of(WideAngle a) {
  double sine = wide_sine(a.r), cosine = wide_cosine(a.r);
  return (float)((a.quadrant & 1) ? -(cosine / sine) : sine / cosine);
}
// Right for |x| <= kSmallAngle.
ES_FN float tangent_small(float x) {
  double shifted = (double)x * 0x1.45f306dc9c883p-1 + kWideShift, j = shifted - kWideShift;
  double r = ((double)x - j * 0x1.921fb544p+0) - j * 0x1.0b4611a626331p-34;
  float result = tangent_of({(int32_t)(word(shifted) & 3), r});
  return x == 0 ? x : result;
}
ES_FN float tangent(float x) {
  float t = absolute(x);
  if (t <= kSmallAngle) return tangent_small(x);
  return t < kInfinity ? tangent_of(reduce_huge_angle(x)) : kNaN;
}

// 1 - erf(x): for x >= 0 it is e^(-x^2) g(t), t = (x - 2) / (x + 2).
ES_FN float error_function_complement(float x) {
  double y = (double)absolute(x);
  y = y > 11.0 ? 11.0 : y;
  double t = (y - 2.0) / (y + 2.0);
  double p = polynomial(t, -0x1.889d282b75682p-23, -0x1.e3404122d251ep-22, 0x1.832013252eac9p-21, 0x1.e777c778b4bc0p-19,
                           0x1.d66d6bbbab91fp-20, -0x1.cff55b3d2bbd3p-17, -0x1.d16b448bb530ep-16, 0x1.ccb4bf2db13b9p-16,
                           0x1.6dc1468576156p-13, 0x1.6d82145d76681p-15, -0x1.016bdcf2f797ap-10, -0x1.bc25ef326cc80p-11,
                           0x1.ca95f05ee1181p-8, 0x1.e94716c54f709p-9, -0x1.437f0b6af2612p-4, 0x1.eeea7dc88c3d8p-3,
                           -0x1.b57034efd20fap-2, 0x1.058671b52c82ep-2);
  double upper = p * wide_exponential(-(y * y));
  float result = (float)(x < 0 ? 2.0 - upper : upper);
  return x != x ? x : result;
}

// The inverse of erf: x times a polynomial in w = -log(1 - x^2), for w >= 5 in its root.
ES_FN float inverse_error_function(float x) {
  double y = (double)x, product = (1.0 - y) * (1.0 + y);
  double w = -wide_logarithm(product > 0x1p-30 ? product : 0x1p-30);
  double t = w - 2.5, p = polynomial(t, -0x1.1bd5f8fe506efp-45, 0x1.e73d1c7adcf5ep-42, 0x1.c5c92d2825d78p-42,
                                        -0x1.07da93877e3dap-35, 0x1.0e1c4ea600416p-33, 0x1.ef8dfed151bd0p-31,
                                        -0x1.759879fbdde66p-27, 0x1.cd95b4b96078bp-27, 0x1.0106f4880921fp-21,
                                        -0x1.ca93116a5b5adp-19, -0x1.4f487c07471aap-18, 0x1.c9b43aaeb958dp-13,
                                        -0x1.4863cdbaec44dp-10, -0x1.11c3c30921489p-8, 0x1.f91e8993dd58ap-3,
                                        0x1.805c5cfcee389p+0);
  double v = wide_root(w > 0 ? w : 0.0) - 3.0, q = 0x1.5d267cfb5dd21p-17;
  q = q * v - 0x1.bdc9ab5f9611ap-16;
  q = q * v - 0x1.f394c3f3a9139p-16;
  q = q * v + 0x1.ac0d138c1ba65p-13;
  q = q * v - 0x1.33f6f8f71bad9p-12;
  q = q * v - 0x1.33fbb6dc16ac8p-13;
  q = q * v + 0x1.85d2e8e0530c0p-10;
  q = q * v - 0x1.d28b515a5d2e0p-9;
  q = q * v + 0x1.748d2a0eddc77p-8;
  q = q * v - 0x1.f4f0899e83ddap-8;
  q = q * v + 0x1.358305c8576e0p-7;
  q = q * v + 0x1.006dca718ce47p+0;
  q = q * v + 0x1.6a9efbd5d58f7p+1;
  float result = (float)((w < 5.0 ? p : q) * y);
  float size = absolute(x);
  result = size == 1.0f ? copy_sign(kInfinity, x) : result;
  return size <= 1.0f ? result : kNaN;
}

}
ES_NAMESPACE_END
