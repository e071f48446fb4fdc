// What the operators of lookup and scatter share.
#pragma once

#include <ATen/core/Tensor.h>

#include "../cpu/scatter.h"
#include "registry.h"

namespace es::glue {

inline bool integral_or_refuse(const at::Tensor& x, const char* what) {
  return is_integral_or_refuse(x.scalar_type(), what);
}

inline void expect(const at::Tensor& x, const char* what) {
  if (!is_ours(x.scalar_type()))
    refuse(what, c10::str("it is not specified for ", x.scalar_type(), "; use float32, bfloat16 or float16"));
}

// A tensor as float32 values one after the other, to be changed in place; what was not already so is written back at
// the end, rounded once.
class Working {
 public:
  explicit Working(const at::Tensor& target)
      : target_(target), values_(target.to(at::kFloat).contiguous()) {}
  ~Working() noexcept(false) {
    if (!values_.is_same(target_) && values_.const_data_ptr() != target_.const_data_ptr()) target_.copy_(values_);
  }
  Working(const Working&) = delete;
  float* data() { return values_.mutable_data_ptr<float>(); }

 private:
  at::Tensor target_, values_;
};

inline at::Tensor as_floats(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }
inline at::Tensor as_index(const at::Tensor& x) { return x.to(at::kLong).contiguous(); }

inline void check_range(const at::Tensor& index, int64_t lowest, int64_t end, const char* what) {
  TORCH_CHECK_INDEX(scatter().in_range(index.const_data_ptr<int64_t>(), index.numel(), lowest, end), what,
                    ": an index is out of bounds; there are ", end);
}

}
