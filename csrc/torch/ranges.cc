// arange and linspace of floats; those of integers are PyTorch's own.
#include "../exact/ranges.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/native/RangeFactories.h>
#include <ATen/native/TensorIterator.h>

#include "registry.h"

namespace es::glue {
namespace {

template <class Element>
void fill(at::TensorIterator& iter, Element element) {
  // By the number of the element: the result is one-dimensional and is not permuted.
  const at::TensorBase& out = iter.output_base();
  int64_t stride = iter.numel() > 1 ? iter.strides(0)[0] : 0;
  AT_DISPATCH_V2(out.scalar_type(), "range", AT_WRAP([&] {
    char* at = (char*)iter.data_ptr(0);
    for (int64_t i = 0; i < iter.numel(); ++i) *(scalar_t*)(at + i * stride) = (scalar_t)element(i);
  }), at::kFloat, at::kDouble, at::kHalf, at::kBFloat16);
}

void arange_kernel(at::TensorIterator& iter, const at::Scalar& start, const at::Scalar& end, const at::Scalar& step) {
  if (c10::isIntegralType(iter.dtype(), true)) return original(at::native::arange_stub)(iter, start, end, step);
  fill(iter, [=, from = start.toDouble(), by = step.toDouble()](int64_t i) { return arange_element(from, by, i); });
}
ES_STUB(arange_stub, &arange_kernel);

void linspace_kernel(at::TensorIterator& iter, const at::Scalar& start, const at::Scalar& end, int64_t steps) {
  if (c10::isIntegralType(iter.dtype(), true)) refuse("linspace", "it is specified for floats only");
  if (c10::isComplexType(iter.dtype())) refuse("linspace", "it is not specified for complex numbers");
  fill(iter, [=, from = start.toDouble(), to = end.toDouble()](int64_t i) { return linspace_element(from, to, steps, i); });
}
ES_STUB(linspace_stub, &linspace_kernel);

}
}
