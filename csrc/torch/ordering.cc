// sort and topk: of equal elements the one with the lower index comes first, on every device; NaN is above all.
#include "../cpu/sort.h"

#include <ATen/native/Sorting.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>

#include "registry.h"

namespace es::glue {
namespace {

Ordered ordered_or_refuse(at::ScalarType type) {
  switch (type) {
    case at::kBool:
    case at::kByte: return Ordered::u8;
    case at::kChar: return Ordered::i8;
    case at::kShort: return Ordered::i16;
    case at::kInt: return Ordered::i32;
    case at::kLong: return Ordered::i64;
    case at::kFloat: return Ordered::f32;
    case at::kBFloat16: return Ordered::bf16;
    case at::kHalf: return Ordered::f16;
    case at::kDouble: return Ordered::f64;
    default: break;
  }
  if (c10::isComplexType(type)) refuse("sort", "complex numbers have no order");
  refuse("sort", c10::str("it is not specified for ", type));
}

void sort_kernel(const at::TensorBase& self, const at::TensorBase& values, const at::TensorBase& indices, int64_t dim,
                 bool descending, bool) {
  at::OptionalTensorRef in(self), sorted(values), where(indices);
  Ordered type = ordered_or_refuse(self.scalar_type());
  if (self.numel() == 0) return;
  at::Tensor lines = in->movedim(dim, -1).contiguous(), places = at::empty(lines.sizes(), indices.options());
  int64_t length = lines.size(-1);
  sorts().lines({type, lines.numel() / length, length, descending, lines.const_data_ptr(),
                 places.mutable_data_ptr<int64_t>()});
  where->movedim(dim, -1).copy_(places);
  sorted->movedim(dim, -1).copy_(lines.gather(-1, places));
}
ES_STUB(sort_stub, &sort_kernel);

// Which of equal elements a partial sort finds is up to the library.
void topk_kernel(const at::TensorBase& values, const at::TensorBase& indices, const at::TensorBase& self, int64_t k,
                 int64_t dim, bool largest, bool) {
  at::OptionalTensorRef in(self), kept(values), where(indices);
  auto [sorted, places] = at::sort(*in, /*stable=*/true, dim, largest);
  kept->copy_(sorted.narrow(dim, 0, k));
  where->copy_(places.narrow(dim, 0, k));
}
ES_STUB(topk_stub, &topk_kernel);

}
}
