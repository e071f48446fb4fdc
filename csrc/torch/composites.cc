// Operators that ATen composes in another way on a device than on a CPU, composed as on a CPU. They are above autograd.
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "registry.h"

namespace es::glue {
namespace {

// There a fused operator whose mask is of another type.
at::Tensor dropout(const at::Tensor& input, double p, bool train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (p == 0 || !train || input.numel() == 0) return input;
  if (p == 1) return input.mul(at::zeros({}, input.options()));
  return input.mul(at::empty_like(input).bernoulli_(1 - p).div_(1 - p));
}

}

ES_COMPOSITES(composites, ops) { ops.impl("dropout", dropout); }

}
