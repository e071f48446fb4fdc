// _softmax, _log_softmax and their backwards, through ATen's stubs.
#include "../cpu/softmax.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/native/cpu/SoftmaxKernel.h>
#include <ATen/ops/empty.h>

#include "registry.h"

namespace es::glue {
namespace {

using at::Tensor;

at::Tensor plain(const Tensor& x) { return x.to(at::kFloat).contiguous(); }

// The size of an axis and of what is before and after it.
struct Shape {
  int64_t outer = 1, length, inner = 1;
};
Shape around(const Tensor& x, int64_t dim) {
  if (x.dim() == 0) return {1, 1, 1};
  dim = c10::maybe_wrap_dim(dim, x.dim());
  Shape shape{1, x.size(dim), 1};
  for (int64_t d = 0; d < x.dim(); ++d) (d < dim ? shape.outer : shape.inner) *= d == dim ? 1 : x.size(d);
  return shape;
}

// `run(out)` with a contiguous float tensor: `out` itself where that is one and shares nothing with the inputs.
template <class Run>
void write(const Tensor& out, std::initializer_list<Tensor> inputs, Run run) {
  bool direct = out.scalar_type() == at::kFloat && out.is_contiguous();
  for (auto& in : inputs) direct = direct && !out.is_alias_of(in);
  if (direct) return run(out.mutable_data_ptr<float>());
  Tensor wide = at::empty(out.sizes(), out.options().dtype(at::kFloat));
  run(wide.mutable_data_ptr<float>());
  out.copy_(wide);
}

void forward(const char* name, const Tensor& out, const Tensor& in, int64_t dim,
             void (*kernel)(const SoftmaxForward&)) {
  if (!is_ours(in.scalar_type())) is_integral_or_refuse(in.scalar_type(), name);
  Tensor x = plain(in);
  Shape s = around(x, dim);
  write(out, {x}, [&](float* to) { kernel({x.const_data_ptr<float>(), to, s.outer, s.length, s.inner}); });
}

void backward(const char* name, const Tensor& out, const Tensor& gradient, const Tensor& output, int64_t dim,
              void (*kernel)(const SoftmaxBackward&)) {
  if (!is_ours(output.scalar_type())) is_integral_or_refuse(output.scalar_type(), name);
  Tensor g = plain(gradient), y = plain(output);
  Shape s = around(y, dim);
  write(out, {g, y}, [&](float* to) {
    kernel({g.const_data_ptr<float>(), y.const_data_ptr<float>(), to, s.outer, s.length, s.inner});
  });
}

void softmax_last(const Tensor& out, const Tensor& in) { forward("_softmax", out, in, -1, softmax_kernels().softmax); }
void softmax(const Tensor& out, const Tensor& in, int64_t dim) {
  forward("_softmax", out, in, dim, softmax_kernels().softmax);
}
void log_softmax_last(const Tensor& out, const Tensor& in) {
  forward("_log_softmax", out, in, -1, softmax_kernels().log_softmax);
}
void log_softmax(const Tensor& out, const Tensor& in, int64_t dim) {
  forward("_log_softmax", out, in, dim, softmax_kernels().log_softmax);
}
void softmax_backward_last(const Tensor& out, const Tensor& gradient, const Tensor& output) {
  backward("_softmax_backward_data", out, gradient, output, -1, softmax_kernels().softmax_gradient);
}
void softmax_backward(const Tensor& out, const Tensor& gradient, const Tensor& output, int64_t dim) {
  backward("_softmax_backward_data", out, gradient, output, dim, softmax_kernels().softmax_gradient);
}
void log_softmax_backward_last(const Tensor& out, const Tensor& gradient, const Tensor& output) {
  backward("_log_softmax_backward_data", out, gradient, output, -1, softmax_kernels().log_softmax_gradient);
}
void log_softmax_backward(const Tensor& out, const Tensor& gradient, const Tensor& output, int64_t dim) {
  backward("_log_softmax_backward_data", out, gradient, output, dim, softmax_kernels().log_softmax_gradient);
}

ES_STUB(softmax_lastdim_kernel, &softmax_last);
ES_STUB(softmax_kernel, &softmax);
ES_STUB(log_softmax_lastdim_kernel, &log_softmax_last);
ES_STUB(log_softmax_kernel, &log_softmax);
ES_STUB(softmax_backward_lastdim_kernel, &softmax_backward_last);
ES_STUB(softmax_backward_kernel, &softmax_backward);
ES_STUB(log_softmax_backward_lastdim_kernel, &log_softmax_backward_last);
ES_STUB(log_softmax_backward_kernel, &log_softmax_backward);

}
}
