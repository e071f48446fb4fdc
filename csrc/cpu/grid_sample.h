// Pictures read where a grid says, see exact/grid_sample.h.
#pragma once

#include "../exact/grid_sample.h"
#include "isa.h"

namespace es {

// picture (batch, channels, height, width), grid (batch, points, 2), out (batch, channels, points), contiguous.
struct GridSample {
  int64_t batch, channels, height, width, points;
  Padding padding;
  bool nearest, corners;
  const float *picture, *grid;
  float* out;
};

struct GridSamples {
  void (*forward)(const GridSample&);  // uses threads inside
};

}

ES_NAMESPACE {

// `plane` counts the channels of all pictures.
ES_FN float sample(const es::GridSample& g, int64_t plane, int64_t point) {
  const float *base = g.picture + plane * g.height * g.width, *pair = g.grid + (plane / g.channels * g.points + point) * 2;
  auto at = [&](int32_t row, int32_t column) {
    bool inside = row >= 0 && row < g.height && column >= 0 && column < g.width;
    return inside ? base[row * g.width + column] : 0.0f;
  };
  float x = source_pixel(pair[0], g.width, g.padding, g.corners);
  float y = source_pixel(pair[1], g.height, g.padding, g.corners);
  return g.nearest ? at(nearest_pixel(y), nearest_pixel(x)) : bilinear(x, y, at);
}

}
ES_NAMESPACE_END

ES_TABLE(GridSamples, grid_samples)
