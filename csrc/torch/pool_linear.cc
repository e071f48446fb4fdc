// linear, bilinear and trilinear upsampling.
#include "../cpu/pool_linear.h"

#include <ATen/native/UpSample.h>
#include <ATen/ops/empty.h>

#include "registry.h"

namespace es::glue {
namespace {

using Scale = at::native::scale_t;

Linear shape_of(const at::Tensor& small, const at::Tensor& large, bool align, std::initializer_list<Scale> scales) {
  int64_t dimensions = (int64_t)scales.size();
  Linear l{small.size(0) * small.size(1), dimensions, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, align};
  int64_t d = 3 - dimensions;
  for (const Scale& scale : scales) {
    l.from[d] = small.size(d - 1 + dimensions);  // behind the batch and the channels
    l.to[d] = large.size(d - 1 + dimensions);
    l.scale[d] = at::native::area_pixel_compute_scale<float>(l.from[d], l.to[d], align, scale);
    ++d;
  }
  return l;
}

void expect(const at::Tensor& x) {
  if (!is_ours(x.scalar_type())) refuse("linear upsampling", c10::str("it is not specified for ", x.scalar_type()));
}

void upsample(const at::Tensor& out, const at::Tensor& in, bool align, std::initializer_list<Scale> scales) {
  expect(out);
  at::Tensor x = in.to(at::kFloat).contiguous(), y = at::empty(out.sizes(), x.options());
  pool_linear().forward(shape_of(x, y, align, scales), x.const_data_ptr<float>(), y.mutable_data_ptr<float>());
  at::Tensor(out).copy_(y);
}

void upsample_backward(const at::Tensor& grad_in, const at::Tensor& grad, bool align,
                       std::initializer_list<Scale> scales) {
  expect(grad_in);
  at::Tensor y = grad.to(at::kFloat).contiguous(), x = at::empty(grad_in.sizes(), y.options());
  pool_linear().backward(shape_of(x, y, align, scales), y.const_data_ptr<float>(), x.mutable_data_ptr<float>());
  at::Tensor(grad_in).copy_(x);
}

using T = const at::Tensor&;

void linear(T out, T in, bool align, Scale w) { upsample(out, in, align, {w}); }
void bilinear(T out, T in, bool align, Scale h, Scale w) { upsample(out, in, align, {h, w}); }
void trilinear(T out, T in, bool align, Scale d, Scale h, Scale w) { upsample(out, in, align, {d, h, w}); }
void linear_backward(T to, T grad, bool align, Scale w) { upsample_backward(to, grad, align, {w}); }
void bilinear_backward(T to, T grad, bool align, Scale h, Scale w) { upsample_backward(to, grad, align, {h, w}); }
void trilinear_backward(T to, T grad, bool align, Scale d, Scale h, Scale w) {
  upsample_backward(to, grad, align, {d, h, w});
}

ES_STUB(upsample_linear1d_kernel, &linear);
ES_STUB(upsample_bilinear2d_kernel, &bilinear);
ES_STUB(upsample_trilinear3d_kernel, &trilinear);
ES_STUB(upsample_linear1d_backward_kernel, &linear_backward);
ES_STUB(upsample_bilinear2d_backward_kernel, &bilinear_backward);
ES_STUB(upsample_trilinear3d_backward_kernel, &trilinear_backward);

}
}
