// var, std, var_mean, std_mean: two passes, mean and then squares of the distances from it. Registered, because ATen
// decides by itself, before any stub, for an all-reduction by threads.
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <c10/util/irange.h>

#include <algorithm>

#include "reduce.h"
#include "registry.h"

namespace es::glue {
namespace {

using Dims = at::OptionalIntArrayRef;
using Correction = const std::optional<at::Scalar>&;

struct Moments {
  at::Tensor variance, mean;
};

// variance = sum of (x - mean)^2 / max(0, n - correction), by fma.
Moments moments(const char* name, const at::Tensor& in, Dims dims, Correction correction, bool keepdim, bool root) {
  TORCH_CHECK(at::isFloatingType(in.scalar_type()) || at::isComplexType(in.scalar_type()), name,
              " only support floating point and complex dtypes");
  is_integral_or_refuse(in.scalar_type(), name);
  std::vector<int64_t> axes;
  auto reduced = at::dim_list_to_bitset(dims, in.dim());
  bool all = !dims.has_value() || dims->empty();
  for (int64_t d : c10::irange(in.dim()))
    if (all || reduced[d]) axes.push_back(d);
  at::Tensor x = in.to(at::kFloat), mean = sum_over(x, axes);
  double n = 1;
  for (int64_t d : axes) n *= (double)x.size(d);
  double freedom = n - (correction ? correction->toDouble() : 1);
  if (freedom <= 0 && mean.numel()) 
    TORCH_WARN(name, ": degrees of freedom is <= 0. Correction should be strictly less than the reduction factor");
  mean.div_(n);
  at::Tensor variance = sum_over(x.sub(mean), axes, reduce_kernels().sum_of_squares).div_(std::max(0.0, freedom));
  if (root) reduce_kernels().square_roots(variance.mutable_data_ptr<float>(), variance.numel());
  if (!keepdim)
    for (auto d = axes.rbegin(); d != axes.rend(); ++d) {
      variance = variance.squeeze(*d);
      mean = mean.squeeze(*d);
    }
  return {variance.to(in.scalar_type()), mean.to(in.scalar_type())};
}

at::Tensor var(const at::Tensor& in, Dims dims, Correction correction, bool keepdim) {
  return moments("var", in, dims, correction, keepdim, false).variance;
}
at::Tensor std(const at::Tensor& in, Dims dims, Correction correction, bool keepdim) {
  return moments("std", in, dims, correction, keepdim, true).variance;
}
at::Tensor& put(const at::Tensor& result, at::Tensor& out) {
  out.resize_(result.sizes());
  return out.copy_(result);
}
at::Tensor& var_out(const at::Tensor& in, Dims dims, Correction correction, bool keepdim, at::Tensor& out) {
  return put(var(in, dims, correction, keepdim), out);
}
at::Tensor& std_out(const at::Tensor& in, Dims dims, Correction correction, bool keepdim, at::Tensor& out) {
  return put(std(in, dims, correction, keepdim), out);
}
std::tuple<at::Tensor, at::Tensor> var_mean(const at::Tensor& in, Dims dims, Correction correction, bool keepdim) {
  auto [variance, mean] = moments("var_mean", in, dims, correction, keepdim, false);
  return {variance, mean};
}
std::tuple<at::Tensor, at::Tensor> std_mean(const at::Tensor& in, Dims dims, Correction correction, bool keepdim) {
  auto [deviation, mean] = moments("std_mean", in, dims, correction, keepdim, true);
  return {deviation, mean};
}

}

ES_OPERATORS(variance, ops) {
  ops.impl("var.correction", var);
  ops.impl("var.correction_out", var_out);
  ops.impl("std.correction", std);
  ops.impl("std.correction_out", std_out);
  ops.impl("var_mean.correction", var_mean);
  ops.impl("std_mean.correction", std_mean);
}

}
