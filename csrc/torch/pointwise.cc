// Functions of one element and plain arithmetic, in the place of ATen's kernels.
#include "pointwise.h"

#include <ATen/native/BinaryOps.h>
#include <ATen/native/Lerp.h>
#include <ATen/native/PointwiseOps.h>
#include <ATen/native/Pow.h>
#include <ATen/native/TensorCompare.h>
#include <ATen/native/UnaryOps.h>

namespace es::glue {
namespace {

bool is_integral(at::TensorIteratorBase& iter) {
  auto type = on_device() ? iter.common_dtype() : iter.dtype(1);
  return c10::isIntegralType(type, /*includeBool=*/true);
}

float number(const c10::Scalar& scalar) { return scalar.to<float>(); }

// ATen has widened integers to floats before it comes here.
#define ES_FLOATING(stub, point) ES_STUB(stub, [](auto& iter) { run(iter, Point::point, #point); })

ES_FLOATING(acos_stub, acos);
ES_FLOATING(acosh_stub, acosh);
ES_FLOATING(asin_stub, asin);
ES_FLOATING(asinh_stub, asinh);
ES_FLOATING(atan_stub, atan);
ES_FLOATING(atanh_stub, atanh);
ES_FLOATING(cos_stub, cos);
ES_FLOATING(cosh_stub, cosh);
ES_FLOATING(erf_stub, erf);
ES_FLOATING(erfc_stub, erfc);
ES_FLOATING(erfinv_stub, erfinv);
ES_FLOATING(exp2_stub, exp2);
ES_FLOATING(exp_stub, exp);
ES_FLOATING(expm1_stub, expm1);
ES_FLOATING(log10_stub, log10);
ES_FLOATING(log1p_stub, log1p);
ES_FLOATING(log2_stub, log2);
ES_FLOATING(log_stub, log);
ES_FLOATING(rsqrt_stub, rsqrt);
ES_FLOATING(sigmoid_stub, sigmoid);
ES_FLOATING(sin_stub, sin);
ES_FLOATING(sinc_stub, sinc);
ES_FLOATING(sinh_stub, sinh);
ES_FLOATING(special_entr_stub, entr);
ES_FLOATING(tan_stub, tan);
ES_FLOATING(tanh_stub, tanh);

ES_FLOATING(atan2_stub, atan2);
ES_FLOATING(hypot_stub, hypot);
ES_FLOATING(logaddexp2_stub, logaddexp2);
ES_FLOATING(logaddexp_stub, logaddexp);
ES_FLOATING(mse_stub, mse);
ES_FLOATING(sigmoid_backward_stub, sigmoid_backward);
ES_FLOATING(tanh_backward_stub, tanh_backward);
ES_FLOATING(xlog1py_stub, xlog1py);
ES_FLOATING(xlogy_stub, xlogy);

// PyTorch's goes to MKL, which does not round correctly, and differently by instruction set.
ES_STUB(sqrt_stub, [](auto& iter) {
  if (iter.dtype(1) != at::kDouble) return run(iter, Point::sqrt, "sqrt");
  if (on_device()) return original(at::native::sqrt_stub)(iter);
  iter.for_each([](char** data, const int64_t* strides, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      double x;
      memcpy(&x, data[1] + i * strides[1], sizeof(x));
      x = __builtin_sqrt(x);
      memcpy(data[0] + i * strides[0], &x, sizeof(x));
    }
  });
});

// Integers stay with PyTorch's own kernel.
#define ES_OR_INTEGRAL(stub, point)                                    \
  ES_STUB(stub, [](auto& iter) {                                       \
    if (is_integral(iter)) return original(at::native::stub)(iter);    \
    run(iter, Point::point, #point);                                   \
  })

ES_OR_INTEGRAL(clamp_stub, clamp_tensor);
ES_OR_INTEGRAL(copysign_stub, copysign);
ES_OR_INTEGRAL(div_floor_stub, div_floor);
ES_OR_INTEGRAL(div_trunc_stub, div_trunc);
ES_OR_INTEGRAL(fmax_stub, fmax);
ES_OR_INTEGRAL(fmin_stub, fmin);
ES_OR_INTEGRAL(fmod_stub, fmod);
ES_OR_INTEGRAL(maximum_stub, maximum);
ES_OR_INTEGRAL(minimum_stub, minimum);
ES_OR_INTEGRAL(remainder_stub, remainder);

ES_STUB(clamp_scalar_stub, [](auto& iter, const c10::Scalar& low, const c10::Scalar& high) {
  if (is_integral(iter)) return original(at::native::clamp_scalar_stub)(iter, low, high);
  run(iter, Point::clamp_both, "clamp", {number(low), number(high)});
});
ES_STUB(clamp_min_scalar_stub, [](auto& iter, c10::Scalar low) {
  if (is_integral(iter)) return original(at::native::clamp_min_scalar_stub)(iter, low);
  run(iter, Point::clamp_below, "clamp", {number(low)});
});
ES_STUB(clamp_max_scalar_stub, [](auto& iter, c10::Scalar high) {
  if (is_integral(iter)) return original(at::native::clamp_max_scalar_stub)(iter, high);
  run(iter, Point::clamp_above, "clamp", {number(high)});
});

ES_STUB(logit_stub, [](auto& iter, const c10::Scalar& eps) {
  float low = number(eps);
  bool clamped = low >= 0;
  run(iter, Point::logit, "logit", {clamped ? low : -kInfinity, clamped ? 1.0f - low : kInfinity});
});
ES_STUB(logit_backward_stub, [](auto& iter, const c10::Scalar& eps) {
  float low = number(eps);
  bool clamped = low >= 0;
  run(iter, Point::logit_backward, "logit_backward",
      {clamped ? low : 0.0f, clamped ? 1.0f - low : 1.0f, clamped ? 0.0f : kNaN});
});

// a + alpha * b with one rounding. With alpha = 1 or -1 (as which subtraction comes) PyTorch's kernels round once, too, but
// a device's may not be asked: nobody promises what it does with a number of the CPU's.
ES_STUB(add_stub, [](auto& iter, const c10::Scalar& alpha) {
  auto type = iter.common_dtype();
  if (c10::isComplexType(type)) refuse("add", "it is not specified for complex numbers");
  bool plain = alpha.equal(1) || alpha.equal(-1);
  bool theirs = !on_device() || type == at::kDouble;
  if (is_integral(iter) || (plain && theirs)) return original(at::native::add_stub)(iter, alpha);
  run(iter, Point::add_scaled, "add", {number(alpha)});
});

#define ES_NOT_COMPLEX(stub, what)                                                                                  \
  ES_STUB(stub, [](auto& iter) {                                                                                    \
    if (c10::isComplexType(iter.common_dtype())) refuse(what, "it is not specified for complex numbers");           \
    original(at::native::stub)(iter);                                                                               \
  })
ES_NOT_COMPLEX(mul_stub, "mul");

// On a device PyTorch multiplies by the inverse of a number.
ES_STUB(div_true_stub, [](auto& iter) {
  if (c10::isComplexType(iter.common_dtype())) refuse("div", "it is not specified for complex numbers");
  if (on_device() && iter.common_dtype() != at::kDouble) return run(iter, Point::divide, "div");
  original(at::native::div_true_stub)(iter);
});

ES_STUB(pow_tensor_scalar_stub, [](auto& iter, const c10::Scalar& exponent) {
  if (is_integral(iter)) return original(at::native::pow_tensor_scalar_stub)(iter, exponent);
  if (exponent.isComplex()) refuse("pow", "it is not specified for complex numbers");
  element_or_refuse(iter.dtype(1), "pow");
  double e = exponent.to<double>();
  if (e == 2) return run(iter, Point::square, "pow");
  if (e == 3) return run(iter, Point::cube, "pow");
  if (e == -2) return run(iter, Point::inverse_square, "pow");
  if (e == -0.5) return run(iter, Point::rsqrt, "pow");
  if (e == 0.5) return run(iter, Point::sqrt, "pow");
  if (e == -1) return at::native::reciprocal_stub(iter.device_type(), iter);  // one division, whoever does it
  run(iter, Point::power_scalar, "pow", {number(exponent)});
});
ES_STUB(pow_tensor_tensor_stub, [](auto& iter) {
  if (is_integral(iter)) return original(at::native::pow_tensor_tensor_stub)(iter);
  run(iter, Point::power, "pow");
});

ES_STUB(lerp_kernel_scalar_weight, [](auto& iter, const c10::Scalar& weight) {
  run(iter, Point::lerp_scalar, "lerp", {number(weight)});
});
ES_STUB(lerp_kernel_tensor_weight, [](auto& iter) { run(iter, Point::lerp, "lerp"); });

ES_STUB(addcmul_stub, [](auto& iter, const c10::Scalar& value) {
  if (is_integral(iter)) return original(at::native::addcmul_stub)(iter, value);
  run(iter, Point::addcmul, "addcmul", {number(value)});
});
ES_STUB(addcdiv_stub, [](auto& iter, const c10::Scalar& value) {
  run(iter, Point::addcdiv, "addcdiv", {number(value)});
});

ES_STUB(mse_backward_stub, [](auto& iter, const c10::Scalar& norm) {
  run(iter, Point::mse_backward, "mse_loss_backward", {number(norm)});
});
ES_STUB(smooth_l1_stub, [](auto& iter, double beta) {
  run(iter, Point::smooth_l1, "smooth_l1_loss", {(float)beta});
});
ES_STUB(smooth_l1_backward_stub, [](auto& iter, const c10::Scalar& norm, double beta) {
  run(iter, Point::smooth_l1_backward, "smooth_l1_loss_backward", {number(norm), (float)beta});
});
ES_STUB(huber_stub, [](auto& iter, double delta) {
  run(iter, Point::huber, "huber_loss", {(float)delta});
});
ES_STUB(huber_backward_stub, [](auto& iter, const c10::Scalar& norm, double delta) {
  run(iter, Point::huber_backward, "huber_loss_backward", {number(norm), (float)delta});
});

}
}
