// Pointwise operators on a device. There ATen's iterator has neither cast its operands to a common type nor put away numbers
// that lie on the CPU.
#include <ATen/ops/empty.h>

#include "../cuda/pointwise.h"

#include "../exact/half.h"
#include "pointwise.h"

namespace es::glue {
namespace {

// As on a CPU: rounded to the common type, but by division.
float number_of(at::TensorIteratorBase& iter, int operand, Point point) {
  float x = (float)iter.original_scalar_value<double>(operand);
  if (point == Point::divide) return x;
  if (iter.common_dtype() == at::kBFloat16) return widen(narrow<bf16>(x));
  if (iter.common_dtype() == at::kHalf) return widen(narrow<fp16>(x));
  return x;
}

// Whether ATen would have cast this operand on a CPU.
bool is_cast(at::TensorIteratorBase& iter, int operand) {
  return !iter.is_cpu_scalar(operand) && iter.dtype(operand) != iter.common_dtype();
}

}

void run_on_device(at::TensorIteratorBase& iter, PointJob job, const char* what) {
  element_or_refuse(iter.common_dtype(), what);
  if (iter.numel() == 0) return;
  // Casts, and what has more axes than kernels take.
  bool again = iter.ndim() > kMostDimensions;
  for (int o = 0; o < iter.ntensors(); ++o) again |= is_cast(iter, o);
  if (again) {
    auto type = iter.common_dtype();
    at::Tensor out = at::empty(iter.tensor(0).sizes(), iter.tensor(0).options().dtype(type));
    at::TensorIteratorConfig config;
    config.check_all_same_dtype(false).add_output(out).allow_cpu_scalars(true).promote_inputs_to_common_dtype(true);
    for (int o = 1; o < iter.ntensors(); ++o) {
      at::Tensor in = iter.tensor(o);
      if (!iter.is_cpu_scalar(o)) in = in.expand(out.sizes()).to(type).contiguous();
      config.add_owned_const_input(in);
    }
    auto plain = config.build();
    run(plain, job.point, what, {job.numbers[0], job.numbers[1], job.numbers[2], job.numbers[3]});
    iter.tensor(0).copy_(out);
    return;
  }
  for (int o = 0; o < iter.ntensors(); ++o)
    job.types[o] = iter.is_cpu_scalar(o) ? Element::f32 : element_or_refuse(iter.dtype(o), what);
  Shaped shaped{iter.ndim(), {}, {}, {}, {}};
  for (int d = 0; d < iter.ndim(); ++d) shaped.sizes[d] = iter.shape()[d];
  for (int o = 0; o < iter.ntensors(); ++o) {
    if (iter.is_cpu_scalar(o)) {
      shaped.constants[o] = number_of(iter, o, job.point);
      continue;
    }
    shaped.data[o] = static_cast<char*>(iter.data_ptr(o));
    for (int d = 0; d < iter.ndim(); ++d) shaped.strides[o][d] = iter.strides(o)[d];
  }
  pointwise_shaped(job, shaped);
}

}
