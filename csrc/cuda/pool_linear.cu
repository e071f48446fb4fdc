// Upsampling by linear interpolation: a thread has an output, and in the backward pass an input, to which it adds what
// the outputs around it give, in ascending order.
#include "../cpu/pool_linear.h"

#include "../exact/search.h"
#include "each.h"

ES_NAMESPACE {

struct Forward {
  Linear l;
  const float* in;
  float* out;
  ES_FN void operator()(int64_t at) const {
    const int64_t w = at % l.to[2], h = at / l.to[2] % l.to[1], d = at / l.to[2] / l.to[1] % l.to[0];
    const int64_t plane = at / l.to[2] / l.to[1] / l.to[0];
    out[at] = between_corners(l, in + plane * volume(l.from), along(l, 0, d), along(l, 1, h), along(l, 2, w));
  }
};

// The first output whose lower neighbour is `least` or above: it ascends with the outputs.
static ES_FN int64_t first_from(const Linear& l, int dimension, int64_t least) {
  return first_that(l.to[dimension], [&](int64_t o) { return along(l, dimension, o).low >= least; });
}

struct Backward {
  Linear l;
  const float* grad;
  float* grad_in;
  // Those whose lower neighbour is the element before or the element itself may have it as a neighbour.
  ES_FN void operator()(int64_t at) const {
    const int64_t i[3] = {at / l.from[2] / l.from[1] % l.from[0], at / l.from[2] % l.from[1], at % l.from[2]};
    const float* y = grad + at / l.from[2] / l.from[1] / l.from[0] * volume(l.to);
    int64_t first[3], end[3];
    for (int x = 0; x < 3; ++x) first[x] = first_from(l, x, i[x] - 1), end[x] = first_from(l, x, i[x] + 1);
    float sum = 0;
    for (int64_t od = first[0]; od < end[0]; ++od)
      for (int64_t oh = first[1]; oh < end[1]; ++oh)
        for (int64_t ow = first[2]; ow < end[2]; ++ow) {
          const Between d = along(l, 0, od), h = along(l, 1, oh), w = along(l, 2, ow);
          const float gradient = y[(od * l.to[1] + oh) * l.to[2] + ow];
          for (int a = 0; a < (l.dimensions < 3 ? 1 : 2); ++a)
            for (int b = 0; b < (l.dimensions < 2 ? 1 : 2); ++b)
              for (int c = 0; c < 2; ++c) {
                if ((a ? d.high : d.low) != i[0] || (b ? h.high : h.low) != i[1] || (c ? w.high : w.low) != i[2]) continue;
                const float weight = (a ? d.high_weight : d.low_weight) * (b ? h.high_weight : h.low_weight);
                sum = fma(weight * (c ? w.high_weight : w.low_weight), gradient, sum);
              }
        }
    grad_in[at] = sum;
  }
};

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

static void forward(const Linear& l, const float* in, float* out) {
  for_each(l.planes * volume(l.to), Forward{l, in, out});
}

static void backward(const Linear& l, const float* grad, float* grad_in) {
  for_each(l.planes * volume(l.from), Backward{l, grad, grad_in});
}

static const PoolLinear kTable = {forward, backward};

}
ES_NAMESPACE_END

ES_TABLE_IS(PoolLinear, pool_linear, kTable)
#endif
