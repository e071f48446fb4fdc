// Sums, products, extremes and vector norms, through ATen's stubs. An iterator has its axes permuted and merged, so the
// logical order comes from its operands, which are as the caller gave them.
#include "reduce.h"

#include <ATen/native/ReduceOps.h>
#include <ATen/native/ReduceAllOps.h>
#include <ATen/ops/empty.h>

#include <algorithm>

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
void reduce_iterator(at::TensorIterator& iter, Stub& stub, const char* name, Kernel kernel) {
  if (is_integral_or_refuse(iter.input().scalar_type(), name)) return original(stub)(iter);
  reduce_into(iter.output(), iter.input(), kernel);
}

void sum_kernel(at::TensorIterator& iter) {
  if (iter.input().scalar_type() == at::kDouble)
    return reduce_kernels().sum_of_doubles(reduction_of(iter.output(), iter.input()));
  reduce_iterator(iter, at::native::sum_stub, "sum", reduce_kernels().sum);
}
ES_STUB(sum_stub, &sum_kernel);

void nansum_kernel(at::TensorIterator& iter) {
  reduce_iterator(iter, at::native::nansum_stub, "nansum", reduce_kernels().sum_of_numbers);
}
ES_STUB(nansum_stub, &nansum_kernel);

void prod_kernel(at::TensorIterator& iter) {
  reduce_iterator(iter, at::native::prod_stub, "prod", reduce_kernels().product);
}
ES_STUB(prod_stub, &prod_kernel);

}
}
