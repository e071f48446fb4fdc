// Activation functions and binary cross entropy, in the place of ATen's kernels.
#include <ATen/native/Activation.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>

#include "../cpu/parallel.h"
#include "pointwise.h"

namespace es::glue {
namespace {

using c10::Scalar;

float number(const Scalar& scalar) { return scalar.to<float>(); }

#define ES_FLOATING(stub, point) ES_STUB(stub, [](auto& iter) { run(iter, Point::point, #point); })

ES_FLOATING(glu_stub, glu);
ES_FLOATING(glu_backward_stub, glu_backward);
ES_FLOATING(hardsigmoid_stub, hardsigmoid);
ES_FLOATING(hardsigmoid_backward_stub, hardsigmoid_backward);
ES_FLOATING(hardswish_stub, hardswish);
ES_FLOATING(hardswish_backward_stub, hardswish_backward);
ES_FLOATING(log_sigmoid_backward_stub, log_sigmoid_backward);
ES_FLOATING(mish_stub, mish);
ES_FLOATING(mish_backward_stub, mish_backward);
ES_FLOATING(silu_stub, silu);
ES_FLOATING(silu_backward_stub, silu_backward);

ES_STUB(GeluKernel, [](auto& iter, at::native::GeluType type) {
  run(iter, type == at::native::GeluType::Tanh ? Point::gelu_tanh : Point::gelu, "gelu");
});
ES_STUB(GeluBackwardKernel, [](auto& iter, at::native::GeluType type) {
  run(iter, type == at::native::GeluType::Tanh ? Point::gelu_tanh_backward : Point::gelu_backward, "gelu_backward");
});

ES_STUB(softplus_stub, [](auto& iter, const Scalar& beta, const Scalar& threshold) {
  run(iter, Point::softplus, "softplus", {number(beta), number(threshold)});
});
ES_STUB(softplus_backward_stub, [](auto& iter, const Scalar& beta, const Scalar& threshold) {
  run(iter, Point::softplus_backward, "softplus_backward", {number(beta), number(threshold)});
});

ES_STUB(hardtanh_backward_stub, [](auto& iter, const Scalar& low, const Scalar& high) {
  run(iter, Point::hardtanh_backward, "hardtanh_backward", {number(low), number(high)});
});
ES_STUB(softshrink_stub, [](auto& iter, const Scalar& size) {
  run(iter, Point::softshrink, "softshrink", {number(size)});
});
ES_STUB(shrink_backward_stub, [](auto& iter, const Scalar& size) {
  run(iter, Point::shrink_backward, "hardshrink_backward", {number(size)});
});

Numbers elu_numbers(const Scalar& alpha, const Scalar& scale, const Scalar& input_scale) {
  return {number(alpha) * number(scale), number(scale), number(input_scale)};
}
ES_STUB(elu_stub, [](auto& iter, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale) {
  run(iter, Point::elu, "elu", elu_numbers(alpha, scale, input_scale));
});
ES_STUB(elu_backward_stub, [](auto& iter, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale,
                              bool is_result) {
  run(iter, is_result ? Point::elu_backward_result : Point::elu_backward, "elu_backward",
      elu_numbers(alpha, scale, input_scale));
});

// All three have one layout. The buffer is e^-|x|, as in PyTorch; our backward does not need it.
void log_sigmoid(at::TensorBase& out, at::TensorBase& buffer, const at::TensorBase& in) {
  Element type = element_or_refuse(in.scalar_type(), "log_sigmoid");
  int64_t size = in.element_size(), strides[2] = {size, size};
  char* from = static_cast<char*>(const_cast<void*>(in.const_data_ptr()));
  char *to = static_cast<char*>(out.mutable_data_ptr()), *aside = static_cast<char*>(buffer.mutable_data_ptr());
  const Pointwise& kernels = pointwise();
  parallel_for(in.numel(), at::internal::GRAIN_SIZE, [&](int64_t begin, int64_t end) {
    char* first[2] = {aside + begin * size, from + begin * size};
    kernels.strided({Point::exp_of_minus_abs, {type, type}, {}}, first, strides, end - begin);
    char* second[2] = {to + begin * size, from + begin * size};
    kernels.strided({Point::log_sigmoid, {type, type}, {}}, second, strides, end - begin);
  });
}
ES_STUB(log_sigmoid_cpu_stub, &log_sigmoid);

// ---- binary cross entropy, which is behind no stub

at::Tensor reduced(const at::Tensor& loss, int64_t reduction) {
  if (reduction == at::Reduction::Mean) return at::mean(loss);
  if (reduction == at::Reduction::Sum) return at::sum(loss);
  return loss;
}

at::Tensor& bce_out(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight,
                    int64_t reduction, at::Tensor& out) {
  element_or_refuse(self.scalar_type(), "binary_cross_entropy");
  TORCH_CHECK(self.ge(0).logical_and_(self.le(1)).all().item<bool>(),
              "all elements of input should be between 0 and 1");
  at::Tensor loss = at::empty_like(self);
  auto iter = at::TensorIteratorConfig().add_output(loss).add_const_input(self).add_const_input(target).build();
  run(iter, Point::binary_cross_entropy, "binary_cross_entropy");
  if (weight && weight->defined()) loss.mul_(*weight);
  at::Tensor result = reduced(loss, reduction);
  out.resize_(result.sizes());
  return out.copy_(result);
}

at::Tensor bce(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight,
               int64_t reduction) {
  at::Tensor out = at::empty({0}, self.options());
  return bce_out(self, target, weight, reduction, out);
}

at::Tensor& bce_backward_out(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                             const std::optional<at::Tensor>& weight, int64_t reduction, at::Tensor& out) {
  element_or_refuse(self.scalar_type(), "binary_cross_entropy_backward");
  at::Tensor whole = grad.expand_as(self);
  out.resize_(self.sizes());
  auto iter = at::TensorIteratorConfig()
                  .add_output(out)
                  .add_const_input(whole)
                  .add_const_input(self)
                  .add_const_input(target)
                  .resize_outputs(false)
                  .build();
  run(iter, Point::binary_cross_entropy_backward, "binary_cross_entropy_backward");
  if (weight && weight->defined()) out.mul_(*weight);
  if (reduction == at::Reduction::Mean) out.div_(self.numel());
  return out;
}

at::Tensor bce_backward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                        const std::optional<at::Tensor>& weight, int64_t reduction) {
  at::Tensor out = at::empty_like(self);
  return bce_backward_out(grad, self, target, weight, reduction, out);
}

}

ES_OPERATORS(pointwise_activations, ops) {
  ops.impl("binary_cross_entropy", bce);
  ops.impl("binary_cross_entropy.out", bce_out);
  ops.impl("binary_cross_entropy_backward", bce_backward);
  ops.impl("binary_cross_entropy_backward.grad_input", bce_backward_out);
}

}
