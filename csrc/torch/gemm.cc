// mm and its relatives.
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "../cpu/gemm.h"
#include "registry.h"

namespace es::glue {
namespace {

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2, "self must be a matrix");
  if (is_integral_or_refuse(a.scalar_type(), "mm")) return original_result<at::Tensor>("mm", a, b);
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  Product p{a.size(0), b.size(1), a.size(1), {a.const_data_ptr<float>(), a.stride(0), a.stride(1)},
            {b.const_data_ptr<float>(), b.stride(0), b.stride(1)}, {}, 1, 0, out.mutable_data_ptr<float>(), out.stride(0), out.stride(1)};
  gemm().product(p);
  return out;
}

}

ES_OPERATORS(gemm, ops) { ops.impl("mm", mm); }

}
