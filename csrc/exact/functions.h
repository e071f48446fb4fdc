// Scalar functions of binary32 from IEEE operations alone: polynomials in fma, integers for exponents and signs.
//
// Branch-free but for `sine` and `cosine` of huge arguments, so that loops over them become vector code. Subnormals,
// overflow and NaN are right. docs/numerics.md has the polynomials' intervals and the measured bounds, which are at most
// 1 ulp. functions_wide.h has those that are computed in binary64, activations.h what is composed of these.
#pragma once

#include "base.h"

ES_NAMESPACE {

ES_FN float absolute(float x) { return from_bits(bits(x) & 0x7fffffff); }
ES_FN float copy_sign(float magnitude, float sign) {
  return from_bits((bits(magnitude) & 0x7fffffff) | (bits(sign) & 0x80000000));
}

// By Horner's rule, the highest power's coefficient first: of floats each step is one fma, of doubles a rounded product
// and a rounded sum.
template <class... Coefficients>
ES_FN float polynomial(float x, float p, Coefficients... lower) {
  ((p = fma(p, x, lower)), ...);
  return p;
}
template <class... Coefficients>
ES_FN double polynomial(double x, double p, Coefficients... lower) {
  ((p = p * x + lower), ...);
  return p;
}

// 1.5 * 2^23: after adding it the unit of the last place is 1. Its sum with x is x rounded to an integer, to nearest
// even, whose lowest bits can be read off the word.
constexpr float kShift = 12582912.0f;
ES_FN int32_t shifted_integer(float shifted) { return (int32_t)(bits(shifted) - 0x4b400000); }

// 2^k for -126 <= k <= 127.
ES_FN float power_of_two(int32_t k) { return from_bits((uint32_t)(k + 127) << 23); }

// x * 2^k for -252 <= k <= 254, rounded once where x is in [0.5, 2]: the first factor loses nothing.
ES_FN float scale(float x, int32_t k) {
  int32_t half = k >> 1;
  return x * power_of_two(half) * power_of_two(k - half);
}

// x between low < 0 and high > 0, by integers, which costs least: as such, negative floats follow positive ones. Not for
// NaN, which becomes one of the two.
ES_FN float limit(float x, float low, float high) {
  uint32_t word = bits(x) < bits(low) ? bits(x) : bits(low);
  return from_bits((int32_t)word < (int32_t)bits(high) ? word : bits(high));
}

// e^r = 1 + r + r^2 p(r) for |r| <= ln(2)/2.
ES_FN float exponential_tail(float r) {
  return polynomial(r, 0x1.6a4e74p-10f, 0x1.123980p-7f, 0x1.5558aep-5f, 0x1.555492p-3f, 0x1.fffffcp-2f);
}
ES_FN float exponential_core(float r) { return fma(r * r, exponential_tail(r), r); }

// x = k ln(2) + r with |r| <= ln(2)/2, for |x| <= 150.
struct Exponent {
  int32_t k;
  float r;
};
ES_FN Exponent split_exponent(float x) {
  float shifted = fma(x, 0x1.715476p+0f, kShift), k = shifted - kShift;
  float r = fma(k, -0x1.62e400p-1f, x);
  return {shifted_integer(shifted), fma(k, -0x1.7f7d1cp-20f, r)};
}

ES_FN float exponential(float x) {
  Exponent e = split_exponent(limit(x, -104.0f, 89.0f));  // 0 and infinite there, by the last multiplication
  float sum = 1.0f + e.r, lost = e.r - (sum - 1.0f);
  float result = scale(sum + fma(e.r * e.r, exponential_tail(e.r), lost), e.k);
  return x != x ? x : result;
}

ES_FN float exponential2(float x) {
  float y = limit(x, -151.0f, 129.0f);
  float shifted = y + kShift, r = y - (shifted - kShift);
  float p = polynomial(r, 0x1.416b5ep-13f, 0x1.5f082ep-10f, 0x1.3b2de0p-7f, 0x1.c6af7cp-5f, 0x1.ebfbdcp-3f,
                       0x1.62e430p-1f);
  float result = scale(fma(p, r, 1.0f), shifted_integer(shifted));
  return x != x ? x : result;
}

// e^x - 1. With t = 2^(k-1): half of it is t r + (t - 1/2) + t r^2 p(r), where the first sum keeps what it loses.
ES_FN float exponential_minus_1(float x) {
  Exponent e = split_exponent(limit(x, -18.0f, 89.0f));  // -1 and infinite there
  float p = polynomial(e.r, 0x1.9e6f62p-13f, 0x1.6d3a40p-10f, 0x1.1112dap-7f, 0x1.5554f8p-5f, 0x1.555554p-3f, 0.5f);
  float t = power_of_two(e.k - 1), high = t - 0.5f, low = (t - high) - 0.5f;
  float sum = fma(t, e.r, high), lost = fma(t, e.r, high - sum) + low;
  float half = sum + fma(t, p * (e.r * e.r), lost);
  return absolute(x) >= 0x1p-25f ? half + half : x;
}

// log(1 + m) by its polynomial in m, and k ln(2) added.
ES_FN float logarithm_end(float p, float m, float k) {
  p = fma(p, m, -0.5f);
  p = fma(p, m * m, m);
  return fma(k, 0x1.62e430p-1f, p);
}

// What the logarithm of x is, `result` if x is none of the special cases.
ES_FN float logarithm_at_borders(float x, float result) {
  result = x == kInfinity ? x : result;
  result = x == 0 ? -kInfinity : result;
  return x < 0 ? kNaN : (x != x ? x : result);
}

ES_FN float logarithm(float x) {
  bool subnormal = x < 0x1p-126f;
  uint32_t word = bits(subnormal ? x * 0x1p23f : x);
  int32_t exponent = (int32_t)((word - 0x3f2aaaabu) & 0xff800000u);  // so that the mantissa is in [2/3, 4/3)
  float m = from_bits(word - (uint32_t)exponent) - 1.0f;
  float k = fma((float)exponent, 0x1p-23f, subnormal ? -23.0f : 0.0f);
  float p = polynomial(m, -0x1.07e40ep-3f, 0x1.1e7642p-3f, -0x1.f32302p-4f, 0x1.1ed3e6p-3f, -0x1.559d06p-3f,
                       0x1.99d05ep-3f, -0x1.fffef6p-3f, 0x1.555506p-2f);
  return logarithm_at_borders(x, logarithm_end(p, m, k));
}

// log(1 + x). The exponent is that of 1 + x; m = (1 + x) 2^-k - 1 is put together from x itself.
ES_FN float logarithm_1_plus(float x) {
  uint32_t word = bits(1.0f + x);
  int32_t exponent = (int32_t)((word - 0x3f400000u) & 0xff800000u);  // the mantissa in [3/4, 3/2)
  float k = (float)exponent * 0x1p-23f;
  float down = from_bits(0x40800000u - (uint32_t)exponent);  // 4 * 2^-k; k = 128 must not leave the normal numbers
  float m = fma(x * 0.25f, down, fma(0.25f, down, -1.0f));
  float p = polynomial(m, -0x1.71e34cp-5f, 0x1.acf4b8p-4f, -0x1.0d98f2p-3f, 0x1.28807ap-3f, -0x1.54ed96p-3f,
                       0x1.99699ep-3f, -0x1.00004ap-2f, 0x1.5555a4p-2f);
  float result = logarithm_end(p, m, k);
  result = absolute(x) < 0x1p-25f || x == kInfinity ? x : result;
  result = x == -1.0f ? -kInfinity : result;
  return x < -1.0f ? kNaN : (x != x ? x : result);
}

ES_FN float hyperbolic_tangent(float x) {
  float t = absolute(x), s = t * t;
  float p = polynomial(s, 0x1.e85300p-14f, -0x1.aee1dep-11f, 0x1.8f9ddep-9f, -0x1.18de78p-7f, 0x1.64c0a2p-6f,
                       -0x1.b9f6dep-5f, 0x1.11103cp-3f, -0x1.555552p-2f);
  float small = fma(p * s, t, t);
  // 1 - 2 / (1 + e^2t), which is 1 from 9.02 on.
  Exponent e = split_exponent(t + t > 20.0f ? 20.0f : t + t);
  float power = (1.0f + exponential_core(e.r)) * power_of_two(e.k);
  float large = 1.0f - divide(2.0f, 1.0f + power);
  float result = t < 1.0f ? small : large;
  return x != x ? x : copy_sign(result, x);
}

// 1 / (1 + e^-x) as n / d with d = 1 + e^-|x| in two parts, and one correction of the quotient.
ES_FN float sigmoid(float x) {
  Exponent e = split_exponent(limit(-absolute(x), -104.0f, 89.0f));
  float core = exponential_core(e.r), one_plus = 1.0f + core;
  float high = scale(one_plus, e.k), low = scale(core - (one_plus - 1.0f), e.k);
  float d = 1.0f + high, rest = (high - (d - 1.0f)) + low;
  bool negative = x < 0;
  float n = negative ? high : 1.0f, n_low = negative ? low : 0.0f;
  float q = divide(n, d);
  float remainder = (fma(-q, d, n) + n_low) - q * rest;
  float result = fma(remainder, fma(d, -0.5f, 1.457f), q);  // 1 / d to a tenth is enough for the correction
  return x != x ? x : result;
}

ES_FN float error_function(float x) {
  float t = absolute(x), s = t * t;
  float p = polynomial(s, 0x1.4771fep-14f, -0x1.a3515ep-11f, 0x1.53f224p-8f, -0x1.b7f71ap-6f, 0x1.ce2ce6p-4f,
                       -0x1.81273ep-2f, 0x1.06eba8p-3f);
  float small = fma(p, t, t);
  // 1 - e^-(t + t q(t)); from 4 on it is 1.
  float u = t > 4.0f ? 4.0f : t;
  float q = polynomial(u, 0x1.da2d04p-17f, -0x1.716d3ep-12f, 0x1.ed6edep-9f, -0x1.89a1d8p-6f, 0x1.b46cbep-4f,
                       0x1.451942p-1f, 0x1.079260p-3f);
  Exponent e = split_exponent(-fma(q, u, u));
  float power = power_of_two(e.k), large = fma(-power, exponential_core(e.r), 1.0f - power);
  float result = t < 1.0f ? small : large;
  return x != x ? x : copy_sign(result, x);
}

// 1 / sqrt(x), corrected by what both roundings left over; scaled so that this is not subnormal.
ES_FN float reciprocal_square_root(float x) {
  bool tiny = x < 0x1p-100f;
  float y = tiny ? x * 0x1p+48f : x, root = square_root(y), inverse = divide(1.0f, root);
  float left = fma(-root, inverse, 1.0f) - fma(-root, root, y) * inverse * inverse * 0.5f;
  float corrected = fma(inverse, left, inverse);
  float result = y == 0 || y == kInfinity ? inverse : corrected;
  return tiny ? result * 0x1p+24f : result;
}

// x = (quadrant + 4 n) pi/2 + r + low, |r| <= pi/4, where low is less than the last place of r.
struct Angle {
  int32_t quadrant;
  float r, low;
};

// Up to here three parts of pi/2 are enough.
constexpr float kSmallAngle = 71476.0f;

ES_FN Angle reduce_angle(float x) {
  float shifted = fma(x, 0x1.45f306p-1f, kShift), j = shifted - kShift;
  float first = fma(j, -0x1.921fb0p+0f, x);  // exact
  float second = j * -0x1.5110b4p-22f, lost = fma(j, -0x1.5110b4p-22f, -second);
  float sum = first + second, back = sum - first;
  lost = ((first - (sum - back)) + (second - back)) + lost;
  float third = fma(j, -0x1.846988p-48f, lost), r = sum + third;
  return {shifted_integer(shifted), r, third - (r - sum)};
}

ES_FN float sine_of(Angle a) {
  float r = a.r, s = r * r;
  float p = polynomial(s, 0x1.7c2c50p-19f, -0x1.a05954p-13f, 0x1.111174p-7f, -0x1.555556p-3f);
  float sine = r + fma(p, s * r, fma(a.low, s * -0.5f, a.low));
  float q = polynomial(s, 0x1.99e0eep-16f, -0x1.6c0c1ap-10f, 0x1.55554ap-5f);
  float half = s * 0.5f, one = 1.0f - half;
  float rest = fma(-a.low, r, fma(q, s * s, (1.0f - one) - half));
  float cosine = one + rest;
  float y = (a.quadrant & 1) ? cosine : sine;
  return (a.quadrant & 2) ? -y : y;
}

// Right for |x| <= kSmallAngle, and branch-free.
ES_FN float sine_small(float x) {
  float y = sine_of(reduce_angle(x));
  return x == 0 ? x : y;
}
ES_FN float cosine_small(float x) {
  Angle a = reduce_angle(x);
  return sine_of({a.quadrant + 1, a.r, a.low});
}

// The same in binary64, for finite |x| > 1: x = mantissa * 2^exponent times the 96 bits of 2/pi that matter modulo 4,
// in integers.
struct WideAngle {
  int32_t quadrant;
  double r;
};
ES_FN WideAngle reduce_huge_angle(float x) {
  const uint32_t two_over_pi[8] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                   0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
  uint32_t word = bits(x) & 0x7fffffff;
  uint64_t mantissa = (word & 0x007fffff) | 0x00800000;
  int32_t from = (int32_t)(word >> 23) - 120, left = from & 31;  // the bit whose product has the weight 2
  const uint32_t* at = two_over_pi + (from >> 5);
  uint64_t first = (uint64_t)at[0] << 32 | at[1], second = (uint64_t)at[1] << 32 | at[2];
  uint64_t third = (uint64_t)at[2] << 32 | at[3];
  uint32_t w0 = (uint32_t)(first << left >> 32), w1 = (uint32_t)(second << left >> 32);
  uint32_t w2 = (uint32_t)(third << left >> 32);
  uint64_t turned = (mantissa * w0 << 32) + mantissa * w1 + (mantissa * w2 >> 32);  // unit: 2^-62 of pi/2
  uint64_t whole = (turned + (1ull << 61)) >> 62;
  double r = (double)(int64_t)(turned - (whole << 62)) * 0x1.921fb54442d18p-62;
  return {x < 0 ? -(int32_t)whole : (int32_t)whole, x < 0 ? -r : r};
}

// |r| <= pi/4.
ES_FN double wide_sine(double r) {
  double s = r * r;
  double p = polynomial(s, -0x1.a9619de3ca082p-26, 0x1.71d76d0be9be9p-19, -0x1.a019f93953709p-13,
                           0x1.1111110c87220p-7, -0x1.5555555552238p-3);
  return p * (s * r) + r;
}
ES_FN double wide_cosine(double r) {
  double s = r * r;
  double p = polynomial(s, 0x1.1bc7c4c522e69p-29, -0x1.27e02a8a3c945p-22, 0x1.a019faaa63737p-16,
                           -0x1.6c16c1676baa7p-10, 0x1.5555555553113p-5);
  return (p * s - 0.5) * s + 1.0;
}
ES_FN float sine_of(WideAngle a) {
  double y = (a.quadrant & 1) ? wide_cosine(a.r) : wide_sine(a.r);
  return (float)((a.quadrant & 2) ? -y : y);
}

ES_FN float sine(float x) {
  float t = absolute(x);
  if (t <= kSmallAngle) return sine_small(x);
  return t < kInfinity ? sine_of(reduce_huge_angle(x)) : kNaN;
}
ES_FN float cosine(float x) {
  float t = absolute(x);
  if (t <= kSmallAngle) return cosine_small(x);
  if (!(t < kInfinity)) return kNaN;
  WideAngle a = reduce_huge_angle(x);
  return sine_of(WideAngle{a.quadrant + 1, a.r});
}

}
ES_NAMESPACE_END
