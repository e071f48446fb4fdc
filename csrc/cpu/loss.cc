#include "loss.h"

#include "../exact/losses.h"
#include "parallel.h"

ES_NAMESPACE {

constexpr int64_t kGrain = 4096;  // targets

static int64_t misfit(const Picks& p, int64_t* target) {
  for (int64_t at = 0; at < p.outer * p.inner; ++at) {
    if (p.targets[at] == p.ignored || is_class(p.targets[at], p.classes)) continue;
    *target = p.targets[at];
    return at;
  }
  return -1;
}

static void terms(const Picks& p, const float* scores, float* terms, float* weights) {
  parallel_for(p.outer * p.inner, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const bool picks = p.targets[at] != p.ignored;
      const float weight = picks ? weight_of(p, at) : 0.0f;
      terms[at] = picks ? nll_term(weight, scores[score_of(p, at)]) : 0.0f;
      if (weights) weights[at] = weight;
    }
  });
}

static void gradients(const Picks& p, const float* gradient, bool each, const float* total, float* out) {
  parallel_for(p.outer * p.inner, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at)
      if (p.targets[at] != p.ignored)
        out[score_of(p, at)] = nll_gradient(weight_of(p, at), gradient[each ? at : 0], total ? *total : 1.0f);
  });
}

static const Loss kTable = {misfit, terms, gradients};

}
ES_NAMESPACE_END

ES_TABLE_IS(Loss, loss, kTable)
