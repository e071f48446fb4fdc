// convolution and convolution_backward, to which everything convolutional comes down: conv1d/2d/3d, conv_transpose*,
// string and circular padding, their double backward. Shapes are checked as ATen does; layouts of results are ATen's.
#include "../cpu/conv.h"

#include <ATen/native/ConvUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "registry.h"

namespace es::glue {
namespace {

using at::IntArrayRef;
using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

struct Parameters {
  IntArrayRef stride, padding, dilation;
  bool transposed;
  IntArrayRef output_padding;
  int64_t groups;
};

// One number stands for all dimensions.
int64_t at_dim(IntArrayRef values, int64_t d) { return values.size() == 1 ? values[0] : values[d]; }

void check(const Tensor& input, const Tensor& weight, const Parameters& p) {
  int64_t dims = weight.dim() - 2;
  TORCH_CHECK(dims > 0, "weight should have at least three dimensions");
  if (dims > 3) refuse("convolution", c10::str("it is specified for up to 3 dimensions, not ", dims));
  TORCH_CHECK(input.dim() == dims + 2, "Expected ", dims + 2, "-dimensional input for ", dims + 2,
              "-dimensional weight ", weight.sizes(), ", but got ", input.dim(), "-dimensional input of size ",
              input.sizes(), " instead");
  auto expand = [&](IntArrayRef values, const char* name) {
    TORCH_CHECK(values.size() == 1 || (int64_t)values.size() == dims, "expected ", name,
                " to be a single integer value or a list of ", dims,
                " values to match the convolution dimensions, but got ", name, "=", values);
  };
  expand(p.stride, "stride");
  expand(p.padding, "padding");
  expand(p.dilation, "dilation");
  if (p.transposed) expand(p.output_padding, "output_padding");
  for (auto x : p.padding) TORCH_CHECK(x >= 0, "negative padding is not supported");
  for (auto x : p.output_padding) TORCH_CHECK(x >= 0, "negative output_padding is not supported");
  for (auto x : p.stride) TORCH_CHECK(x > 0, "non-positive stride is not supported");
  for (auto x : p.dilation) TORCH_CHECK(x > 0, "dilation should be greater than zero");
  TORCH_CHECK(p.groups > 0, "non-positive groups is not supported");
  TORCH_CHECK(weight.size(0) >= p.groups && weight.size(0) % p.groups == 0, "Given groups=", p.groups,
              ", expected weight to be divisible by ", p.groups, " at dimension 0, but got weight of size [",
              weight.sizes(), "] instead");
  int64_t channels = p.transposed ? weight.size(0) : weight.size(1) * p.groups;
  TORCH_CHECK(input.size(1) == channels, "Given groups=", p.groups, ", weight of size ", weight.sizes(),
              ", expected input", input.sizes(), " to have ", channels, " channels, but got ", input.size(1),
              " channels instead");
  for (int64_t d = 0; d < dims; ++d) {
    TORCH_CHECK(weight.size(2 + d) > 0, "kernel size should be greater than zero, but got weight of size ",
                weight.sizes());
    if (p.transposed) {
      int64_t room = std::max(at_dim(p.stride, d), at_dim(p.dilation, d)), extra = at_dim(p.output_padding, d);
      TORCH_CHECK(extra < room,
                  "output padding must be smaller than either stride or dilation, but got output_padding ", extra,
                  ", stride ", at_dim(p.stride, d), ", dilation ", at_dim(p.dilation, d));
      continue;
    }
    int64_t padded = input.size(2 + d) + 2 * at_dim(p.padding, d);
    int64_t kernel = at_dim(p.dilation, d) * (weight.size(2 + d) - 1) + 1;
    TORCH_CHECK(padded >= kernel, "Calculated padded input size per channel: ", padded, ". Kernel size: ", kernel,
                ". Kernel size can't be greater than actual input size");
  }
}

std::vector<int64_t> output_size(const Tensor& input, const Tensor& weight, const Parameters& p) {
  std::vector<int64_t> size = {input.size(0), p.transposed ? weight.size(1) * p.groups : weight.size(0)};
  for (int64_t d = 0; d < weight.dim() - 2; ++d) {
    int64_t stride = at_dim(p.stride, d), padding = at_dim(p.padding, d);
    int64_t kernel = at_dim(p.dilation, d) * (weight.size(2 + d) - 1) + 1, length = input.size(2 + d);
    size.push_back(p.transposed ? (length - 1) * stride - 2 * padding + kernel + at_dim(p.output_padding, d)
                                : (length + 2 * padding - kernel) / stride + 1);
    TORCH_CHECK(size.back() >= 0, "Given input size per channel: ", length, ". Calculated output size per channel: ",
                size.back(), ". Output size is too small");
  }
  return size;
}

// In the sense of a forward convolution: a transposed one goes from `out` to `in`.
ConvShape shape_of(IntArrayRef input, IntArrayRef output, const Tensor& weight, const Parameters& p) {
  IntArrayRef in = p.transposed ? output : input, out = p.transposed ? input : output;
  ConvShape s{input[0], p.groups, weight.size(1), weight.size(0) / p.groups, {}, {}, {}, {}, {}, {}};
  int64_t dims = weight.dim() - 2;
  for (int64_t i = 0; i < 3; ++i) {
    int64_t d = i - (3 - dims);
    s.in[i] = d < 0 ? 1 : in[2 + d];
    s.out[i] = d < 0 ? 1 : out[2 + d];
    s.kernel[i] = d < 0 ? 1 : weight.size(2 + d);
    s.stride[i] = d < 0 ? 1 : at_dim(p.stride, d);
    s.padding[i] = d < 0 ? 0 : at_dim(p.padding, d);
    s.dilation[i] = d < 0 ? 1 : at_dim(p.dilation, d);
  }
  return s;
}

Volume volume_of(const Tensor& t, void* data) {
  Volume v{data, element_or_refuse(t.scalar_type(), "convolution"), {}};
  for (int64_t i = 0; i < 5; ++i) {
    int64_t dim = i < 2 ? i : i - (5 - t.dim());
    v.stride[i] = i >= 2 && dim < 2 ? 0 : t.stride(dim);
  }
  return v;
}
Volume read_only(const Tensor& t) { return volume_of(t, const_cast<void*>(t.const_data_ptr())); }
Volume writable(const Tensor& t) { return volume_of(t, t.mutable_data_ptr()); }

// As ATen: channels last if either is so.
at::MemoryFormat format_of(const Tensor& input, const Tensor& weight) {
  auto asks = [](const Tensor& t) { return t.suggest_memory_format(); };
  auto last = input.dim() == 4   ? at::MemoryFormat::ChannelsLast
              : input.dim() == 5 ? at::MemoryFormat::ChannelsLast3d
                                 : at::MemoryFormat::Contiguous;
  return asks(input) == last || asks(weight) == last ? last : at::MemoryFormat::Contiguous;
}

// True: integers, which go to the original.
bool is_theirs(const Tensor& input, const Tensor& weight, const char* what) {
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "Input type (", input.scalar_type(), ") and weight type (",
              weight.scalar_type(), ") should be the same");
  for (auto* t : {&input, &weight})
    if (t->layout() != at::kStrided) refuse(what, "it is not specified for sparse or mkldnn tensors; use dense ones");
  return is_integral_or_refuse(input.scalar_type(), what);
}

void convolve(const Tensor& input, const Tensor& weight, const MaybeTensor& bias, const Parameters& p,
              const Tensor& out) {
  auto s = shape_of(input.sizes(), out.sizes(), weight, p);
  Tensor wide;
  if (bias && bias->defined()) wide = bias->to(at::kFloat).contiguous();
  const float* b = wide.defined() ? wide.const_data_ptr<float>() : nullptr;
  auto* kernel = p.transposed ? conv().backward_data : conv().forward;
  kernel(s, read_only(input), read_only(weight), b, writable(out));
}

void check_bias(const Tensor& input, const MaybeTensor& bias, int64_t channels) {
  if (!bias || !bias->defined()) return;
  TORCH_CHECK(bias->dim() == 1 && bias->size(0) == channels, "expected bias to be 1-dimensional with ", channels,
              " elements, but got bias of size ", bias->sizes(), " instead");
  TORCH_CHECK(bias->scalar_type() == input.scalar_type(), "Input type (", input.scalar_type(), ") and bias type (",
              bias->scalar_type(), ") should be the same");
}

Tensor forward(const Tensor& input, const Tensor& weight, const MaybeTensor& bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                   int64_t groups) {
  if (is_theirs(input, weight, "convolution"))
    // Not through "convolution", which would come back here as `_convolution`.
    return original_result<Tensor>("_convolution", input, weight, bias, stride, padding, dilation, transposed,
                                   output_padding, groups, false, true, false, false);
  Parameters p{stride, padding, dilation, transposed, output_padding, groups};
  check(input, weight, p);
  auto size = output_size(input, weight, p);
  check_bias(input, bias, size[1]);
  Tensor out = at::empty(size, input.options().memory_format(format_of(input, weight)));
  convolve(input, weight, bias, p, out);
  return out;
}

// `out` as ATen's generated variants treat it: resized, then a copy of the result.
Tensor& put(Tensor& out, const Tensor& result) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

Tensor& forward_out(const Tensor& input, const Tensor& weight, const MaybeTensor& bias, IntArrayRef stride,
                        IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                        int64_t groups, Tensor& out) {
  return put(out, forward(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups));
}

Tensor forward_long(const Tensor& input, const Tensor& weight, const MaybeTensor& bias, IntArrayRef stride,
                    IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                    int64_t groups, bool, bool, bool, bool) {
  return forward(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

Tensor& forward_long_out(const Tensor& input, const Tensor& weight, const MaybeTensor& bias, IntArrayRef stride,
                         IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                         int64_t groups, bool, bool, bool, bool, Tensor& out) {
  return put(out, forward(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups));
}

using Gradients = std::tuple<Tensor, Tensor, Tensor>;

Gradients backward(const Tensor& dy, const Tensor& input, const Tensor& weight, at::OptionalIntArrayRef bias,
                               IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                               IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  if (is_theirs(input, weight, "convolution_backward"))
    return original_result<Gradients>("convolution_backward", dy, input, weight, bias, stride, padding, dilation,
                                      transposed, output_padding, groups, mask);
  TORCH_CHECK(dy.scalar_type() == input.scalar_type(), "expected scalar type ", input.scalar_type(), " but found ",
              dy.scalar_type());
  Parameters p{stride, padding, dilation, transposed, output_padding, groups};
  check(input, weight, p);
  TORCH_CHECK(dy.sizes() == IntArrayRef(output_size(input, weight, p)), "Expected grad_output of size ",
              output_size(input, weight, p), ", but got ", dy.sizes());
  auto s = shape_of(input.sizes(), dy.sizes(), weight, p);
  auto format = format_of(input, weight);
  Gradients result;
  auto& [dx, dw, db] = result;
  if (mask[0]) {
    dx = at::empty_like(input, format);
    auto* kernel = transposed ? conv().forward : conv().backward_data;
    kernel(s, read_only(dy), read_only(weight), nullptr, writable(dx));
  }
  if (mask[1]) {
    dw = at::empty_like(weight, format);
    conv().backward_weight(s, read_only(transposed ? dy : input), read_only(transposed ? input : dy), writable(dw));
  }
  if (mask[2]) {
    db = at::empty({dy.size(1)}, dy.options().dtype(at::kFloat));
    ConvShape channels{s.batch, 1, 0, dy.size(1), {}, {}, {}, {}, {}, {}};
    for (int d = 0; d < 3; ++d) channels.out[d] = transposed ? s.in[d] : s.out[d];
    conv().backward_bias(channels, read_only(dy), db.mutable_data_ptr<float>());
    db = db.to(dy.scalar_type());
  }
  return result;
}

std::tuple<Tensor&, Tensor&, Tensor&> backward_out(
    const Tensor& dy, const Tensor& input, const Tensor& weight, at::OptionalIntArrayRef bias, IntArrayRef stride,
    IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> mask, Tensor& dx, Tensor& dw, Tensor& db) {
  auto [x, w, b] = backward(dy, input, weight, bias, stride, padding, dilation, transposed, output_padding,
                                        groups, mask);
  if (mask[0]) put(dx, x);
  if (mask[1]) put(dw, w);
  if (mask[2]) put(db, b);
  return {dx, dw, db};
}

}

ES_OPERATORS(conv, ops) {
  ops.impl("convolution", forward);
  ops.impl("convolution.out", forward_out);
  ops.impl("_convolution", forward_long);
  ops.impl("_convolution.out", forward_long_out);
  ops.impl("convolution_backward", backward);
  ops.impl("convolution_backward.out", backward_out);
}

}
