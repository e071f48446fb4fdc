// weight_norm: w = v * (g / |v|), the norm over all axes but the first or the last. Composed of norms, sums and single
// operations.
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>

#include "norm.h"
#include "reduce.h"
#include "registry.h"

namespace es::glue {
namespace {

using at::Tensor;

std::vector<int64_t> others(const Tensor& v, int64_t dim) {
  TORCH_CHECK(dim == 0 || dim == v.dim() - 1, "fused kernels can only be applied for first or last dim");
  std::vector<int64_t> axes;
  for (int64_t d = 0; d < v.dim(); ++d)
    if (d != dim) axes.push_back(d);
  return axes;
}

std::tuple<Tensor, Tensor> weight_norm(const Tensor& v, const Tensor& g, int64_t dim) {
  check_types("_weight_norm_interface", {v, g});
  Tensor x = v.to(at::kFloat), norm = sum_over(x, others(v, dim), reduce_kernels().sum_of_squares);
  reduce_kernels().square_roots(norm.mutable_data_ptr<float>(), norm.numel());
  return {x.mul(g.to(at::kFloat).div(norm)).to(v.scalar_type()), norm};
}

// With d = sum(dw * v): dg = d / norm; dv = (g / norm) * (dw - v * (d / (norm * norm))).
std::tuple<Tensor, Tensor> weight_norm_backward(const Tensor& gradient, const Tensor& v, const Tensor& g,
                                                const Tensor& norms, int64_t dim) {
  check_types("_weight_norm_interface_backward", {gradient, v, g});
  Tensor dw = gradient.to(at::kFloat), x = v.to(at::kFloat), norm = norms.to(at::kFloat);
  Tensor d = sum_over(dw.mul(x), others(v, dim));
  Tensor dv = dw.sub(x.mul(d.div(norm.mul(norm)))).mul(g.to(at::kFloat).div(norm));
  return {dv.to(v.scalar_type()), d.div(norm).to(g.scalar_type())};
}

}

ES_OPERATORS(weight_norm, ops) {
  ops.impl("_weight_norm_interface", weight_norm);
  ops.impl("_weight_norm_interface_backward", weight_norm_backward);
}

}
