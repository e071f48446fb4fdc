// Tensors as the norms' kernels take them: contiguous floats.
#pragma once

#include <ATen/core/Tensor.h>

namespace es::glue {

// Refuses whatever is not float, bf16 or fp16, or undefined.
void check_types(const char* name, std::initializer_list<at::Tensor> tensors);

// An undefined tensor is null.
struct Input {
  Input(const at::Tensor& x, at::MemoryFormat format = at::MemoryFormat::Contiguous);
  at::Tensor tensor;
  const float* data;
};

// What is written to `data` is in `to` when this ends. Null or undefined: null.
class Output {
 public:
  explicit Output(const at::Tensor* to, at::MemoryFormat format = at::MemoryFormat::Contiguous);
  Output(const Output&) = delete;
  ~Output() noexcept(false);
  float* data = nullptr;

 private:
  const at::Tensor* to_;
  at::Tensor tensor_;
};

// A weight and a bias: both or neither.
struct Affine {
  Affine(const at::Tensor& weight, const at::Tensor& bias, int64_t size);
  Input weight, bias;
};

}
