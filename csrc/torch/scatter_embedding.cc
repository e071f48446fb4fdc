// Embeddings and bags of them: rows are added in ascending position of the indices.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "scatter.h"

namespace es::glue {
namespace {

// The factor of each position where gradients are divided by how often their index occurs.
at::Tensor inverse_counts(const at::Tensor& index, int64_t rows) {
  at::Tensor factor = at::empty({index.numel()}, at::kFloat), counts = at::zeros({rows}, at::kLong);
  const int64_t* at = index.const_data_ptr<int64_t>();
  int64_t* count = counts.mutable_data_ptr<int64_t>();
  float* to = factor.mutable_data_ptr<float>();
  for (int64_t p = 0; p < index.numel(); ++p) ++count[at[p]];
  for (int64_t p = 0; p < index.numel(); ++p) to[p] = 1 / (float)count[at[p]];
  return factor;
}

at::Tensor without(const at::Tensor& index, int64_t padding) {
  return padding < 0 ? index : index.masked_fill(index.eq(padding), -1);
}

at::Tensor embedding_dense_backward(const at::Tensor& grad, const at::Tensor& indices, int64_t rows, int64_t padding,
                                    bool scale_by_frequency) {
  expect(grad, "embedding_dense_backward");
  at::Tensor index = as_index(indices).reshape({-1}), factor;
  int64_t width = grad.size(-1);
  check_range(index, 0, rows, "embedding_dense_backward");
  at::Tensor out = at::zeros({rows, width}, grad.options().dtype(at::kFloat)), values = as_floats(grad);
  if (scale_by_frequency) factor = inverse_counts(index, rows);
  at::Tensor to = without(index, padding);
  scatter().rows({1, to.numel(), width, rows, to.const_data_ptr<int64_t>(), nullptr, values.const_data_ptr<float>(),
                  factor.defined() ? factor.const_data_ptr<float>() : nullptr, out.mutable_data_ptr<float>()},
                 (int)Combine::add);
  return out.to(grad.scalar_type());
}

// ---- Bags: mode 0 is the sum of a bag's rows, 1 their mean, 2 their maximum.

using Optional = std::optional<at::Tensor>;
using Bags = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

at::Tensor floats_or_none(const Optional& x) { return x && x->defined() ? as_floats(*x) : at::Tensor(); }
const float* data_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }

// The bag of each position: the last that begins at it or before.
at::Tensor bag_of(const at::Tensor& offsets, int64_t bags, int64_t count) {
  at::Tensor result = at::empty({count}, at::kLong);
  const int64_t* begin = offsets.const_data_ptr<int64_t>();
  int64_t* to = result.mutable_data_ptr<int64_t>();
  for (int64_t p = 0, bag = 0; p < count; ++p) {
    while (bag + 1 < bags && begin[bag + 1] <= p) ++bag;
    to[p] = bag;
  }
  return result;
}

// PyTorch makes what describes the bags, and maxima; sums are made anew.
Bags bags_by(const char* name, const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
             bool by_frequency, int64_t mode, bool sparse, const Optional& weights, bool last_offset, int64_t padding) {
  expect(weight, name);
  torch::jit::Stack stack;
  torch::jit::push(stack, weight, indices, offsets, by_frequency, mode, sparse, weights, last_offset, padding);
  call_original(name, stack);
  at::Tensor output = stack[0].toTensor();
  if (mode != 2) {
    at::Tensor index = as_index(indices), values = as_floats(weight), scale = floats_or_none(weights);
    int64_t bags = output.size(0), width = weight.size(1), count = index.numel();
    check_range(index, 0, weight.size(0), name);
    at::Tensor to = bag_of(as_index(offsets), bags, count);
    if (padding >= 0) to = to.masked_fill(index.eq(padding), -1);
    at::Tensor sums = at::zeros({bags, width}, at::kFloat);
    scatter().rows({1, count, width, bags, to.const_data_ptr<int64_t>(), index.const_data_ptr<int64_t>(),
                    values.const_data_ptr<float>(), data_or_null(scale), sums.mutable_data_ptr<float>()},
                   (int)Combine::add);
    if (mode == 1) {
      at::Tensor sizes = at::zeros({bags}, at::kLong);
      int64_t* size = sizes.mutable_data_ptr<int64_t>();
      float* sum = sums.mutable_data_ptr<float>();
      for (int64_t p = 0; p < count; ++p)
        if (to.const_data_ptr<int64_t>()[p] >= 0) ++size[to.const_data_ptr<int64_t>()[p]];
      for (int64_t at = 0; at < bags * width; ++at)
        if (size[at / width]) sum[at] = sum[at] / (float)size[at / width];
    }
    output = sums.to(output.scalar_type());
  }
  return {output, stack[1].toTensor(), stack[2].toTensor(), stack[3].toTensor()};
}

Bags embedding_bag(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, bool by_frequency,
                   int64_t mode, bool sparse, const Optional& weights, bool last_offset, int64_t padding) {
  return bags_by("_embedding_bag", weight, indices, offsets, by_frequency, mode, sparse, weights, last_offset, padding);
}

Bags embedding_bag_forward_only(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
                                bool by_frequency, int64_t mode, bool sparse, const Optional& weights, bool last_offset,
                                int64_t padding) {
  return bags_by("_embedding_bag_forward_only", weight, indices, offsets, by_frequency, mode, sparse, weights,
                 last_offset, padding);
}

at::Tensor embedding_bag_dense_backward(const at::Tensor& grad, const at::Tensor& indices, const at::Tensor& bag,
                                        const at::Tensor& sizes, const at::Tensor& maxima, int64_t rows,
                                        bool by_frequency, int64_t mode, const Optional& weights, int64_t padding) {
  expect(grad, "_embedding_bag_dense_backward");
  if (mode == 2)  // which is index_add for each column
    return original_result<at::Tensor>("_embedding_bag_dense_backward", grad, indices, bag, sizes, maxima, rows,
                                       by_frequency, mode, weights, padding);
  at::Tensor index = as_index(indices), source = as_index(bag), values = as_floats(grad);
  at::Tensor scale = floats_or_none(weights);
  int64_t count = index.numel(), width = grad.size(1);
  check_range(index, 0, rows, "_embedding_bag_dense_backward");
  if (scale.defined() || by_frequency || mode == 1) {
    at::Tensor factor = at::empty({count}, at::kFloat), size = as_index(sizes), counts = at::zeros({rows}, at::kLong);
    const int64_t *row = index.const_data_ptr<int64_t>(), *of = source.const_data_ptr<int64_t>();
    int64_t* occurs = counts.mutable_data_ptr<int64_t>();
    float* to = factor.mutable_data_ptr<float>();
    for (int64_t p = 0; p < count; ++p) ++occurs[row[p]];
    for (int64_t p = 0; p < count; ++p) {
      to[p] = scale.defined() ? scale.const_data_ptr<float>()[p] : 1.0f;
      if (by_frequency) to[p] = to[p] / (float)occurs[row[p]];
      int64_t in_bag = mode == 1 ? size.const_data_ptr<int64_t>()[of[p]] : 0;
      if (in_bag) to[p] = to[p] / (float)in_bag;
    }
    scale = factor;
  }
  at::Tensor to = without(index, padding), out = at::zeros({rows, width}, at::kFloat);
  scatter().rows({1, count, width, rows, to.const_data_ptr<int64_t>(), source.const_data_ptr<int64_t>(),
                  values.const_data_ptr<float>(), data_or_null(scale), out.mutable_data_ptr<float>()},
                 (int)Combine::add);
  return out.to(grad.scalar_type());
}

at::Tensor embedding_bag_weights_backward(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& indices,
                                          const at::Tensor& offsets, const at::Tensor& bag, int64_t mode,
                                          int64_t padding) {
  expect(grad, "_embedding_bag_per_sample_weights_backward");
  TORCH_CHECK(mode == 0, "weights of samples are for sums only");
  at::Tensor index = as_index(indices), values = as_floats(grad), table = as_floats(weight);
  at::Tensor of = bag.numel() ? as_index(bag) : bag_of(as_index(offsets), grad.size(0), index.numel());
  at::Tensor row = without(index, padding), out = at::empty({index.numel()}, at::kFloat);
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
