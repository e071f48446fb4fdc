// grid_sample of pictures, forward: what augmentation does. Its gradient is not covered.
#include "../exact/grid_sample.h"

#include <ATen/native/GridSamplerUtils.h>
#include <ATen/ops/empty.h>

#include "../cpu/parallel.h"
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
  int64_t channels = input.size(1), height = input.size(2), width = input.size(3);
  int64_t rows = grid.size(1), columns = grid.size(2), size = rows * columns;
  at::Tensor out = at::empty({input.size(0), channels, rows, columns}, picture.options());
  const float* from = picture.const_data_ptr<float>();
  const float* where = places.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  parallel_for(input.size(0) * channels, 1 + 4096 / (1 + size), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      auto at = [&, base = from + plane * height * width](int32_t row, int32_t column) {
        bool inside = row >= 0 && row < height && column >= 0 && column < width;
        return inside ? base[row * width + column] : 0.0f;
      };
      const float* pair = where + plane / channels * size * 2;
      for (int64_t i = 0; i < size; ++i, pair += 2) {
        float x = source_pixel(pair[0], width, (Padding)padding, corners);
        float y = source_pixel(pair[1], height, (Padding)padding, corners);
        to[plane * size + i] = mode == kBilinear ? bilinear(x, y, at) : at(nearest_pixel(y), nearest_pixel(x));
      }
    }
  });
  return out.to(input.scalar_type());
}

}

ES_OPERATORS(grid_sample, ops) { ops.impl("grid_sampler_2d", grid_sampler_2d); }

}
