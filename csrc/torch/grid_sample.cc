// grid_sample of pictures, forward: what augmentation does. Its gradient is not covered.
#include "../cpu/grid_sample.h"

#include <ATen/native/GridSamplerUtils.h>
#include <ATen/ops/empty.h>

#include "registry.h"

namespace es::glue {
namespace {

constexpr int64_t kBilinear = 0, kNearest = 1;

at::Tensor grid_sampler_2d(const at::Tensor& input, const at::Tensor& grid, int64_t mode, int64_t padding, bool corners) {
  at::native::check_grid_sampler_common(input, grid);
  at::native::check_grid_sampler_2d(input, grid);
  if (!is_ours(input.scalar_type()) || !is_ours(grid.scalar_type()))
    refuse("grid_sampler_2d", "it is specified for float32, bfloat16 and float16");
  if (mode != kBilinear && mode != kNearest) refuse("grid_sampler_2d", "it is specified for bilinear and nearest");
  at::Tensor picture = input.to(at::kFloat).contiguous(), places = grid.to(at::kFloat).contiguous();
  int64_t rows = grid.size(1), columns = grid.size(2);
  at::Tensor out = at::empty({input.size(0), input.size(1), rows, columns}, picture.options());
  grid_samples().forward({input.size(0), input.size(1), input.size(2), input.size(3), rows * columns, (Padding)padding,
                          mode == kNearest, corners, picture.const_data_ptr<float>(), places.const_data_ptr<float>(),
                          out.mutable_data_ptr<float>()});
  return out.to(input.scalar_type());
}

}

ES_OPERATORS(grid_sample, ops) { ops.impl("grid_sampler_2d", grid_sampler_2d); }

}
