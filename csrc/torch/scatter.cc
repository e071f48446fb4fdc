// scatter, scatter_add and scatter_reduce: values that meet are combined in row-major order of the index, or the last one
// stays.
#include "scatter.h"

#include <ATen/native/ReductionType.h>
#include <ATen/native/TensorAdvancedIndexing.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

namespace es::glue {
namespace {

using at::native::ReductionType;

Combine combine_of(ReductionType type) {
  switch (type) {
    case ReductionType::MAX: return Combine::maximum;
    case ReductionType::MIN: return Combine::minimum;
    case ReductionType::PROD: return Combine::multiply;
    default: return Combine::add;  // a mean's sum
  }
}

bool same_for_all_lines(const at::Tensor& index, int64_t dim) {
  for (int64_t d = 0; d < index.dim(); ++d)
    if (d != dim && index.size(d) != 1 && index.stride(d) != 0) return false;
  return true;
}

// What goes where: `target` is (outer, places, inner), `index` and `source` are (outer, length, inner); each of these but
// places and length may be several dimensions.
struct Spread {
  at::Tensor target, source, index;
  int64_t dim, outer = 1, inner = 1, length, places;

  Spread(const at::Tensor& out, int64_t given_dim, const at::Tensor& where, const at::Tensor& from)
      : target(out.dim() ? out : out.unsqueeze(0)),
        source(from.dim() ? from : from.unsqueeze(0)),
        index(where.dim() ? where : where.unsqueeze(0)),
        dim(c10::maybe_wrap_dim(given_dim, target.dim())) {
    for (int64_t d = 0; d < target.dim(); ++d) {
      source = source.narrow(d, 0, index.size(d));
      if (d != dim) target = target.narrow(d, 0, index.size(d));
    }
    length = index.size(dim), places = target.size(dim);
    for (int64_t d = 0; d < dim; ++d) outer *= index.size(d);
    for (int64_t d = dim + 1; d < index.dim(); ++d) inner *= index.size(d);
  }
};

void scatter_into(const at::Tensor& out, int64_t dim, const at::Tensor& where, const at::Tensor& from, Combine how) {
  if (where.numel() == 0) return;
  Spread s(out, dim, where, from);
  Working working(s.target);
  at::Tensor values = as_floats(s.source);
  const float* data = values.const_data_ptr<float>();
  if (s.outer == 1 && same_for_all_lines(s.index, s.dim)) {
    at::Tensor to = s.index;
    for (int64_t d = 0; d < to.dim(); ++d)
      if (d != s.dim) to = to.narrow(d, 0, 1);
    to = as_index(to);
    check_range(to, 0, s.places, "scatter");
    return scatter().rows({1, s.length, s.inner, s.places, to.const_data_ptr<int64_t>(), nullptr, data, nullptr,
                           working.data()},
                          (int)how);
  }
  at::Tensor index = as_index(s.index);
  check_range(index, 0, s.places, "scatter");
  scatter().lines({s.outer, s.length, s.inner, index.const_data_ptr<int64_t>(), data, working.data(),
                   s.places * s.inner, s.inner},
                  (int)how);
}

// Of any type: the last one stays.
void scatter_assign(const at::Tensor& self, int64_t dim, const at::Tensor& where, const at::Tensor& src) {
  if (where.numel() == 0) return;
  Spread s(self, dim, where, src);
  at::Tensor values = s.source.contiguous(), to = s.target.contiguous(), index = as_index(s.index);
  check_range(index, 0, s.places, "scatter");
  scatter().assign_lines({s.outer, s.length, s.inner, index.const_data_ptr<int64_t>(), nullptr, nullptr,
                          s.places * s.inner, s.inner},
                         to.element_size(), (const char*)values.const_data_ptr(), (char*)to.mutable_data_ptr());
  if (!to.is_same(s.target)) s.target.copy_(to);
}

void scatter_number(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Scalar& value) {
  scatter_assign(self, dim, index, at::full({}, value, self.options()).expand(index.sizes()));
}

void scatter_add(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src) {
  if (integral_or_refuse(self, "scatter_add")) return original(at::native::scatter_add_stub)(self, dim, index, src);
  scatter_into(self, dim, index, src, Combine::add);
}

void scatter_add_expanded(const at::Tensor& self, const at::Tensor& index, const at::Tensor& src) {
  if (integral_or_refuse(self, "scatter_add"))
    return original(at::native::scatter_add_expanded_index_stub)(self, index, src);
  scatter_into(self, 0, index, src, Combine::add);
}

void scatter_reduce(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                    const ReductionType& type) {
  if (integral_or_refuse(self, "scatter_reduce"))
    return original(at::native::scatter_reduce_two_stub)(self, dim, index, src, type);
  scatter_into(self, dim, index, src, combine_of(type));
}

// scatter(..., reduce="add") and "multiply"; of a number.
void scatter_reduce_old(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                        const ReductionType& type) {
  if (integral_or_refuse(self, "scatter"))
    return original(at::native::scatter_reduce_stub)(self, dim, index, src, type);
  scatter_into(self, dim, index, src, combine_of(type));
}

void scatter_reduce_number(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Scalar& value,
                           const ReductionType& type) {
  if (integral_or_refuse(self, "scatter"))
    return original(at::native::scatter_scalar_reduce_stub)(self, dim, index, value, type);
  scatter_into(self, dim, index, at::full({}, value, self.options()).expand(index.sizes()), combine_of(type));
}

// The same with dim 0, and with what ATen does around the others: places that are hit begin anew if `include_self` is
// false, a mean is divided.
void scatter_reduce_expanded(const at::Tensor& self, const at::Tensor& index, const at::Tensor& src,
                             const ReductionType& type, bool include_self) {
  if (integral_or_refuse(self, "scatter_reduce"))
    return original(at::native::scatter_reduce_expanded_index_stub)(self, index, src, type, include_self);
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  float first = type == ReductionType::PROD  ? 1
                : type == ReductionType::MAX ? -kInfinite
                : type == ReductionType::MIN ? kInfinite
                                             : 0;
  if (!include_self) at::Tensor(self).scatter_(0, index, first);
  scatter_into(self, 0, index, src, combine_of(type));
  if (type != ReductionType::MEAN) return;
  at::Tensor count = at::full(self.sizes(), include_self ? 1 : 0, self.options().dtype(at::kFloat));
  scatter_into(count, 0, index, at::ones({}, count.options()).expand(index.sizes()), Combine::add);
  at::Tensor(self).div_(count.clamp_(1));
}

ES_STUB(scatter_stub, &scatter_assign);
ES_STUB(scatter_fill_stub, &scatter_number);
ES_STUB(scatter_add_stub, &scatter_add);
ES_STUB(scatter_add_expanded_index_stub, &scatter_add_expanded);
ES_STUB(scatter_reduce_two_stub, &scatter_reduce);
ES_STUB(scatter_reduce_stub, &scatter_reduce_old);
ES_STUB(scatter_scalar_reduce_stub, &scatter_reduce_number);
ES_STUB(scatter_reduce_expanded_index_stub, &scatter_reduce_expanded);

}
}
