// Layer norm, through ATen's stubs. bf16 and fp16 are widened before and rounded after; so are statistics that
// ATen keeps in such a type.
#include "../cpu/norm.h"

#include <ATen/native/layer_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "norm.h"
#include "registry.h"

namespace es::glue {

Input::Input(const at::Tensor& x, at::MemoryFormat format)
    : tensor(x.defined() ? x.to(at::kFloat).contiguous(format) : x),
      data(x.defined() ? tensor.const_data_ptr<float>() : nullptr) {}

Output::Output(const at::Tensor* to, at::MemoryFormat format) : to_(to && to->defined() ? to : nullptr) {
  if (!to_) return;
  bool direct = to_->scalar_type() == at::kFloat && to_->is_contiguous(format);
  tensor_ = direct ? *to_ : at::empty(to_->sizes(), to_->options().dtype(at::kFloat), format);
  data = tensor_.mutable_data_ptr<float>();
}

Output::~Output() noexcept(false) {
  if (to_ && !tensor_.is_same(*to_)) to_->copy_(tensor_);
}

Affine::Affine(const at::Tensor& weight, const at::Tensor& bias, int64_t size)
    : weight(!weight.defined() && bias.defined() ? at::ones({size}, bias.options()) : weight),
      bias(!bias.defined() && weight.defined() ? at::zeros({size}, weight.options()) : bias) {}

void check_types(const char* name, std::initializer_list<at::Tensor> tensors) {
  for (auto& x : tensors)
    TORCH_CHECK(!x.defined() || !is_integral_or_refuse(x.scalar_type(), name), name, " is not for integers");
}

namespace {

using at::Tensor;

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t rows, int64_t length, double epsilon,
                Tensor* y, Tensor* mean, Tensor* inverse) {
  check_types("native_layer_norm", {x, weight, bias});
  Input in(x);
  Affine affine(weight, bias, length);
  Output out(y), means(mean), inverses(inverse);
  // A row's statistics are computed even where nobody wants them.
  Tensor unwanted = means.data && inverses.data ? Tensor() : at::empty({2 * rows}, in.tensor.options());
  float* spare = unwanted.defined() ? unwanted.mutable_data_ptr<float>() : nullptr;
  norm_kernels().layer_norm({rows, length, in.data, affine.weight.data, affine.bias.data, (float)epsilon, out.data,
                             means.data ? means.data : spare, inverses.data ? inverses.data : spare + rows});
}
ES_STUB(LayerNormKernel, &layer_norm);

void layer_norm_backward(const Tensor& gradient, const Tensor& x, const Tensor& mean, const Tensor& inverse,
                         const Tensor& weight, int64_t rows, int64_t length, Tensor* dx, Tensor* dweight,
                         Tensor* dbias) {
  check_types("native_layer_norm_backward", {gradient, x, weight});
  Input g(gradient), in(x), means(mean), inverses(inverse), weights(weight);
  Output to(dx), to_weight(dweight), to_bias(dbias);
  norm_kernels().layer_norm_backward({rows, length, g.data, in.data, weights.data, means.data, inverses.data, to.data,
                                      to_weight.data, to_bias.data});
}
ES_STUB(LayerNormBackwardKernel, &layer_norm_backward);

}
}
