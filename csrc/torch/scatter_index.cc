// index_put, put and index_add: values that meet are added in row-major order of the index, or the last one stays.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include "scatter.h"

namespace es::glue {
namespace {

using at::Tensor;

// Where each position goes among the places that the indices number in row-major order.
at::Tensor places_of(const at::Tensor& self, const std::vector<at::Tensor>& indices, int64_t first, const char* what) {
  at::Tensor to;
  for (size_t d = 0; d < indices.size(); ++d) {
    int64_t size = self.size(first + (int64_t)d);
    at::Tensor index = as_index(indices[d].to(self.device()));
    check_range(index, -size, size, what);
    at::Tensor numbers = at::empty_like(index);
    scatter().number(index.numel(), size, index.const_data_ptr<int64_t>(),
                     d ? to.const_data_ptr<int64_t>() : nullptr, numbers.mutable_data_ptr<int64_t>());
    to = numbers;
  }
  return to;
}

// `target` is (batches, places that `to` numbers, width), `source` (batches, numel of `to`, width); each of these
// may be several dimensions. What is not contiguous is worked on in a copy.
struct Shape {
  int64_t batches, places, width;
};

// Whatever their type: the last one stays.
void assign(const at::Tensor& target, const at::Tensor& to, const at::Tensor& source, Shape s) {
  at::Tensor out = target.contiguous(), values = source.contiguous();
  scatter().assign(s.batches, to.numel(), s.width * out.element_size(), s.places, to.const_data_ptr<int64_t>(),
                   (const char*)values.const_data_ptr(), (char*)out.mutable_data_ptr());
  if (!out.is_same(target)) target.copy_(out);
}

void add(const at::Tensor& target, const at::Tensor& to, const at::Tensor& source, Shape s,
         const float* scale = nullptr) {
  at::Tensor values = as_floats(source);
  Working out(target);
  scatter().rows({s.batches, to.numel(), s.width, s.places, to.const_data_ptr<int64_t>(), nullptr,
                  values.const_data_ptr<float>(), scale, out.data()},
                 (int)Combine::add);
}

at::Tensor& index_put(at::Tensor& self, const c10::List<std::optional<at::Tensor>>& given, const at::Tensor& values,
                      bool accumulate, bool unsafe) {
  bool original = accumulate && integral_or_refuse(self, "index_put with accumulate");
  if (original) {
    original_result<at::Tensor>("_index_put_impl_", self, given, values, accumulate, unsafe);
    return self;
  }
  TORCH_CHECK_INDEX((int64_t)given.size() <= self.dim(), "too many indices for tensor of dimension ", self.dim(),
                    " (got ", given.size(), ")");
  TORCH_CHECK(self.scalar_type() == values.scalar_type(),
              "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
              " for the destination and ", values.scalar_type(), " for the source.");
  at::assert_no_internal_overlap(self);
  at::native::checkIndexTensorTypes(given, /*allow_int=*/true);
  if (!accumulate)
    if (auto [one, mask] = at::native::canDispatchToMaskedFill(self, given, values); one)
      return self.masked_fill_(mask, values.item());
  std::vector<at::Tensor> indices = at::expand_outplace(at::native::expandTensors(self, given));
  indices.resize(self.dim());
  at::Tensor turned = self;
  if (!at::native::hasContiguousSubspace(indices))
    std::tie(turned, indices) = at::native::transposeToFront(self, indices);
  int64_t first = 0, count = 0;  // the indexed dimensions
  while (first < (int64_t)indices.size() && !indices[first].defined()) ++first;
  if (first == (int64_t)indices.size()) return self.copy_(values);
  while (first + count < (int64_t)indices.size() && indices[first + count].defined()) ++count;
  std::vector<at::Tensor> used(indices.begin() + first, indices.begin() + first + count);
  Shape s{1, 1, 1};
  std::vector<int64_t> shape;  // of the values
  for (int64_t d = 0; d < first; ++d) shape.push_back(turned.size(d)), s.batches *= turned.size(d);
  for (int64_t d = 0; d < used[0].dim(); ++d) shape.push_back(used[0].size(d));
  for (int64_t d = 0; d < count; ++d) s.places *= turned.size(first + d);
  for (int64_t d = first + count; d < turned.dim(); ++d) shape.push_back(turned.size(d)), s.width *= turned.size(d);
  TORCH_CHECK(at::is_expandable_to(values.sizes(), shape), "shape mismatch: value tensor of shape ", values.sizes(),
              " cannot be broadcast to indexing result of shape ", at::IntArrayRef(shape));
  at::Tensor to = places_of(turned, used, first, "index_put");
  if (to.numel() == 0 || turned.numel() == 0) return self;
  at::Tensor source = (values.is_alias_of(self) ? values.clone() : values).expand(shape);
  if (accumulate)
    add(turned, to, source, s);
  else
    assign(turned, to, source, s);
  return self;
}

at::Tensor& put(at::Tensor& self, const at::Tensor& index, const at::Tensor& source, bool accumulate) {
  if (accumulate && integral_or_refuse(self, "put with accumulate")) {
    original_result<at::Tensor>("put_", self, index, source, accumulate);
    return self;
  }
  TORCH_CHECK(index.scalar_type() == at::kLong, "put_(): Expected a long tensor for index, but got ",
              index.scalar_type());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "put_(): self and source expected to have the same dtype");
  TORCH_CHECK(index.numel() == source.numel(), "put_(): Expected source and index to have the same number of elements");
  TORCH_CHECK_INDEX(self.numel() != 0 || index.numel() == 0, "put_(): Attempted to put elements into an empty tensor");
  at::assert_no_internal_overlap(self);
  if (index.numel() == 0) return self;
  at::Tensor flat = self.contiguous().reshape({-1}), to = places_of(flat, {index.reshape({-1})}, 0, "put_");
  at::Tensor values = source.is_alias_of(self) ? source.clone() : source;
  if (accumulate)
    add(flat, to, values, {1, flat.numel(), 1});
  else
    assign(flat, to, values, {1, flat.numel(), 1});
  if (!flat.is_alias_of(self)) self.copy_(flat.view(self.sizes()));
  return self;
}

void add_rows(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
              const at::Scalar& alpha) {
  at::assert_no_internal_overlap(self);
  TORCH_CHECK(index.dim() <= 1, "index_add_(): Index is supposed to be a vector");
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "index_add_(): self and source must have the same dtype");
  at::Tensor target = self.dim() ? self : self.unsqueeze(0), values = source.dim() ? source : source.unsqueeze(0);
  dim = c10::maybe_wrap_dim(dim, target.dim());
  TORCH_CHECK(values.dim() == target.dim() && values.size(dim) == index.numel(),
              "index_add_(): Number of indices should be equal to source.size(dim)");
  for (int64_t d = 0; d < target.dim(); ++d)
    TORCH_CHECK(d == dim || values.size(d) == target.size(d), "index_add_(): source and self differ in dimension ", d);
  at::Tensor to = as_index(index.reshape({-1}));
  check_range(to, 0, target.size(dim), "index_add_()");
  if (target.numel() == 0 || values.numel() == 0) return;
  if (values.is_alias_of(self)) values = values.clone();
  at::Tensor scale;
  if (alpha.to<double>() != 1) scale = at::full({to.numel()}, alpha, target.options().dtype(at::kFloat));
  Shape s{1, target.size(dim), 1};
  for (int64_t d = 0; d < target.dim(); ++d) (d < dim ? s.batches : s.width) *= d == dim ? 1 : target.size(d);
  add(target, to, values, s, scale.defined() ? scale.const_data_ptr<float>() : nullptr);
}

at::Tensor add_rows_to_copy(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                     const at::Scalar& alpha) {
  if (integral_or_refuse(self, "index_add"))
    return original_result<at::Tensor>("index_add", self, dim, index, source, alpha);
  at::Tensor result = self.clone();
  add_rows(result, dim, index, source, alpha);
  return result;
}

at::Tensor& index_add_(at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                       const at::Scalar& alpha) {
  if (integral_or_refuse(self, "index_add"))
    original_result<at::Tensor>("index_add_", self, dim, index, source, alpha);
  else
    add_rows(self, dim, index, source, alpha);
  return self;
}

at::Tensor& index_add_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                          const at::Scalar& alpha, at::Tensor& out) {
  at::Tensor result = add_rows_to_copy(self, dim, index, source, alpha);
  return out.resize_(result.sizes()).copy_(result);
}

// On a device, where PyTorch does not say which one stays of several that go to one place: the last, as on a CPU.
Tensor& copy_rows(Tensor& self, int64_t dim, const Tensor& index, const Tensor& source) {
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_copy_(): Index should have dimension 1 or 0 (got ", index.dim(), ")");
  TORCH_CHECK_INDEX(index.scalar_type() == at::kLong, "index_copy_(): Expected a long tensor for index, but got ",
                    index.scalar_type());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "index_copy_(): self and source expected to have the same dtype");
  at::assert_no_internal_overlap(self);
  Tensor target = self.dim() ? self : self.unsqueeze(0), values = source.dim() ? source : source.unsqueeze(0);
  dim = c10::maybe_wrap_dim(dim, target.dim());
  TORCH_CHECK_INDEX(values.dim() == target.dim() && values.size(dim) == index.numel(),
                    "index_copy_(): Number of indices (", index.numel(), ") should be equal to source.size(dim)");
  Shape s{1, target.size(dim), 1};
  for (int64_t d = 0; d < target.dim(); ++d) {
    TORCH_CHECK(d == dim || values.size(d) == target.size(d), "index_copy_(): source and self differ in dimension ", d);
    (d < dim ? s.batches : s.width) *= d == dim ? 1 : target.size(d);
  }
  Tensor to = as_index(index.reshape({-1}));
  check_range(to, 0, target.size(dim), "index_copy_()");
  if (target.numel() == 0 || values.numel() == 0) return self;
  assign(target, to, values.is_alias_of(self) ? values.clone() : values, s);
  return self;
}

Tensor& index_copy_(Tensor& self, int64_t dim, const Tensor& index, const Tensor& source) {
  if (on_device()) return copy_rows(self, dim, index, source);
  original_result<Tensor>("index_copy_", self, dim, index, source);
  return self;
}
Tensor index_copied(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source) {
  if (!on_device()) return original_result<Tensor>("index_copy", self, dim, index, source);
  Tensor result = self.clone();
  return copy_rows(result, dim, index, source);
}
Tensor& index_copy_out(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, Tensor& out) {
  if (!on_device()) {
    original_result<Tensor>("index_copy.out", self, dim, index, source, out);
    return out;
  }
  return out.resize_(self.sizes()).copy_(index_copied(self, dim, index, source));
}

}

ES_OPERATORS(scatter_index, ops) {
  ops.impl("index_copy", index_copied);
  ops.impl("index_copy_", index_copy_);
  ops.impl("index_copy.out", index_copy_out);
  ops.impl("_index_put_impl_", index_put);
  ops.impl("put_", put);
  ops.impl("index_add", add_rows_to_copy);
  ops.impl("index_add_", index_add_);
  ops.impl("index_add.out", index_add_out);
}

}
