// Nearest upsampling, and the gradients of reflection and replication padding, whose forward passes are copies.
#include "../cpu/pool.h"

#include <ATen/native/Padding.h>
#include <ATen/native/UpSample.h>

#include "pool.h"

namespace es::glue {
namespace {

using T = const at::Tensor&;
using Scale = at::native::scale_t;

// ---- nearest upsampling

template <bool centers>
Copies<Nearest> sources(T in, T out, std::initializer_list<Scale> scales) {
  const int dimensions = (int)scales.size();
  Copies<Nearest> copies;
  for (int d = 0; d < 3; ++d) {
    const int64_t from = size_of(in, d, dimensions), to = size_of(out, d, dimensions), given = d - 3 + dimensions;
    const Scale scale = given < 0 ? Scale() : scales.begin()[given];
    copies.axis[d] = {from, to, at::native::compute_scales_value<float>(scale, from, to), given >= 0 && centers};
  }
  return copies;
}

// Any type: nothing is computed.
template <bool centers>
void nearest(T out, T in, std::initializer_list<Scale> scales) {
  TORCH_CHECK(in.dtype() == out.dtype(), "expected dtype ", in.dtype(), " for `output` but got dtype ", out.dtype());
  const Layout layout(out, (int)scales.size());
  at::Tensor from = in.contiguous(layout.format), to = out.contiguous(layout.format);
  pool_kernels().nearest(layout.planes, sources<centers>(in, out, scales).axis, in.element_size(),
                         from.const_data_ptr(), to.mutable_data_ptr());
  if (!to.is_same(out)) out.copy_(to);
}

template <bool centers>
void nearest_backward(T grad_in, T grad, std::initializer_list<Scale> scales) {
  element_or_refuse(grad_in.scalar_type(), "nearest upsampling");
  Target to(grad_in, (int)scales.size());
  at::Tensor y = to.like(grad);
  pool_kernels().nearest_backward(to.layout.planes, sources<centers>(grad_in, grad, scales), y.const_data_ptr<float>(),
                                  to.data());
}

template <bool centers>
struct Of {
  static void one(T out, T in, Scale w) { nearest<centers>(out, in, {w}); }
  static void two(T out, T in, Scale h, Scale w) { nearest<centers>(out, in, {h, w}); }
  static void three(T out, T in, Scale d, Scale h, Scale w) { nearest<centers>(out, in, {d, h, w}); }
  static void one_back(T to, T grad, Scale w) { nearest_backward<centers>(to, grad, {w}); }
  static void two_back(T to, T grad, Scale h, Scale w) { nearest_backward<centers>(to, grad, {h, w}); }
  static void three_back(T to, T grad, Scale d, Scale h, Scale w) { nearest_backward<centers>(to, grad, {d, h, w}); }
};

ES_STUB(upsample_nearest1d_kernel, &Of<false>::one);
ES_STUB(upsample_nearest2d_kernel, &Of<false>::two);
ES_STUB(upsample_nearest3d_kernel, &Of<false>::three);
ES_STUB(_upsample_nearest_exact1d_kernel, &Of<true>::one);
ES_STUB(_upsample_nearest_exact2d_kernel, &Of<true>::two);
ES_STUB(_upsample_nearest_exact3d_kernel, &Of<true>::three);
ES_STUB(upsample_nearest1d_backward_kernel, &Of<false>::one_back);
ES_STUB(upsample_nearest2d_backward_kernel, &Of<false>::two_back);
ES_STUB(upsample_nearest3d_backward_kernel, &Of<false>::three_back);
ES_STUB(_upsample_nearest_exact1d_backward_kernel, &Of<true>::one_back);
ES_STUB(_upsample_nearest_exact2d_backward_kernel, &Of<true>::two_back);
ES_STUB(_upsample_nearest_exact3d_backward_kernel, &Of<true>::three_back);

// ---- padding: before and after the width, then the height, then the depth

template <bool mirror, int dimensions>
void pad_backward(T grad_in, T grad, at::IntArrayRef padding) {
  element_or_refuse(grad_in.scalar_type(), "the gradient of padding");
  Copies<Border> copies;
  for (int d = 0; d < 3; ++d) {
    const int64_t before = d < 3 - dimensions ? 0 : padding[2 * (2 - d)];
    copies.axis[d] = {size_of(grad_in, d, dimensions), size_of(grad, d, dimensions), before, mirror};
  }
  Target to(grad_in, dimensions);
  at::Tensor y = to.like(grad);
  pool_kernels().pad_backward(to.layout.planes, copies, y.const_data_ptr<float>(), to.data());
}

ES_STUB(reflection_pad1d_backward_kernel, (&pad_backward<true, 1>));
ES_STUB(reflection_pad2d_backward_kernel, (&pad_backward<true, 2>));
ES_STUB(reflection_pad3d_backward_kernel, (&pad_backward<true, 3>));
ES_STUB(replication_pad1d_backward_kernel, (&pad_backward<false, 1>));
ES_STUB(replication_pad2d_backward_kernel, (&pad_backward<false, 2>));
ES_STUB(replication_pad3d_backward_kernel, (&pad_backward<false, 3>));

}
}
