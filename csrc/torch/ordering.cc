// sort and topk: of equal elements the one with the lower index comes first, on every device; NaN is above all.
#include <ATen/native/Sorting.h>
#include <ATen/ops/sort.h>

#include "registry.h"

namespace es::glue {
namespace {

void sort_kernel(const at::TensorBase& self, const at::TensorBase& values, const at::TensorBase& indices, int64_t dim,
                 bool descending, bool) {
  if (c10::isComplexType(self.scalar_type())) refuse("sort", "complex numbers have no order");
  original(at::native::sort_stub)(self, values, indices, dim, descending, /*stable=*/true);
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
