#include "grid_sample.h"

#include "parallel.h"

ES_NAMESPACE {

static void forward(const GridSample& g) {
  parallel_for(g.batch * g.channels, 1 + 4096 / (1 + g.points), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane)
      for (int64_t point = 0; point < g.points; ++point) g.out[plane * g.points + point] = sample(g, plane, point);
  });
}

static const GridSamples kTable = {forward};

}
ES_NAMESPACE_END

ES_TABLE_IS(GridSamples, grid_samples, kTable)
