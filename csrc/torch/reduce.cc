// Sums, products, extremes and vector norms, through ATen's stubs. An iterator has its axes permuted and merged, so the
// logical order comes from its operands, which are as the caller gave them.
#include "reduce.h"

#include <ATen/native/ReduceOps.h>
#include <ATen/native/ReduceAllOps.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/diagonal.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>

#include "registry.h"

namespace es::glue {

Reduction reduction_of(const at::Tensor& out, const at::Tensor& in) {
  TORCH_INTERNAL_ASSERT(out.dim() == in.dim() && in.dim() <= kMostAxes);
  Reduction r;
  r.in = in.const_data_ptr();
  r.out = out.data_ptr();
  r.kept_axes = r.reduced_axes = 0;
  for (int64_t d = 0; d < in.dim(); ++d) {
    Axis axis = {in.size(d), in.stride(d), out.stride(d)};
    if (axis.size == 1) continue;
    if (out.size(d) == 1) {
      Axis* before = r.reduced_axes ? &r.reduced[r.reduced_axes - 1] : nullptr;
      if (before && before->stride == axis.size * axis.stride)
        *before = {before->size * axis.size, axis.stride, 0};
      else
        r.reduced[r.reduced_axes++] = axis;
    } else {
      r.kept[r.kept_axes++] = axis;
    }
  }
  std::stable_sort(r.kept, r.kept + r.kept_axes, [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
  int merged = 0;
  for (int a = 0; a < r.kept_axes; ++a) {
    Axis axis = r.kept[a];
    Axis* before = merged ? &r.kept[merged - 1] : nullptr;
    if (before && before->stride == axis.size * axis.stride && before->out == axis.size * axis.out)
      *before = {before->size * axis.size, axis.stride, axis.out};
    else
      r.kept[merged++] = axis;
  }
  r.kept_axes = merged;
  return r;
}

at::Tensor sum_over(const at::Tensor& in, at::IntArrayRef axes, void (*kernel)(const Reduction&)) {
  auto sizes = in.sizes().vec();
  for (int64_t d : axes) sizes[d] = 1;
  at::Tensor out = at::empty(sizes, in.options());
  (kernel ? kernel : reduce_kernels().sum)(reduction_of(out, in));
  return out;
}

namespace {

using Kernel = void (*)(const Reduction&);

// bf16 and fp16 are widened before and rounded after.
void reduce_into(const at::Tensor& out, const at::Tensor& in, Kernel kernel) {
  if (in.scalar_type() == at::kFloat && out.scalar_type() == at::kFloat) return kernel(reduction_of(out, in));
  at::Tensor wide = at::empty(out.sizes(), out.options().dtype(at::kFloat));
  kernel(reduction_of(wide, in.to(at::kFloat)));
  out.copy_(wide);
}

// An empty reduced axis: stubs are not called for it, and out is filled by ATen.
template <class Stub>
void reduce_iterator(at::TensorIterator& iter, Stub& stub, const char* name, Kernel kernel, Kernel doubles = nullptr) {
  if (doubles && iter.input().scalar_type() == at::kDouble) return doubles(reduction_of(iter.output(), iter.input()));
  if (is_integral_or_refuse(iter.input().scalar_type(), name)) return original(stub)(iter);
  reduce_into(iter.output(), iter.input(), kernel);
}

void sum_kernel(at::TensorIterator& iter) {
  reduce_iterator(iter, at::native::sum_stub, "sum", reduce_kernels().sum, reduce_kernels().sum_of_doubles);
}
ES_STUB(sum_stub, &sum_kernel);

// Asked for devices only; on a CPU ATen says the same.
void mean_kernel(at::TensorIterator& iter) {
  at::Tensor out = iter.output(), in = iter.input();
  if (in.scalar_type() == at::kDouble) {
    reduce_kernels().sum_of_doubles(reduction_of(out, in));
    if (out.numel()) out.div_(in.numel() / out.numel());
    return;
  }
  if (is_integral_or_refuse(in.scalar_type(), "mean")) return original(at::native::mean_stub)(iter);
  at::Tensor wide = at::empty(out.sizes(), out.options().dtype(at::kFloat));
  reduce_into(wide, in, reduce_kernels().sum);
  if (out.numel()) wide.div_(in.numel() / out.numel());
  out.copy_(wide);
}
ES_STUB(mean_stub, &mean_kernel);

void nansum_kernel(at::TensorIterator& iter) {
  reduce_iterator(iter, at::native::nansum_stub, "nansum", reduce_kernels().sum_of_numbers);
}
ES_STUB(nansum_stub, &nansum_kernel);

void prod_kernel(at::TensorIterator& iter) {
  reduce_iterator(iter, at::native::prod_stub, "prod", reduce_kernels().product);
}
ES_STUB(prod_stub, &prod_kernel);


void amax_kernel(at::TensorIterator& iter) {
  reduce_iterator(iter, at::native::max_values_stub, "amax", reduce_kernels().maximum,
                  reduce_kernels().maximum_of_doubles);
}
ES_STUB(max_values_stub, &amax_kernel);

void amin_kernel(at::TensorIterator& iter) {
  reduce_iterator(iter, at::native::min_values_stub, "amin", reduce_kernels().minimum,
                  reduce_kernels().minimum_of_doubles);
}
ES_STUB(min_values_stub, &amin_kernel);

// The extremes of all axes, or only of `dim`.
void reduce_axes(const at::Tensor& out, const at::Tensor& in, std::optional<int64_t> dim, Kernel kernel, Kernel doubles) {
  auto sizes = in.sizes().vec();
  for (int64_t d = 0; d < in.dim(); ++d)
    if (!dim || *dim == d) sizes[d] = 1;
  at::Tensor kept = at::empty(sizes, in.options());
  if (in.scalar_type() == at::kDouble)
    doubles(reduction_of(kept, in));
  else
    reduce_into(kept, in, kernel);
  out.copy_(kept.view_as(out));
}
void largest_of(const at::Tensor& out, const at::Tensor& in, std::optional<int64_t> dim = {}) {
  reduce_axes(out, in, dim, reduce_kernels().maximum, reduce_kernels().maximum_of_doubles);
}
void least_of(const at::Tensor& out, const at::Tensor& in, std::optional<int64_t> dim = {}) {
  reduce_axes(out, in, dim, reduce_kernels().minimum, reduce_kernels().minimum_of_doubles);
}
bool left_to_pytorch(const at::Tensor& in, const char* name) {
  return in.scalar_type() != at::kDouble && is_integral_or_refuse(in.scalar_type(), name);
}

void max_all_kernel(at::Tensor& result, const at::Tensor& in) {
  if (left_to_pytorch(in, "max")) return original(at::native::max_all_stub)(result, in);
  largest_of(result, in);
}
ES_STUB(max_all_stub, &max_all_kernel);

void min_all_kernel(at::Tensor& result, const at::Tensor& in) {
  if (left_to_pytorch(in, "min")) return original(at::native::min_all_stub)(result, in);
  least_of(result, in);
}
ES_STUB(min_all_stub, &min_all_kernel);

void aminmax_all_kernel(const at::Tensor& in, at::Tensor& least, at::Tensor& largest) {
  if (left_to_pytorch(in, "aminmax")) return original(at::native::aminmax_allreduce_stub)(in, least, largest);
  least_of(least, in);
  largest_of(largest, in);
}
ES_STUB(aminmax_allreduce_stub, &aminmax_all_kernel);

void aminmax_kernel(const at::Tensor& in, int64_t dim, bool keepdim, at::Tensor& least, at::Tensor& largest) {
  if (left_to_pytorch(in, "aminmax")) return original(at::native::aminmax_stub)(in, dim, keepdim, least, largest);
  least_of(least, in, c10::maybe_wrap_dim(dim, in.dim()));
  largest_of(largest, in, c10::maybe_wrap_dim(dim, in.dim()));
}
ES_STUB(aminmax_stub, &aminmax_kernel);

// (sum |x|^p)^(1/p); of p = 0 the count of what is not 0, of infinite p the largest or the smallest magnitude.
void norm_kernel(at::TensorIterator& iter, const at::Scalar& order) {
  const at::Tensor& in = iter.input();
  at::Tensor out = iter.output();
  if (is_integral_or_refuse(in.scalar_type(), "linalg_vector_norm"))
    return original(at::native::norm_stub)(iter, order);
  double p = order.toDouble();
  const Reduce& kernels = reduce_kernels();
  if (p == 0) return reduce_into(out, in, kernels.count_of_nonzeros);
  if (p == 1) return reduce_into(out, in, kernels.sum_of_magnitudes);
  if (p == HUGE_VAL) return reduce_into(out, in, kernels.maximum_magnitude);
  if (p == -HUGE_VAL) return reduce_into(out, in, kernels.minimum_magnitude);
  at::Tensor total = at::empty(out.sizes(), out.options().dtype(at::kFloat));
  if (p == 2) {
    reduce_into(total, in, kernels.sum_of_squares);
    // Not ATen's, which are MKL's and not always rounded right.
    kernels.square_roots(total.mutable_data_ptr<float>(), total.numel());
  } else {
    reduce_into(total, in.to(at::kFloat).abs().pow_(p), kernels.sum);
    total.pow_(1 / p);
  }
  out.copy_(total);
}
ES_STUB(norm_stub, &norm_kernel);

void running(const at::Tensor& out, const at::Tensor& in, int64_t dim, void (*kernel)(const RunningLines&)) {
  at::Tensor from = in.to(at::kFloat).contiguous(), to = at::empty_like(from);
  RunningLines lines = {from.const_data_ptr<float>(), to.mutable_data_ptr<float>(), 1, from.size(dim), 1};
  for (int64_t d = 0; d < from.dim(); ++d) (d < dim ? lines.outer : lines.inner) *= d == dim ? 1 : from.size(d);
  kernel(lines);
  out.copy_(to);
}

void cumsum_kernel(const at::Tensor& out, const at::Tensor& in, int64_t dim) {
  if (is_integral_or_refuse(out.scalar_type(), "cumsum")) return original(at::native::cumsum_stub)(out, in, dim);
  running(out, in, c10::maybe_wrap_dim(dim, in.dim()), reduce_kernels().running_sum);
}
ES_STUB(cumsum_stub, &cumsum_kernel);

void cumprod_kernel(const at::Tensor& out, const at::Tensor& in, int64_t dim) {
  if (is_integral_or_refuse(out.scalar_type(), "cumprod")) return original(at::native::cumprod_stub)(out, in, dim);
  running(out, in, c10::maybe_wrap_dim(dim, in.dim()), reduce_kernels().running_product);
}
ES_STUB(cumprod_stub, &cumprod_kernel);

at::Tensor trace(const at::Tensor& in) {
  if (is_integral_or_refuse(in.scalar_type(), "trace")) return original_result<at::Tensor>("trace", in);
  return in.diagonal().sum();
}

}

ES_OPERATORS(reduce, ops) { ops.impl("trace", trace); }

}
