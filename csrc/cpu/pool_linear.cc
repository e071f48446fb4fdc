#include "pool_linear.h"

#include "../exact/pool_linear.h"
#include "parallel.h"

ES_NAMESPACE {

static Between along(const Linear& l, int dimension, int64_t output) {
  if (dimension < 3 - l.dimensions) return {0, 0, 1, 0};
  return between(output, l.from[dimension], l.scale[dimension], l.align_corners);
}

// visit(plane's output position, neighbours in depth, height and width), in row-major order.
template <class Visit>
static void visit_outputs(const Linear& l, Visit visit) {
  int64_t position = 0;
  for (int64_t d = 0; d < l.to[0]; ++d) {
    Between depth = along(l, 0, d);
    for (int64_t h = 0; h < l.to[1]; ++h) {
      Between height = along(l, 1, h);
      for (int64_t w = 0; w < l.to[2]; ++w) visit(position++, depth, height, along(l, 2, w));
    }
  }
}

static int64_t volume(const int64_t* size) { return size[0] * size[1] * size[2]; }

static void forward(const Linear& l, const float* in, float* out) {
  int64_t size = volume(l.from), results = volume(l.to), rows = l.from[1], columns = l.from[2];
  parallel_for(l.planes, 16384 / (results + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const float* x = in + plane * size;
      float* y = out + plane * results;
      visit_outputs(l, [&](int64_t position, Between d, Between h, Between w) {
        auto line = [&](int64_t i, int64_t j) {
          const float* row = x + (i * rows + j) * columns;
          return interpolate(w, row[w.low], row[w.high]);
        };
        auto sheet = [&](int64_t i) {
          return l.dimensions < 2 ? line(i, 0) : interpolate(h, line(i, h.low), line(i, h.high));
        };
        y[position] = l.dimensions < 3 ? sheet(0) : interpolate(d, sheet(d.low), sheet(d.high));
      });
    }
  });
}

static void backward(const Linear& l, const float* grad, float* grad_in) {
  int64_t size = volume(l.from), results = volume(l.to), rows = l.from[1], columns = l.from[2];
  parallel_for(l.planes, 16384 / (results + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      float* x = grad_in + plane * size;
      const float* y = grad + plane * results;
      for (int64_t i = 0; i < size; ++i) x[i] = 0;
      visit_outputs(l, [&](int64_t position, Between d, Between h, Between w) {
        for (int a = 0; a < (l.dimensions < 3 ? 1 : 2); ++a)
          for (int b = 0; b < (l.dimensions < 2 ? 1 : 2); ++b)
            for (int c = 0; c < 2; ++c) {
              float weight = (a ? d.high_weight : d.low_weight) * (b ? h.high_weight : h.low_weight);
              weight = weight * (c ? w.high_weight : w.low_weight);
              int64_t row = (a ? d.high : d.low) * rows + (b ? h.high : h.low);
              float* place = x + row * columns + (c ? w.high : w.low);
              *place = fma(weight, y[position], *place);
            }
      });
    }
  });
}

static const PoolLinear kTable = {forward, backward};

}
ES_NAMESPACE_END

ES_TABLE_IS(PoolLinear, pool_linear, kTable)
