// What is one rounding of real numbers, and not of complex ones: there a length is computed, and how is not specified.
#include <ATen/native/UnaryOps.h>

#include "registry.h"

namespace es::glue {
namespace {

void abs_kernel(at::TensorIteratorBase& iter) {
  if (c10::isComplexType(iter.common_dtype())) refuse("abs", "it is not specified for complex numbers");
  original(at::native::abs_stub)(iter);
}
ES_STUB(abs_stub, &abs_kernel);

void sgn_kernel(at::TensorIteratorBase& iter) {
  if (c10::isComplexType(iter.common_dtype())) refuse("sgn", "it is not specified for complex numbers");
  original(at::native::sgn_stub)(iter);
}
ES_STUB(sgn_stub, &sgn_kernel);

}
}
