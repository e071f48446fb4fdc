#include "loss.h"

#include "parallel.h"

ES_NAMESPACE {

constexpr int64_t kGrain = 4096;  // targets

static int64_t misfit(const Picks& p, int64_t* target) {
  const Misfit misfit{p};
  for (int64_t at = 0; at < p.outer * p.inner; ++at) {
    if (!misfit(at)) continue;
    *target = p.targets[at];
    return at;
  }
  return -1;
}

template <class Each>
static void for_targets(const Picks& p, const Each& each) {
  parallel_for(p.outer * p.inner, kGrain, [&](int64_t begin, int64_t end) {
    const Each here = each;  // so that what it has stays in registers
    for (int64_t at = begin; at < end; ++at) here(at);
  });
}

static void terms(const Picks& p, const float* scores, float* terms, float* weights) {
  for_targets(p, TermOf{p, scores, terms, weights});
}

static void gradients(const Picks& p, const float* gradient, bool each, const float* total, float* out) {
  for_targets(p, GradientOf{p, gradient, each, total, out});
}

static const Loss kTable = {misfit, terms, gradients};

}
ES_NAMESPACE_END

ES_TABLE_IS(Loss, loss, kTable)
