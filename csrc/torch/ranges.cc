// arange and linspace of floats; those of integers are PyTorch's own.
#include "../cpu/ranges.h"

#include <ATen/native/RangeFactories.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/ops/empty.h>

#include "registry.h"

namespace es::glue {
namespace {

// Elements are written by their number: what is not contiguous, or of halves, is filled through a copy.
template <class Floats, class Doubles>
void fill(at::TensorIterator& iter, const char* what, Floats floats, Doubles doubles) {
  const at::Tensor& out = iter.output();
  bool wide = out.scalar_type() == at::kDouble;
  if (!wide && !is_ours(out.scalar_type())) refuse(what, c10::str("it is not specified for ", out.scalar_type()));
  at::Tensor filled = out;
  if (!out.is_contiguous() || (!wide && out.scalar_type() != at::kFloat))
    filled = at::empty(out.sizes(), out.options().dtype(wide ? at::kDouble : at::kFloat));
  if (wide)
    doubles(filled.numel(), filled.mutable_data_ptr<double>());
  else
    floats(filled.numel(), filled.mutable_data_ptr<float>());
  if (!filled.is_same(out)) out.copy_(filled);
}

void arange_kernel(at::TensorIterator& iter, const at::Scalar& start, const at::Scalar& end, const at::Scalar& step) {
  if (c10::isIntegralType(iter.dtype(), true)) return original(at::native::arange_stub)(iter, start, end, step);
  double from = start.toDouble(), by = step.toDouble();
  fill(
      iter, "arange", [=](int64_t count, float* out) { ranges().arange(count, from, by, out); },
      [=](int64_t count, double* out) { ranges().arange_of_doubles(count, from, by, out); });
}
ES_STUB(arange_stub, &arange_kernel);

void linspace_kernel(at::TensorIterator& iter, const at::Scalar& start, const at::Scalar& end, int64_t) {
  if (c10::isIntegralType(iter.dtype(), true)) refuse("linspace", "it is specified for floats only");
  if (c10::isComplexType(iter.dtype())) refuse("linspace", "it is not specified for complex numbers");
  double from = start.toDouble(), to = end.toDouble();
  fill(
      iter, "linspace", [=](int64_t count, float* out) { ranges().linspace(count, from, to, out); },
      [=](int64_t count, double* out) { ranges().linspace_of_doubles(count, from, to, out); });
}
ES_STUB(linspace_stub, &linspace_kernel);

}
}
