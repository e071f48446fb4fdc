// Embeddings and bags of them: rows are added in ascending position of the indices.
#include <ATen/TensorUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "../cpu/bags.h"
#include "scatter.h"

namespace es::glue {
namespace {

at::Tensor without(const at::Tensor& index, int64_t padding) {
  return padding < 0 ? index : index.masked_fill(index.eq(padding), -1);
}

// How many positions go to each place.
at::Tensor counts_of(const at::Tensor& to, int64_t places) {
  at::Tensor counts = at::empty({places}, to.options());
  bags().counts(to.numel(), places, to.const_data_ptr<int64_t>(), counts.mutable_data_ptr<int64_t>());
  return counts;
}

// For each position the count of what it belongs to, as a divisor: nothing is divided by 0.
at::Tensor divisors(const at::Tensor& counts, const at::Tensor& of) {
  return counts.index_select(0, of).clamp_min_(1).to(at::kFloat);
}

at::Tensor embedding_dense_backward(const at::Tensor& grad, const at::Tensor& indices, int64_t rows, int64_t padding,
                                    bool scale_by_frequency) {
  expect(grad, "embedding_dense_backward");
  at::Tensor index = as_index(indices).reshape({-1}), factor;
  int64_t width = grad.size(-1);
  check_range(index, 0, rows, "embedding_dense_backward");
  at::Tensor out = at::zeros({rows, width}, grad.options().dtype(at::kFloat)), values = as_floats(grad);
  if (scale_by_frequency) factor = divisors(counts_of(index, rows), index).reciprocal_();
  at::Tensor to = without(index, padding);
  scatter().rows({1, to.numel(), width, rows, to.const_data_ptr<int64_t>(), nullptr, values.const_data_ptr<float>(),
                  factor.defined() ? factor.const_data_ptr<float>() : nullptr, out.mutable_data_ptr<float>()},
                 (int)Combine::add);
  return out.to(grad.scalar_type());
}

// ---- Bags: mode 0 is the sum of a bag's rows, 1 their mean, 2 their maximum.

constexpr int64_t kSum = 0, kMean = 1, kMaximum = 2;

using Optional = std::optional<at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

bool is(const Optional& x) { return x && x->defined(); }
at::Tensor floats_or_none(const Optional& x) { return is(x) ? as_floats(*x) : at::Tensor(); }
const float* data_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }

// The bag of each position.
at::Tensor bags_of(const at::Tensor& offsets, int64_t count, int64_t positions) {
  at::Tensor bag = at::empty({positions}, offsets.options());
  bags().of_positions(positions, count, offsets.const_data_ptr<int64_t>(), bag.mutable_data_ptr<int64_t>());
  return bag;
}

// As ATen does it, in its words.
void check_arguments(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, int64_t mode,
                     const Optional& weights, bool last_offset) {
  TORCH_CHECK(indices.dim() == 1 || indices.dim() == 2, "input has to be a 1D or 2D Tensor, but got Tensor of dimension ",
              indices.dim());
  TORCH_CHECK(indices.dim() != 1 || offsets.dim() == 1, "offsets has to be a 1D Tensor, but got Tensor of dimension ",
              offsets.dim());
  at::checkScalarTypes("embedding_bag", at::TensorArg(indices, "indices", 1), {at::kLong, at::kInt});
  at::checkScalarTypes("embedding_bag", at::TensorArg(offsets, "offsets", 1), {at::kLong, at::kInt});
  if (offsets.size(0) > 0) {
    int64_t first = offsets[0].item<int64_t>(), last = offsets[-1].item<int64_t>();
    TORCH_CHECK(first == 0, "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
                "position 0. However, got ", first);
    TORCH_CHECK(last <= indices.size(0), "offsets[-1] can not be greater than input's length ", indices.size(0),
                " but got offsets[-1] of ", last);
  }
  if (is(weights)) {
    TORCH_CHECK(mode == kSum, "embedding_bag: per_sample_weights only supported with mode='sum'");
    at::TensorArg given(*weights, "per_sample_weights", 1);
    at::checkSameType("embedding_bag", at::TensorArg(weight, "weight", 1), given);
    TORCH_CHECK(weights->dim() == 1 && weights->numel() == indices.numel(),
                "per_sample_weights has to be a 1D Tensor with an element for each index");
  }
  TORCH_CHECK(!last_offset || offsets.size(0) >= 1, "include_last_offset: number of offset should be at least 1");
}

void check_rows(const at::Tensor& index, int64_t rows) {
  if (scatter().in_range(index.const_data_ptr<int64_t>(), index.numel(), 0, rows)) return;
  at::Tensor outside = index.masked_select(index.lt(0).logical_or_(index.ge(rows)));
  TORCH_CHECK(false, "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be ",
              outside[0].item<int64_t>());
}

// What describes the bags is as ATen's CPU kernel gives it: with sizes of 0 for sums, and, but for maxima, the sizes a
// second time. The bag of each position, which ATen makes for sums when their gradient needs it, is there for all.
Four bags_by(const char* name, const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
             int64_t mode, const Optional& weights, bool last_offset, int64_t padding, bool for_gradients) {
  expect(weight, name);
  check_arguments(weight, indices, offsets, mode, weights, last_offset);
  at::ScalarType type = c10::promoteTypes(offsets.scalar_type(), indices.scalar_type());
  at::Tensor index = as_index(indices).reshape({-1}), begins = as_index(offsets), values = as_floats(weight);
  int64_t many = offsets.size(0) - (last_offset ? 1 : 0), width = weight.size(1), count = index.numel();
  check_rows(index, weight.size(0));
  at::Tensor bag = bags_of(begins, many, count), to = bag;
  if (padding >= 0) to = bag.masked_fill(index.eq(padding), -1);
  at::Tensor out = at::zeros({many, width}, values.options()), sizes, maxima;
  if (mode == kMaximum) {
    sizes = counts_of(to, many);
    maxima = at::empty({many, width}, index.options());
    bags().maxima({many, count, width, padding, bag.const_data_ptr<int64_t>(), index.const_data_ptr<int64_t>(),
                   values.const_data_ptr<float>(), out.mutable_data_ptr<float>(), maxima.mutable_data_ptr<int64_t>()});
  } else {
    at::Tensor scale = floats_or_none(weights);
    scatter().rows({1, count, width, many, to.const_data_ptr<int64_t>(), index.const_data_ptr<int64_t>(),
                    values.const_data_ptr<float>(), data_or_null(scale), out.mutable_data_ptr<float>()},
                   (int)Combine::add);
    if (mode == kMean) {
      sizes = counts_of(to, many);
      out.div_(sizes.clamp_min(1).to(at::kFloat).unsqueeze(1));
    } else {
      sizes = at::zeros({for_gradients ? many : offsets.size(0)}, index.options());
    }
    maxima = sizes;
  }
  return {out.to(weight.scalar_type()), bag.to(type), sizes.to(type),
          maxima.to(type, /*non_blocking=*/false, /*copy=*/true)};
}

Four embedding_bag(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, bool, int64_t mode,
                   bool, const Optional& weights, bool last_offset, int64_t padding) {
  return bags_by("_embedding_bag", weight, indices, offsets, mode, weights, last_offset, padding, true);
}

Four embedding_bag_forward_only(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, bool,
                                int64_t mode, bool, const Optional& weights, bool last_offset, int64_t padding) {
  return bags_by("_embedding_bag_forward_only", weight, indices, offsets, mode, weights, last_offset, padding, false);
}

// Each column's maximum was that of one row; in ascending bags.
at::Tensor maxima_backward(const at::Tensor& grad, const at::Tensor& sizes, const at::Tensor& maxima, int64_t rows) {
  int64_t many = grad.size(0), width = grad.size(1);
  at::Tensor out = at::zeros({rows, width}, grad.options().dtype(at::kFloat));
  if (rows == 0) return out;
  at::Tensor from = as_index(maxima), empty = sizes.eq(0).unsqueeze(1);  // +0 changes no sum that begins with +0
  at::Tensor values = grad.to(at::kFloat).masked_fill(empty, 0).contiguous();
  check_range(from, 0, rows, "_embedding_bag_dense_backward");
  scatter().lines({1, many, width, from.const_data_ptr<int64_t>(), values.const_data_ptr<float>(),
                   out.mutable_data_ptr<float>(), rows * width, width},
                  (int)Combine::add);
  return out;
}

at::Tensor embedding_bag_dense_backward(const at::Tensor& grad, const at::Tensor& indices, const at::Tensor& bag,
                                        const at::Tensor& sizes, const at::Tensor& maxima, int64_t rows,
                                        bool by_frequency, int64_t mode, const Optional& weights, int64_t padding) {
  expect(grad, "_embedding_bag_dense_backward");
  if (mode == kMaximum) return maxima_backward(grad, sizes, maxima, rows).to(grad.scalar_type());
  at::Tensor index = as_index(indices), source = as_index(bag), values = as_floats(grad);
  at::Tensor scale = floats_or_none(weights);
  int64_t count = index.numel(), width = grad.size(1);
  check_range(index, 0, rows, "_embedding_bag_dense_backward");
  if (by_frequency || mode == kMean) {
    scale = scale.defined() ? scale.clone() : at::full({count}, 1, values.options());
    if (by_frequency) scale.div_(divisors(counts_of(index, rows), index));
    if (mode == kMean) scale.div_(divisors(as_index(sizes), source));
  }
  at::Tensor to = without(index, padding), out = at::zeros({rows, width}, values.options());
  scatter().rows({1, count, width, rows, to.const_data_ptr<int64_t>(), source.const_data_ptr<int64_t>(),
                  values.const_data_ptr<float>(), data_or_null(scale), out.mutable_data_ptr<float>()},
                 (int)Combine::add);
  return out.to(grad.scalar_type());
}

at::Tensor embedding_bag_weights_backward(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& indices,
                                          const at::Tensor& offsets, const at::Tensor& bag, int64_t mode,
                                          int64_t padding) {
  expect(grad, "_embedding_bag_per_sample_weights_backward");
  TORCH_CHECK(mode == kSum, "weights of samples are for sums only");
  at::Tensor index = as_index(indices), values = as_floats(grad), table = as_floats(weight);
  at::Tensor of = bag.numel() ? as_index(bag) : bags_of(as_index(offsets), grad.size(0), index.numel());
  at::Tensor row = without(index, padding), out = at::empty({index.numel()}, values.options());
  scatter().dots(index.numel(), grad.size(1), table.const_data_ptr<float>(), row.const_data_ptr<int64_t>(),
                 values.const_data_ptr<float>(), of.const_data_ptr<int64_t>(), out.mutable_data_ptr<float>());
  return out.to(grad.scalar_type());
}

}

ES_OPERATORS(scatter_embedding, ops) {
  ops.impl("embedding_dense_backward", embedding_dense_backward);
  ops.impl("_embedding_bag", embedding_bag);
  ops.impl("_embedding_bag_forward_only", embedding_bag_forward_only);
  ops.impl("_embedding_bag_dense_backward", embedding_bag_dense_backward);
  ops.impl("_embedding_bag_per_sample_weights_backward", embedding_bag_weights_backward);
}

}
