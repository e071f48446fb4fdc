#include "../cpu/pointwise.h"

#include <ATen/native/UnaryOps.h>

#include "registry.h"

namespace es::glue {
namespace {

void exp_kernel(at::TensorIteratorBase& iter) {
  if (is_integral_or_refuse(iter.common_dtype(), "exp")) return original(at::native::exp_stub)(iter);
  iter.for_each([](char** data, const int64_t* strides, int64_t n) {
    pointwise().exp((float*)data[0], (float*)data[1], n);
  });
}
ES_STUB(exp_stub, &exp_kernel);

}
}
