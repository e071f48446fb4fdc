// What pools, nearest upsampling and padding share: volumes as exact/pool.h's Planes has them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "registry.h"

namespace es::glue {

// The size of dimension d (depth, height, width) of a tensor whose last `dimensions` are those.
inline int64_t size_of(const at::Tensor& x, int d, int dimensions) {
  return d < 3 - dimensions ? 1 : x.size(x.dim() - 3 + d);
}

// Channels first or last, as a result lies; what goes into it is brought into the same layout.
struct Layout {
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  Planes planes;

  Layout(const at::Tensor& result, int dimensions) {
    const auto last = dimensions == 2 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
    const int64_t lead = result.dim() - dimensions;  // without or with a batch
    if (dimensions > 1 && lead == 2 && result.suggest_memory_format() == last) format = last;
    planes = {lead == 1 ? 1 : result.size(0), result.size(lead - 1)};
    if (format != last) planes = {planes.outer * planes.inner, 1};
  }
};

// A result in float32 without gaps. One that is not so already is written at the end, rounded once.
class Target {
 public:
  Target(const at::Tensor& target, int dimensions)
      : layout(target, dimensions),
        target_(target),
        values_(target.scalar_type() == at::kFloat && target.is_contiguous(layout.format)
                    ? target
                    : at::empty(target.sizes(), target.options().dtype(at::kFloat).memory_format(layout.format))) {}
  ~Target() noexcept(false) {
    if (!values_.is_same(target_)) target_.copy_(values_);
  }
  Target(const Target&) = delete;

  const Layout layout;
  float* data() { return values_.mutable_data_ptr<float>(); }
  at::Tensor like(const at::Tensor& x) const { return x.to(at::kFloat).contiguous(layout.format); }

 private:
  at::Tensor target_, values_;
};

}
