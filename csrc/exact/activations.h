// Activation functions, their derivatives, and pointwise losses: what is composed of the scalar functions. Each is the
// order of its operations, written with fma where it is one. Never less exact than PyTorch's by more than half.
#pragma once

#include "functions.h"
#include "functions_wide.h"

ES_NAMESPACE {

constexpr float kHalfRoot2 = 0x1.6a09e6p-1f;      // sqrt(1/2)
constexpr float kNormalPeak = 0x1.988454p-2f;     // 1 / sqrt(2 pi)
constexpr float kGeluBeta = 0x1.988454p-1f;       // sqrt(2 / pi)
constexpr float kGeluKappa = 0x1.6e4e26p-5f;      // 0.044715
constexpr float kGeluKappa3 = 0x1.12ba9ep-3f;     // 3 * 0.044715

// x > 0 ? x : +0, NaN kept.
ES_FN float rectify(float x) { return x > 0 ? x : (x != x ? x : 0.0f); }

// ---- sigmoid and its kin

ES_FN float silu(float x) { return x * sigmoid(x); }
ES_FN float silu_backward(float grad, float x) {
  float s = sigmoid(x);
  return grad * s * fma(x, 1.0f - s, 1.0f);
}
ES_FN float log_sigmoid(float x) {
  float end = logarithm_1_plus(exponential(-absolute(x)));
  return (x < 0 ? x : 0.0f) - (x != x ? x : end);
}
ES_FN float log_sigmoid_backward(float grad, float x) { return grad * sigmoid(-x); }
ES_FN float glu(float x, float gate) { return x * sigmoid(gate); }
// s: the gate's sigmoid.
ES_FN float glu_backward(float s, float x, float grad) { return (1.0f - s) * s * x * grad; }
ES_FN float sigmoid_backward(float grad, float y) { return grad * (1.0f - y) * y; }
ES_FN float tanh_backward(float grad, float y) { return grad * fma(-y, y, 1.0f); }

// tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2).
ES_FN float mish_tanh(float x) {
  float e = exponential(x > 20.0f ? 20.0f : x), n = e * (e + 2.0f);
  return divide(n, n + 2.0f);
}
ES_FN float mish(float x) { return x * mish_tanh(x); }
ES_FN float mish_backward(float grad, float x) {
  float t = mish_tanh(x);
  return grad * fma(x * sigmoid(x), fma(-t, t, 1.0f), t);
}

// ---- exponentials

ES_FN float softplus(float x, float beta, float threshold) {
  float y = x * beta;
  return y > threshold ? x : divide(logarithm_1_plus(exponential(y)), beta);
}
ES_FN float softplus_backward(float grad, float x, float beta, float threshold) {
  float y = x * beta;
  return y > threshold ? grad : grad * sigmoid(y);
}
// negative = alpha * scale, rounded.
ES_FN float elu(float x, float negative, float scale, float input_scale) {
  return x <= 0 ? exponential_minus_1(x * input_scale) * negative : x * scale;
}
ES_FN float elu_backward(float grad, float x, float negative, float scale, float input_scale) {
  return x <= 0 ? grad * input_scale * negative * exponential(x * input_scale) : grad * scale;
}
// y: what elu returned.
ES_FN float elu_backward_result(float grad, float y, float negative, float scale, float input_scale) {
  return y <= 0 ? grad * input_scale * (y + negative) : grad * scale;
}

// ---- gelu

ES_FN float gelu(float x) { return x * 0.5f * (1.0f + error_function(x * kHalfRoot2)); }
ES_FN float gelu_backward(float grad, float x) {
  float below = 0.5f * (1.0f + error_function(x * kHalfRoot2));
  float density = kNormalPeak * exponential(x * x * -0.5f);
  return grad * fma(x, density, below);
}
ES_FN float gelu_tanh_inner(float x) { return kGeluBeta * fma(kGeluKappa, x * x * x, x); }
ES_FN float gelu_tanh(float x) { return x * 0.5f * (1.0f + hyperbolic_tangent(gelu_tanh_inner(x))); }
ES_FN float gelu_tanh_backward(float grad, float x) {
  float t = hyperbolic_tangent(gelu_tanh_inner(x)), left = 0.5f * (1.0f + t);
  float inner = kGeluBeta * fma(kGeluKappa3, x * x, 1.0f);
  return grad * fma(0.5f * x * fma(-t, t, 1.0f), inner, left);
}

// ---- straight lines

ES_FN float clamp(float x, float low, float high) { return minimum(maximum(x, low), high); }
// As `maximum` and `minimum`, but NaN only if both are.
ES_FN float maximum_number(float x, float y) {
  float a = x != x ? y : x, b = y != y ? x : y;
  return maximum(a, b);
}
ES_FN float minimum_number(float x, float y) {
  float a = x != x ? y : x, b = y != y ? x : y;
  return minimum(a, b);
}
ES_FN float hardsigmoid(float x) { return divide(clamp(x + 3.0f, 0.0f, 6.0f), 6.0f); }
ES_FN float hardsigmoid_backward(float grad, float x) { return x > -3.0f && x < 3.0f ? divide(grad, 6.0f) : 0.0f; }
ES_FN float hardswish(float x) { return divide(x * clamp(x + 3.0f, 0.0f, 6.0f), 6.0f); }
ES_FN float hardswish_backward(float grad, float x) {
  float between = grad * (divide(x, 3.0f) + 0.5f);
  return x < -3.0f ? 0.0f : (x >= 3.0f ? grad : between);
}

ES_FN float hardtanh_backward(float grad, float x, float low, float high) { return x <= low || x >= high ? 0.0f : grad; }
ES_FN float softshrink(float x, float size) {
  float result = x > size ? x - size : (x < -size ? x + size : 0.0f);
  return x != x ? x : result;
}
ES_FN float shrink_backward(float grad, float x, float size) { return x >= -size && x <= size ? 0.0f : grad; }

// ---- quotients and remainders

// Towards zero, and down.
ES_FN float truncate(float x) {
  float t = absolute(x), limited = t < 0x1p23f ? t : 0.0f;
  return t < 0x1p23f ? copy_sign((float)(int32_t)limited, x) : x;
}
ES_FN float floor_of(float x) {
  float t = truncate(x);
  return t > x ? t - 1.0f : t;
}

// a - b trunc(a / b), exact: mantissas in integers, 40 bits of the quotient at a time.
ES_FN float modulo(float a, float b) {
  uint32_t x = bits(a) & 0x7fffffff, y = bits(b) & 0x7fffffff;
  if (x >= 0x7f800000 || y > 0x7f800000 || y == 0) return kNaN;
  if (x < y) return a;
  int32_t x_exponent = (int32_t)(x >> 23), y_exponent = (int32_t)(y >> 23);
  uint64_t rest = x_exponent ? ((x & 0x7fffff) | 0x800000) : x, divisor = y_exponent ? ((y & 0x7fffff) | 0x800000) : y;
  x_exponent = x_exponent ? x_exponent : 1;
  y_exponent = y_exponent ? y_exponent : 1;
  rest %= divisor;
  for (int32_t left = x_exponent - y_exponent; left > 0; left -= 40) rest = (rest << (left < 40 ? left : 40)) % divisor;
  double unit = bit_cast<double>((uint64_t)(y_exponent + 1023 - 150) << 52);
  return copy_sign((float)((double)rest * unit), a);
}
// With the sign of b.
ES_FN float remainder_of(float a, float b) {
  float rest = modulo(a, b);
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}
ES_FN float floor_divide(float a, float b) {
  float rest = modulo(a, b), quotient = divide(a - rest, b), plain = divide(a, b);
  quotient = rest != 0 && (b < 0) != (rest < 0) ? quotient - 1.0f : quotient;
  float result = floor_of(quotient);
  result = quotient - result > 0.5f ? result + 1.0f : result;
  result = quotient == 0 ? copy_sign(0.0f, plain) : result;
  return b == 0 ? plain : result;
}

// ---- powers, logarithms

ES_FN float logit(float x, float low, float high) {
  float y = x < low ? low : (x > high ? high : x);
  return logarithm(divide(y, 1.0f - y));
}
// Where x was clamped to (low, high): `outside`.
ES_FN float logit_backward(float grad, float x, float low, float high, float outside) {
  return x < low || x > high ? outside : divide(grad, x * (1.0f - x));
}
ES_FN float x_log_y(float x, float y) {
  float result = x * logarithm(y);
  return y != y ? y : (x == 0 ? 0.0f : result);
}
ES_FN float x_log_1_plus_y(float x, float y) {
  float result = x * logarithm_1_plus(y);
  return y != y ? y : (x == 0 ? 0.0f : result);
}
ES_FN float entropy(float x) {
  float result = -x * logarithm(x);
  return x < 0 ? -kInfinity : (x == 0 ? 0.0f : result);
}
ES_FN float log_add_exp(float x, float y) {
  float larger = maximum(x, y), result = larger + logarithm_1_plus(exponential(-absolute(x - y)));
  return absolute(x) == kInfinity && x == y ? x : result;
}
ES_FN float log_add_exp2(float x, float y) {
  float e = exponential2(-absolute(x - y));
  float larger = maximum(x, y), result = larger + logarithm_1_plus(e) * 0x1.715476p+0f;
  return absolute(x) == kInfinity && x == y ? x : result;
}
ES_FN float hypotenuse(float x, float y) {
  double a = (double)x, b = (double)y;
  float result = (float)wide_root(a * a + b * b);
  return absolute(x) == kInfinity || absolute(y) == kInfinity ? kInfinity : result;
}
ES_FN float sinc(float x) {
  float y = x * 0x1.921fb6p+1f, result = divide(sine(y), y);
  return x == 0 ? 1.0f : result;
}

// ---- interpolation

// x + weight (end - x), from the nearer end.
ES_FN float lerp(float x, float end, float weight) {
  float apart = end - x;
  return absolute(weight) < 0.5f ? fma(weight, apart, x) : fma(-apart, 1.0f - weight, end);
}
ES_FN float add_product(float x, float a, float b, float value) { return fma(value * a, b, x); }
ES_FN float add_quotient(float x, float a, float b, float value) { return x + divide(value * a, b); }

// ---- losses and their derivatives, multiplied by `norm` (1, or 1 / n for a mean)

ES_FN float squared_error(float x, float y) {
  float d = x - y;
  return d * d;
}
ES_FN float squared_error_backward(float x, float y, float grad, float norm) { return norm * (x - y) * grad; }
ES_FN float smooth_l1(float x, float y, float beta) {
  float d = absolute(x - y);
  return d < beta ? divide(0.5f * d * d, beta) : d - 0.5f * beta;
}
ES_FN float smooth_l1_backward(float x, float y, float grad, float norm, float beta) {
  float d = x - y;
  float straight = d > 0 ? norm * grad : -norm * grad;
  float curved = divide(norm * d * grad, beta);
  return d != d ? d : (d <= -beta || d >= beta ? straight : curved);
}
ES_FN float huber(float x, float y, float delta) {
  float d = absolute(x - y);
  return d <= delta ? 0.5f * d * d : delta * (d - 0.5f * delta);
}
ES_FN float huber_backward(float x, float y, float grad, float norm, float delta) {
  float d = x - y;
  float straight = (d > 0 ? norm : -norm) * grad * delta;
  return d != d ? d : (d <= -delta || d >= delta ? straight : norm * d * grad);
}
// Logarithms are not below -100.
ES_FN float binary_cross_entropy(float x, float target) {
  float one = logarithm(x), zero = logarithm_1_plus(-x);
  one = one < -100.0f ? -100.0f : one;
  zero = zero < -100.0f ? -100.0f : zero;
  return fma(target - 1.0f, zero, -(target * one));
}
ES_FN float binary_cross_entropy_backward(float grad, float x, float target) {
  float below = (1.0f - x) * x;
  return divide(grad * (x - target), below < 1e-12f ? 1e-12f : below);
}

}
ES_NAMESPACE_END
