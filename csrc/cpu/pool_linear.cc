#include "pool_linear.h"

#include "parallel.h"

ES_NAMESPACE {

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

static void forward(const Linear& l, const float* in, float* out) {
  int64_t size = volume(l.from), results = volume(l.to);
  parallel_for(l.planes, 16384 / (results + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane)
      visit_outputs(l, [&](int64_t position, Between d, Between h, Between w) {
        out[plane * results + position] = between_corners(l, in + plane * size, d, h, w);
      });
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
