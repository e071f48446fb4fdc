// Pictures read where a grid says: a thread has a point of a channel.
#include "../cpu/grid_sample.h"

#include "each.h"

ES_NAMESPACE {

struct SampleOf {
  GridSample g;
  ES_FN void operator()(int64_t at) const { g.out[at] = sample(g, at / g.points, at % g.points); }
};

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

static void forward(const GridSample& g) { for_each(g.batch * g.channels * g.points, SampleOf{g}); }

static const GridSamples kTable = {forward};

}
ES_NAMESPACE_END

ES_TABLE_IS(GridSamples, grid_samples, kTable)
#endif
