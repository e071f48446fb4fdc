// nll_loss and nll_loss2d, which is all of cross entropy that is not log-softmax. Terms are -(weight * input[target]),
// their sum and that of the weights are in the order of reductions over (batch, positions); what is ignored counts +0.
#include "../cpu/loss.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "reduce.h"
#include "registry.h"

namespace es::glue {
namespace {

using at::Tensor;
using Weight = const std::optional<Tensor>&;

// Targets as the kernels take them, which are checked, and the tensors that hold them.
struct Picked {
  Picks picks;
  Tensor targets, weights;

  Picked(const Tensor& scores, const Tensor& target, Weight weight, int64_t ignored, int64_t axes) {
    TORCH_CHECK(target.scalar_type() == at::kLong || target.scalar_type() == at::kByte,
                "expected scalar type Long or Byte for the targets but found ", target.scalar_type());
    bool fits = axes == 1 ? scores.dim() == 1 || scores.dim() == 2 : scores.dim() == 4 && target.dim() == 3;
    TORCH_CHECK(fits, "a loss of scores ", scores.sizes(), " and targets ", target.sizes(), " has no meaning");
    int64_t outer = scores.dim() == 1 ? 1 : scores.size(0), classes = scores.size(scores.dim() == 1 ? 0 : 1);
    int64_t inner = axes == 1 ? 1 : scores.size(2) * scores.size(3);
    TORCH_CHECK(target.numel() == outer * inner && (scores.dim() == 1 || target.size(0) == outer),
                "size mismatch (got input: ", scores.sizes(), ", target: ", target.sizes(), ")");
    targets = target.to(at::kLong).contiguous();
    if (weight && weight->defined()) {
      TORCH_CHECK(weight->dim() == 1 && weight->numel() == classes, "weight tensor should be defined either for all ",
                  classes, " classes or no classes but got weight tensor of shape: ", weight->sizes());
      weights = weight->to(at::kFloat).contiguous();
    }
    picks = {outer, classes, inner, ignored, targets.const_data_ptr<int64_t>(),
             weights.defined() ? weights.const_data_ptr<float>() : nullptr};
    int64_t wrong = 0;
    bool right = loss().misfit(picks, &wrong) < 0;
    TORCH_CHECK_INDEX(right, "Target ", wrong, " is out of bounds.");
  }
};

std::tuple<Tensor, Tensor> forward(const char* name, const Tensor& scores, const Tensor& target, Weight weight,
                                   int64_t reduction, int64_t ignored, int64_t axes) {
  TORCH_CHECK(!is_integral_or_refuse(scores.scalar_type(), name), name, " is not implemented for integers");
  Picked picked(scores, target, weight, ignored, axes);
  Tensor x = scores.to(at::kFloat).contiguous(), terms = at::empty({target.numel()}, x.options());
  const float* from = x.const_data_ptr<float>();
  float* to = terms.mutable_data_ptr<float>();
  if (reduction == at::Reduction::None && scores.dim() > 1) {
    loss().terms(picked.picks, from, to, nullptr);
    return {terms.view(target.sizes()).to(scores.scalar_type()), at::zeros({}, x.options())};
  }
  Tensor weights = at::empty_like(terms);
  loss().terms(picked.picks, from, to, weights.mutable_data_ptr<float>());
  Tensor sum = sum_over(terms, {0}).squeeze(0), total = sum_over(weights, {0}).squeeze(0);
  Tensor result = reduction == at::Reduction::Mean ? sum.div(total) : sum;
  return {result.to(scores.scalar_type()), total};
}

Tensor backward(const char* name, const Tensor& gradient, const Tensor& scores, const Tensor& target, Weight weight,
                int64_t reduction, int64_t ignored, const Tensor& total_weight, int64_t axes) {
  TORCH_CHECK(!is_integral_or_refuse(scores.scalar_type(), name), name, " is not implemented for integers");
  Picked picked(scores, target, weight, ignored, axes);
  Tensor g = gradient.to(at::kFloat).contiguous(), out = at::zeros(scores.sizes(), g.options()), total;
  bool none = reduction == at::Reduction::None && scores.dim() > 1;
  TORCH_CHECK(g.numel() == (none ? target.numel() : 1), "a gradient of ", g.sizes(), " does not fit the loss");
  if (reduction == at::Reduction::Mean) total = total_weight.to(at::kFloat);
  loss().gradients(picked.picks, g.const_data_ptr<float>(), none,
                   total.defined() ? total.const_data_ptr<float>() : nullptr, out.mutable_data_ptr<float>());
  return out.to(scores.scalar_type());
}

Tensor& put(const Tensor& result, Tensor& out) {
  out.resize_(result.sizes());
  return out.copy_(result);
}

constexpr char kOne[] = "nll_loss_forward", kTwo[] = "nll_loss2d_forward";
constexpr char kOneBack[] = "nll_loss_backward", kTwoBack[] = "nll_loss2d_backward";

template <const char* kName, int64_t kAxes>
std::tuple<Tensor, Tensor> nll(const Tensor& scores, const Tensor& target, Weight weight, int64_t reduction,
                               int64_t ignored) {
  return forward(kName, scores, target, weight, reduction, ignored, kAxes);
}
template <const char* kName, int64_t kAxes>
std::tuple<Tensor&, Tensor&> nll_out(const Tensor& scores, const Tensor& target, Weight weight, int64_t reduction,
                                     int64_t ignored, Tensor& out, Tensor& total_weight) {
  auto [result, total] = forward(kName, scores, target, weight, reduction, ignored, kAxes);
  return {put(result, out), put(total, total_weight)};
}
template <const char* kName, int64_t kAxes>
Tensor nll_backward(const Tensor& gradient, const Tensor& scores, const Tensor& target, Weight weight,
                    int64_t reduction, int64_t ignored, const Tensor& total) {
  return backward(kName, gradient, scores, target, weight, reduction, ignored, total, kAxes);
}
template <const char* kName, int64_t kAxes>
Tensor& nll_backward_out(const Tensor& gradient, const Tensor& scores, const Tensor& target, Weight weight,
                         int64_t reduction, int64_t ignored, const Tensor& total, Tensor& out) {
  return put(backward(kName, gradient, scores, target, weight, reduction, ignored, total, kAxes), out);
}

}

ES_OPERATORS(loss, ops) {
  ops.impl("nll_loss_forward", nll<kOne, 1>);
  ops.impl("nll_loss_forward.output", nll_out<kOne, 1>);
  ops.impl("nll_loss2d_forward", nll<kTwo, 2>);
  ops.impl("nll_loss2d_forward.output", nll_out<kTwo, 2>);
  ops.impl("nll_loss_backward", nll_backward<kOneBack, 1>);
  ops.impl("nll_loss_backward.grad_input", nll_backward_out<kOneBack, 1>);
  ops.impl("nll_loss2d_backward", nll_backward<kTwoBack, 2>);
  ops.impl("nll_loss2d_backward.grad_input", nll_backward_out<kTwoBack, 2>);
}

}
