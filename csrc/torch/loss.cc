// nll_loss and nll_loss2d, which is all of cross entropy that is not log-softmax. Terms are -(weight * input[target]),
// their sum and that of the weights are in the order of reductions over (batch, positions); what is ignored counts +0.
#include <ATen/core/Reduction.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "reduce.h"
#include "registry.h"

namespace es::glue {
namespace {

using at::Tensor;
using Weight = const std::optional<Tensor>&;

// Scores of (outer, classes, inner), targets of (outer, inner).
struct Picked {
  int64_t outer, classes, inner;
  Tensor targets, weights;

  Picked(const Tensor& scores, const Tensor& target, Weight weight, int64_t axes) {
    TORCH_CHECK(target.scalar_type() == at::kLong || target.scalar_type() == at::kByte,
                "expected scalar type Long or Byte for the targets but found ", target.scalar_type());
    bool fits = axes == 1 ? scores.dim() == 1 || scores.dim() == 2 : scores.dim() == 4 && target.dim() == 3;
    TORCH_CHECK(fits, "a loss of scores ", scores.sizes(), " and targets ", target.sizes(), " has no meaning");
    outer = scores.dim() == 1 ? 1 : scores.size(0);
    classes = scores.size(scores.dim() == 1 ? 0 : 1);
    inner = axes == 1 ? 1 : scores.size(2) * scores.size(3);
    TORCH_CHECK(target.numel() == outer * inner && (scores.dim() == 1 || target.size(0) == outer),
                "size mismatch (got input: ", scores.sizes(), ", target: ", target.sizes(), ")");
    targets = target.to(at::kLong).contiguous();
    if (weight && weight->defined()) {
      TORCH_CHECK(weight->dim() == 1 && weight->numel() == classes, "weight tensor should be defined either for all ",
                  classes, " classes or no classes but got weight tensor of shape: ", weight->sizes());
      weights = weight->to(at::kFloat).contiguous();
    }
  }

  // `f(at, score, weight)` for target number `at`, the place of its score, and its weight; not for what is ignored.
  template <class F>
  void each(int64_t ignored, F f) const {
    const int64_t* target = targets.const_data_ptr<int64_t>();
    const float* weight = weights.defined() ? weights.const_data_ptr<float>() : nullptr;
    for (int64_t o = 0, at = 0; o < outer; ++o)
      for (int64_t i = 0; i < inner; ++i, ++at) {
        int64_t one = target[at];
        if (one == ignored) continue;
        TORCH_CHECK_INDEX(one >= 0 && one < classes, "Target ", one, " is out of bounds.");
        f(at, (o * classes + one) * inner + i, weight ? weight[one] : 1.0f);
      }
  }
};

float sum_of(const float* terms, int64_t count) {
  float sum;
  Reduction r;
  r.in = terms;
  r.out = &sum;
  r.kept_axes = 0;
  r.reduced_axes = 1;
  r.reduced[0] = {count, 1, 0};
  reduce_kernels().sum(r);
  return sum;
}

std::tuple<Tensor, Tensor> forward(const char* name, const Tensor& scores, const Tensor& target, Weight weight,
                                   int64_t reduction, int64_t ignored, int64_t axes) {
  TORCH_CHECK(!is_integral_or_refuse(scores.scalar_type(), name), name, " is not implemented for integers");
  Picked picked(scores, target, weight, axes);
  Tensor x = scores.to(at::kFloat).contiguous(), total = at::empty({}, x.options());
  bool none = reduction == at::Reduction::None && scores.dim() > 1;
  Tensor result = at::empty(none ? target.sizes() : at::IntArrayRef(), x.options());
  int64_t count = picked.outer * picked.inner;
  std::vector<float> weights(count), summed(none ? 0 : count);
  const float* from = x.const_data_ptr<float>();
  float *to = result.mutable_data_ptr<float>(), *term = none ? to : summed.data();
  if (none && count) memset(to, 0, sizeof(float) * (size_t)count);
  picked.each(ignored, [&](int64_t at, int64_t score, float w) {
    term[at] = -(w * from[score]);
    weights[at] = w;
  });
  float all = none ? 0 : sum_of(weights.data(), count);
  *total.mutable_data_ptr<float>() = all;
  if (!none) {
    float sum = sum_of(term, count);
    *to = reduction == at::Reduction::Mean ? sum / all : sum;
  }
  return {result.to(scores.scalar_type()), total};
}

Tensor backward(const char* name, const Tensor& gradient, const Tensor& scores, const Tensor& target, Weight weight,
                int64_t reduction, int64_t ignored, const Tensor& total_weight, int64_t axes) {
  TORCH_CHECK(!is_integral_or_refuse(scores.scalar_type(), name), name, " is not implemented for integers");
  Picked picked(scores, target, weight, axes);
  Tensor g = gradient.to(at::kFloat).contiguous(), out = at::zeros(scores.sizes(), g.options());
  bool none = reduction == at::Reduction::None && scores.dim() > 1;
  TORCH_CHECK(g.numel() == (none ? target.numel() : 1), "a gradient of ", g.sizes(), " does not fit the loss");
  const float* from = g.const_data_ptr<float>();
  float total = reduction == at::Reduction::Mean ? *total_weight.to(at::kFloat).const_data_ptr<float>() : 1;
  float* to = out.mutable_data_ptr<float>();
  picked.each(ignored, [&](int64_t at, int64_t score, float w) { to[score] = -(w * (from[none ? at : 0] / total)); });
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
