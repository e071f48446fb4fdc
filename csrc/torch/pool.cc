// Average and maximum pools, and fold. bf16 and fp16 are widened, computed in float32 and rounded once; integers are
// left to PyTorch's kernels, float64 is refused.
#include "../cpu/pool.h"

#include <ATen/native/AdaptivePooling.h>
#include <ATen/native/Pool.h>
#include <ATen/native/Resize.h>
#include <ATen/native/im2col_shape_check.h>
#include <ATen/ops/adaptive_max_pool3d_backward_meta_dispatch.h>
#include <ATen/ops/adaptive_max_pool3d_meta_dispatch.h>
#include <ATen/ops/avg_pool3d_backward_meta_dispatch.h>
#include <ATen/ops/avg_pool3d_meta_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_backward_meta_dispatch.h>

#include "pool.h"

namespace es::glue {
namespace {

using T = const at::Tensor&;
using O = at::Tensor&;
using Sizes = at::IntArrayRef;
using Divisor = std::optional<int64_t>;

// ---- the work, on float32

void mean(T out, T in, const WindowMean& m, int dimensions) {
  Target to(out, dimensions);
  pool_kernels().average(to.layout.planes, m, to.like(in).const_data_ptr<float>(), to.data());
}

void mean_backward(T grad_in, T grad, const WindowMean& m, int dimensions) {
  Target to(grad_in, dimensions);
  pool_kernels().average_backward(to.layout.planes, m, to.like(grad).const_data_ptr<float>(), to.data());
}

PartMean parts_of(T in, T out, int dimensions) {
  PartMean m;
  for (int d = 0; d < 3; ++d) m.axis[d] = {size_of(in, d, dimensions), size_of(out, d, dimensions)};
  return m;
}

void adaptive(T out, T in, int dimensions) {
  Target to(out, dimensions);
  at::Tensor x = to.like(in);
  pool_kernels().adaptive(to.layout.planes, parts_of(in, out, dimensions), x.const_data_ptr<float>(), to.data());
}

void adaptive_backward(T grad_in, T grad, int dimensions) {
  Target to(grad_in, dimensions);
  at::Tensor y = to.like(grad);
  pool_kernels().adaptive_backward(to.layout.planes, parts_of(grad_in, grad, dimensions), y.const_data_ptr<float>(),
                                   to.data());
}

// Maxima and where they are. `compute` is the table's.
template <class Axis, class Compute>
void maximum(Compute compute, T out, T where, T in, const Axis* axis, int dimensions) {
  Target to(out, dimensions);
  at::Tensor x = to.like(in), at = where.contiguous(to.layout.format);
  compute(to.layout.planes, axis, x.const_data_ptr<float>(), to.data(), at.mutable_data_ptr<int64_t>());
  if (!at.is_same(where)) where.copy_(at);
}

template <class Axis, class Compute>
void maximum_backward(Compute compute, T grad_in, T grad, T where, const Axis* axis, int dimensions) {
  Target to(grad_in, dimensions);
  at::Tensor y = to.like(grad), at = where.contiguous(to.layout.format);
  compute(to.layout.planes, axis, y.const_data_ptr<float>(), at.const_data_ptr<int64_t>(), to.data());
}

// ---- kernels behind stubs

constexpr const char* kPool = "a pool";

WindowMean window_mean(T in, T out, int dimensions, std::array<int64_t, 3> kernel, std::array<int64_t, 3> stride,
                       std::array<int64_t, 3> padding, bool include_padding, Divisor divisor) {
  WindowMean m;
  for (int d = 0; d < 3; ++d)
    m.axis[d] = {size_of(in, d, dimensions), size_of(out, d, dimensions), kernel[d], stride[d], padding[d], 1};
  m.divisor = divisor.value_or(0);
  m.padding = include_padding;
  return m;
}

void avg_pool2d(T out, T in, int64_t kw, int64_t kh, int64_t dw, int64_t dh, int64_t pw, int64_t ph, bool include,
                Divisor divisor) {
  if (is_integral_or_refuse(out.scalar_type(), kPool))
    return original(at::native::avg_pool2d_kernel)(out, in, kw, kh, dw, dh, pw, ph, include, divisor);
  mean(out, in, window_mean(in, out, 2, {1, kh, kw}, {1, dh, dw}, {0, ph, pw}, include, divisor), 2);
}

void avg_pool2d_backward(T grad_in, T grad, int kw, int kh, int dw, int dh, int pw, int ph, bool include,
                         Divisor divisor) {
  if (is_integral_or_refuse(grad_in.scalar_type(), kPool))
    return original(at::native::avg_pool2d_backward_kernel)(grad_in, grad, kw, kh, dw, dh, pw, ph, include, divisor);
  mean_backward(grad_in, grad, window_mean(grad_in, grad, 2, {1, kh, kw}, {1, dh, dw}, {0, ph, pw}, include, divisor),
                2);
}

void adaptive_avg_pool2d(O out, T in, Sizes sizes) {
  if (is_integral_or_refuse(out.scalar_type(), kPool))
    return original(at::native::adaptive_avg_pool2d_kernel)(out, in, sizes);
  adaptive(out, in, 2);
}

void adaptive_avg_pool2d_backward(O grad_in, T grad) {
  if (is_integral_or_refuse(grad_in.scalar_type(), kPool))
    return original(at::native::adaptive_avg_pool2d_backward_kernel)(grad_in, grad);
  adaptive_backward(grad_in, grad, 2);
}

void max_pool2d(T out, T where, T in, int kw, int kh, int dw, int dh, int pw, int ph, int tw, int th) {
  if (is_integral_or_refuse(out.scalar_type(), kPool))
    return original(at::native::max_pool2d_kernel)(out, where, in, kw, kh, dw, dh, pw, ph, tw, th);
  const Windows axis[3] = {{1, 1, 1, 1, 0, 1},
                           {size_of(in, 1, 2), size_of(out, 1, 2), kh, dh, ph, th},
                           {size_of(in, 2, 2), size_of(out, 2, 2), kw, dw, pw, tw}};
  maximum(pool_kernels().maximum, out, where, in, axis, 2);
}

void max_pool3d(O out, O where, T in, int kw, int kh, int kd, int dw, int dh, int dd, int pw, int ph, int pd, int tw,
                int th, int td) {
  if (is_integral_or_refuse(out.scalar_type(), kPool))
    return original(at::native::max_pool3d_kernel)(out, where, in, kw, kh, kd, dw, dh, dd, pw, ph, pd, tw, th, td);
  const Windows axis[3] = {{size_of(in, 0, 3), size_of(out, 0, 3), kd, dd, pd, td},
                           {size_of(in, 1, 3), size_of(out, 1, 3), kh, dh, ph, th},
                           {size_of(in, 2, 3), size_of(out, 2, 3), kw, dw, pw, tw}};
  maximum(pool_kernels().maximum, out, where, in, axis, 3);
}

void adaptive_max_pool2d(T out, T where, T in, Sizes sizes) {
  if (is_integral_or_refuse(out.scalar_type(), kPool))
    return original(at::native::adaptive_max_pool2d_kernel)(out, where, in, sizes);
  maximum(pool_kernels().adaptive_maximum, out, where, in, parts_of(in, out, 2).axis, 2);
}

void adaptive_max_pool2d_backward(T grad_in, T grad, T where) {
  if (is_integral_or_refuse(grad_in.scalar_type(), kPool))
    return original(at::native::adaptive_max_pool2d_backward_kernel)(grad_in, grad, where);
  maximum_backward(pool_kernels().adaptive_maximum_backward, grad_in, grad, where, parts_of(grad_in, grad, 2).axis, 2);
}

ES_STUB(avg_pool2d_kernel, &avg_pool2d);
ES_STUB(avg_pool2d_backward_kernel, &avg_pool2d_backward);
ES_STUB(adaptive_avg_pool2d_kernel, &adaptive_avg_pool2d);
ES_STUB(adaptive_avg_pool2d_backward_kernel, &adaptive_avg_pool2d_backward);
ES_STUB(max_pool2d_kernel, &max_pool2d);
ES_STUB(max_pool3d_kernel, &max_pool3d);
ES_STUB(adaptive_max_pool2d_kernel, &adaptive_max_pool2d);
ES_STUB(adaptive_max_pool2d_backward_kernel, &adaptive_max_pool2d_backward);

// ---- operators that have no stub, or one that is not told the windows. PyTorch's functions for tensors without data
// check the arguments and say what shape the result has.

at::Tensor result_as(T shape, T x) {
  return at::empty(shape.sizes(), x.options().memory_format(shape.suggest_memory_format()));
}

// Of a parameter that is one number for all dimensions, or one for each; a stride may be left out.
std::array<int64_t, 3> three(Sizes given, Sizes otherwise = {}) {
  if (given.empty()) given = otherwise;
  return {given[0], given[given.size() == 1 ? 0 : 1], given[given.size() == 1 ? 0 : 2]};
}
std::array<int64_t, 3> two(Sizes given, int64_t depth, Sizes otherwise = {}) {
  if (given.empty()) given = otherwise;
  return {depth, given[0], given[given.size() == 1 ? 0 : 1]};
}

at::Tensor avg_pool3d(T x, Sizes kernel, Sizes stride, Sizes padding, bool ceil_mode, bool include, Divisor divisor) {
  if (is_integral_or_refuse(x.scalar_type(), kPool))
    return original_result<at::Tensor>("avg_pool3d", x, kernel, stride, padding, ceil_mode, include, divisor);
  at::Tensor out = result_as(at::meta::avg_pool3d(x, kernel, stride, padding, ceil_mode, include, divisor), x);
  mean(out, x, window_mean(x, out, 3, three(kernel), three(stride, kernel), three(padding), include, divisor), 3);
  return out;
}

at::Tensor avg_pool3d_backward(T grad, T x, Sizes kernel, Sizes stride, Sizes padding, bool ceil_mode, bool include,
                               Divisor divisor) {
  element_or_refuse(grad.scalar_type(), kPool);
  at::Tensor grad_in =
      result_as(at::meta::avg_pool3d_backward(grad, x, kernel, stride, padding, ceil_mode, include, divisor), x);
  mean_backward(grad_in, grad,
                window_mean(x, grad, 3, three(kernel), three(stride, kernel), three(padding), include, divisor), 3);
  return grad_in;
}

at::Tensor adaptive_avg_pool3d(T x, Sizes sizes) {
  element_or_refuse(x.scalar_type(), kPool);
  TORCH_CHECK(sizes.size() == 3, "adaptive_avg_pool3d: output_size must be 3");
  TORCH_CHECK(x.dim() == 4 || x.dim() == 5, "adaptive_avg_pool3d(): Expected 4D or 5D tensor, but got ", x.sizes());
  for (int64_t d = -3; d < 0; ++d)
    TORCH_CHECK(x.size(d) > 0, "adaptive_avg_pool3d(): Expected input to have non-zero size for non-batch dimensions, ",
                "but input has sizes ", x.sizes(), " with dimension ", x.dim() + d, " being empty");
  at::DimVector shape(x.sizes().slice(0, x.dim() - 3));
  shape.append(sizes.begin(), sizes.end());
  at::Tensor out = at::empty(shape, x.options());
  adaptive(out, x, 3);
  return out;
}

at::Tensor adaptive_avg_pool3d_backward(T grad, T x) {
  element_or_refuse(grad.scalar_type(), kPool);
  at::native::adaptive_pool_empty_output_check(grad, "adaptive_avg_pool3d_backward");
  TORCH_CHECK(grad.dim() == x.dim() && (x.dim() == 4 || x.dim() == 5),
              "adaptive_avg_pool3d_backward: expected 4D or 5D tensors, but got ", x.sizes(), " and ", grad.sizes());
  at::Tensor grad_in = at::empty(x.sizes(), x.options().memory_format(x.suggest_memory_format()));
  adaptive_backward(grad_in, grad, 3);
  return grad_in;
}

at::Tensor max_pool2d_backward(T grad, T x, Sizes kernel, Sizes stride, Sizes padding, Sizes dilation, bool ceil_mode,
                               T where) {
  element_or_refuse(grad.scalar_type(), kPool);
  at::Tensor grad_in = result_as(at::meta::max_pool2d_with_indices_backward(grad, x, kernel, stride, padding, dilation,
                                                                            ceil_mode, where),
                                 x);
  const auto k = two(kernel, 1), s = two(stride, 1, kernel), p = two(padding, 0), t = two(dilation, 1);
  Windows axis[3];
  for (int d = 0; d < 3; ++d) axis[d] = {size_of(x, d, 2), size_of(grad, d, 2), k[d], s[d], p[d], t[d]};
  maximum_backward(pool_kernels().maximum_backward, grad_in, grad, where, axis, 2);
  return grad_in;
}

at::Tensor max_pool3d_backward(T grad, T x, Sizes kernel, Sizes stride, Sizes padding, Sizes dilation, bool,
                               T where) {
  element_or_refuse(grad.scalar_type(), kPool);
  for (Sizes given : {kernel, padding, dilation})
    TORCH_CHECK(given.size() == 1 || given.size() == 3, "max_pool3d: expected one integer or three, but got ", given);
  TORCH_CHECK(x.dim() == 4 || x.dim() == 5, "max_pool3d: Expected 4D or 5D tensor for input, but got: ", x.sizes());
  const auto k = three(kernel), s = three(stride, kernel), p = three(padding), t = three(dilation);
  at::native::max_pool3d_backward_shape_check(
      x, grad, where, x.size(-4), (int)k[0], (int)k[1], (int)k[2], (int)s[0], (int)s[1], (int)s[2], (int)p[0],
      (int)p[1], (int)p[2], (int)t[0], (int)t[1], (int)t[2], x.size(-3), x.size(-2), x.size(-1), grad.size(-3),
      grad.size(-2), grad.size(-1), "max_pool3d_with_indices_backward()");
  at::Tensor grad_in = at::empty(x.sizes(), x.options().memory_format(x.suggest_memory_format()));
  Windows axis[3];
  for (int d = 0; d < 3; ++d) axis[d] = {size_of(x, d, 3), size_of(grad, d, 3), k[d], s[d], p[d], t[d]};
  maximum_backward(pool_kernels().maximum_backward, grad_in, grad, where, axis, 3);
  return grad_in;
}

std::tuple<at::Tensor, at::Tensor> adaptive_max_pool3d(T x, Sizes sizes) {
  element_or_refuse(x.scalar_type(), kPool);
  at::Tensor out = result_as(std::get<0>(at::meta::adaptive_max_pool3d(x, sizes)), x);
  at::Tensor where = at::empty(out.sizes(), out.options().dtype(at::kLong));
  maximum(pool_kernels().adaptive_maximum, out, where, x, parts_of(x, out, 3).axis, 3);
  return {out, where};
}

at::Tensor adaptive_max_pool3d_backward(T grad, T x, T where) {
  element_or_refuse(grad.scalar_type(), kPool);
  at::Tensor grad_in = result_as(at::meta::adaptive_max_pool3d_backward(grad, x, where), x);
  maximum_backward(pool_kernels().adaptive_maximum_backward, grad_in, grad, where, parts_of(x, grad, 3).axis, 3);
  return grad_in;
}

at::Tensor col2im(T columns, Sizes image, Sizes kernel, Sizes dilation, Sizes padding, Sizes stride) {
  if (is_integral_or_refuse(columns.scalar_type(), "col2im"))
    return original_result<at::Tensor>("col2im", columns, image, kernel, dilation, padding, stride);
  for (Sizes given : {image, kernel, dilation, padding, stride})
    TORCH_CHECK(given.size() == 2, "col2im: expected two integers of each parameter, but got ", given);
  at::native::col2im_shape_check(columns, at::Tensor(), image[0], image[1], kernel[0], kernel[1], dilation[0],
                                 dilation[1], padding[0], padding[1], stride[0], stride[1]);
  Fold s;
  const int64_t planes = columns.size(-2) / (kernel[0] * kernel[1]);
  s.planes = columns.dim() == 3 ? columns.size(0) * planes : planes;
  for (int d = 0; d < 2; ++d) {
    const int64_t reach = dilation[d] * (kernel[d] - 1) + 1;
    const int64_t windows = (image[d] + 2 * padding[d] - reach) / stride[d] + 1;
    s.axis[d] = {image[d], windows, kernel[d], stride[d], padding[d], dilation[d]};
  }
  at::DimVector shape({planes, image[0], image[1]});
  if (columns.dim() == 3) shape.insert(shape.begin(), columns.size(0));
  at::Tensor from = columns.to(at::kFloat).contiguous(), out = at::empty(shape, from.options());
  pool_kernels().fold(s, from.const_data_ptr<float>(), out.mutable_data_ptr<float>());
  return out.to(columns.scalar_type());
}

// The same, into a tensor that is given: `into<&avg_pool3d>`.
template <auto run>
struct Into;
template <class... Arguments, at::Tensor (*run)(Arguments...)>
struct Into<run> {
  static at::Tensor& call(Arguments... arguments, at::Tensor& out) {
    at::Tensor result = run(arguments...);
    at::native::resize_output(out, result.sizes());
    return out.copy_(result);
  }
};
template <auto run>
constexpr auto into = &Into<run>::call;

std::tuple<at::Tensor&, at::Tensor&> adaptive_max_pool3d_out(T x, Sizes sizes, O out, O where) {
  auto [values, places] = glue::adaptive_max_pool3d(x, sizes);
  at::native::resize_output(out, values.sizes());
  at::native::resize_output(where, places.sizes());
  return {out.copy_(values), where.copy_(places)};
}

}

ES_OPERATORS(pool, ops) {
  ops.impl("avg_pool3d", &avg_pool3d);
  ops.impl("avg_pool3d.out", into<&avg_pool3d>);
  ops.impl("avg_pool3d_backward", &avg_pool3d_backward);
  ops.impl("avg_pool3d_backward.grad_input", into<&avg_pool3d_backward>);
  ops.impl("_adaptive_avg_pool3d", &adaptive_avg_pool3d);
  ops.impl("adaptive_avg_pool3d.out", into<&adaptive_avg_pool3d>);
  ops.impl("_adaptive_avg_pool3d_backward", &adaptive_avg_pool3d_backward);
  ops.impl("adaptive_avg_pool3d_backward.grad_input", into<&adaptive_avg_pool3d_backward>);
  ops.impl("max_pool2d_with_indices_backward", &max_pool2d_backward);
  ops.impl("max_pool2d_with_indices_backward.grad_input", into<&max_pool2d_backward>);
  ops.impl("max_pool3d_with_indices_backward", &max_pool3d_backward);
  ops.impl("max_pool3d_with_indices_backward.grad_input", into<&max_pool3d_backward>);
  ops.impl("adaptive_max_pool3d", &adaptive_max_pool3d);
  ops.impl("adaptive_max_pool3d.out", &adaptive_max_pool3d_out);
  ops.impl("adaptive_max_pool3d_backward", &adaptive_max_pool3d_backward);
  ops.impl("adaptive_max_pool3d_backward.grad_input", into<&adaptive_max_pool3d_backward>);
  ops.impl("col2im", &col2im);
  ops.impl("col2im.out", into<&col2im>);
}

}
