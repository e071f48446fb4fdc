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

}

ES_OPERATORS(scatter_embedding, ops) { ops.impl("embedding_dense_backward", embedding_dense_backward); }

}
