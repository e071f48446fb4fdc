// nll_loss: a thread has a target.
#include "../cpu/loss.h"

#include "each.h"
#include "first.h"

ES_NAMESPACE {

struct TargetAt {
  const int64_t* targets;
  int64_t at, *out;
  ES_FN void operator()(int64_t) const { *out = targets[at]; }
};

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

static int64_t misfit(const Picks& p, int64_t* target) {
  const int64_t count = p.outer * p.inner, first = first_where(count, Misfit{p});
  if (first == count) return -1;
  Memory found(sizeof(int64_t));
  for_each(1, TargetAt{p.targets, first, found.as<int64_t>()});
  fetch(target, found.as<int64_t>(), sizeof(int64_t));
  return first;
}

static void terms(const Picks& p, const float* scores, float* terms, float* weights) {
  for_each(p.outer * p.inner, TermOf{p, scores, terms, weights});
}

static void gradients(const Picks& p, const float* gradient, bool each, const float* total, float* out) {
  for_each(p.outer * p.inner, GradientOf{p, gradient, each, total, out});
}

static const Loss kTable = {misfit, terms, gradients};

}
ES_NAMESPACE_END

ES_TABLE_IS(Loss, loss, kTable)
#endif
