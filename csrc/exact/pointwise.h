// Every pointwise operator of exact mode, once: its name, how many tensors it takes, and one element of its result from
// theirs (x, y, z) and from numbers (c). Kernels are loops over this list, for CPUs and for CUDA.
#pragma once

#include "activations.h"

// clang-format off
#define ES_POINTWISE(F)                                                      \
  F(exp, 1, exponential(x))                                                  \
  F(exp2, 1, exponential2(x))                                                \
  F(expm1, 1, exponential_minus_1(x))                                        \
  F(log, 1, logarithm(x))                                                    \
  F(log1p, 1, logarithm_1_plus(x))                                           \
  F(log2, 1, logarithm2(x))                                                  \
  F(log10, 1, logarithm10(x))                                                \
  F(tanh, 1, hyperbolic_tangent(x))                                          \
  F(sigmoid, 1, sigmoid(x))                                                  \
  F(erf, 1, error_function(x))                                               \
  F(erfc, 1, error_function_complement(x))                                   \
  F(erfinv, 1, inverse_error_function(x))                                    \
  F(rsqrt, 1, reciprocal_square_root(x))                                     \
  F(sqrt, 1, square_root(x))                                                 \
  F(sin, 1, sine(x))                                                         \
  F(cos, 1, cosine(x))                                                       \
  F(tan, 1, tangent(x))                                                      \
  F(asin, 1, arc_sine(x))                                                    \
  F(acos, 1, arc_cosine(x))                                                  \
  F(atan, 1, arc_tangent(x))                                                 \
  F(sinh, 1, hyperbolic_sine(x))                                             \
  F(cosh, 1, hyperbolic_cosine(x))                                           \
  F(asinh, 1, arc_hyperbolic_sine(x))                                        \
  F(acosh, 1, arc_hyperbolic_cosine(x))                                      \
  F(atanh, 1, arc_hyperbolic_tangent(x))                                     \
  F(sinc, 1, sinc(x))                                                        \
  F(entr, 1, entropy(x))                                                     \
  F(logit, 1, logit(x, c[0], c[1]))                                          \
  F(silu, 1, silu(x))                                                        \
  F(log_sigmoid, 1, log_sigmoid(x))                                          \
  F(mish, 1, mish(x))                                                        \
  F(softplus, 1, softplus(x, c[0], c[1]))                                    \
  F(elu, 1, elu(x, c[0], c[1], c[2]))                                        \
  F(gelu, 1, gelu(x))                                                        \
  F(gelu_tanh, 1, gelu_tanh(x))                                              \
  F(hardsigmoid, 1, hardsigmoid(x))                                          \
  F(hardswish, 1, hardswish(x))                                              \
  F(softshrink, 1, softshrink(x, c[0]))                                      \
  F(clamp_both, 1, clamp(x, c[0], c[1]))                                     \
  F(clamp_below, 1, maximum(x, c[0]))                                        \
  F(clamp_above, 1, minimum(x, c[0]))                                        \
  F(square, 1, x * x)                                                        \
  F(cube, 1, x * x * x)                                                      \
  F(power_scalar, 1, power(x, c[0]))                                         \
  F(inverse_square, 1, divide(1.0f, x * x))                                  \
  F(exp_of_minus_abs, 1, exponential(-absolute(x)))                          \
  F(add_scaled, 2, fma(c[0], y, x))                                          \
  F(divide, 2, divide(x, y))                                                 \
  F(power, 2, power(x, y))                                                   \
  F(atan2, 2, arc_tangent_2(x, y))                                           \
  F(hypot, 2, hypotenuse(x, y))                                              \
  F(maximum, 2, maximum(x, y))                                               \
  F(minimum, 2, minimum(x, y))                                               \
  F(fmax, 2, maximum_number(x, y))                                           \
  F(fmin, 2, minimum_number(x, y))                                           \
  F(fmod, 2, modulo(x, y))                                                   \
  F(remainder, 2, remainder_of(x, y))                                        \
  F(div_floor, 2, floor_divide(x, y))                                        \
  F(div_trunc, 2, truncate(divide(x, y)))                                    \
  F(copysign, 2, copy_sign(x, y != y ? 1.0f : y))                            \
  F(logaddexp, 2, log_add_exp(x, y))                                         \
  F(logaddexp2, 2, log_add_exp2(x, y))                                       \
  F(xlogy, 2, x_log_y(x, y))                                                 \
  F(xlog1py, 2, x_log_1_plus_y(x, y))                                        \
  F(glu, 2, glu(x, y))                                                       \
  F(sigmoid_backward, 2, sigmoid_backward(x, y))                             \
  F(tanh_backward, 2, tanh_backward(x, y))                                   \
  F(silu_backward, 2, silu_backward(x, y))                                   \
  F(mish_backward, 2, mish_backward(x, y))                                   \
  F(gelu_backward, 2, gelu_backward(x, y))                                   \
  F(gelu_tanh_backward, 2, gelu_tanh_backward(x, y))                         \
  F(softplus_backward, 2, softplus_backward(x, y, c[0], c[1]))               \
  F(elu_backward, 2, elu_backward(x, y, c[0], c[1], c[2]))                   \
  F(elu_backward_result, 2, elu_backward_result(x, y, c[0], c[1], c[2]))     \
  F(hardsigmoid_backward, 2, hardsigmoid_backward(x, y))                     \
  F(hardswish_backward, 2, hardswish_backward(x, y))                         \
  F(hardtanh_backward, 2, hardtanh_backward(x, y, c[0], c[1]))               \
  F(shrink_backward, 2, shrink_backward(x, y, c[0]))                         \
  F(logit_backward, 2, logit_backward(x, y, c[0], c[1], c[2]))               \
  F(lerp_scalar, 2, lerp(x, y, c[0]))                                        \
  F(mse, 2, squared_error(x, y))                                             \
  F(smooth_l1, 2, smooth_l1(x, y, c[0]))                                     \
  F(huber, 2, huber(x, y, c[0]))                                             \
  F(binary_cross_entropy, 2, binary_cross_entropy(x, y))                     \
  F(lerp, 3, lerp(x, y, z))                                                  \
  F(clamp_tensor, 3, clamp(x, y, z))                                         \
  F(addcmul, 3, add_product(x, y, z, c[0]))                                  \
  F(addcdiv, 3, add_quotient(x, y, z, c[0]))                                 \
  F(log_sigmoid_backward, 3, log_sigmoid_backward(z, x))                     \
  F(glu_backward, 3, glu_backward(x, y, z))                                  \
  F(mse_backward, 3, squared_error_backward(x, y, z, c[0]))                  \
  F(smooth_l1_backward, 3, smooth_l1_backward(x, y, z, c[0], c[1]))          \
  F(huber_backward, 3, huber_backward(x, y, z, c[0], c[1]))                  \
  F(binary_cross_entropy_backward, 3, binary_cross_entropy_backward(x, y, z))
// clang-format on
