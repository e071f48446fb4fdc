// Operators that ATen composes in another way on a device than on a CPU, or whose gradient it does, as on a CPU.
#include <ATen/TensorOperators.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "registry.h"

namespace es::glue {
namespace {

using at::Tensor;

// There a fused operator whose mask is of another type.
Tensor dropout(const Tensor& input, double p, bool train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (p == 0 || !train || input.numel() == 0) return input;
  if (p == 1) return input.mul(at::zeros({}, input.options()));
  return input.mul(at::empty_like(input).bernoulli_(1 - p).div_(1 - p));
}

// The gradient goes to all that are the extreme; what gets none gets +0, and there a product with the gradient's sign.
struct Extreme : torch::autograd::Function<Extreme> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, bool largest) {
    at::AutoDispatchBelowADInplaceOrView below;
    Tensor found = largest ? at::max(x) : at::min(x);
    context->save_for_backward({x, found});
    return found;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &found = saved[1], &gradient = gradients[0];
    Tensor chosen = found.isnan().item<bool>() ? x.isnan() : x == found;
    return {at::zeros(x.sizes(), gradient.options()).masked_fill(chosen, gradient / chosen.sum()), Tensor()};
  }
};
Tensor largest(const Tensor& x) { return Extreme::apply(x, true); }
Tensor least(const Tensor& x) { return Extreme::apply(x, false); }

}

ES_COMPOSITES(composites, ops) {
  ops.impl("dropout", dropout);
  ops.above("max", largest);
  ops.above("min", least);
}

}
