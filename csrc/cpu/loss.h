// nll_loss: the terms of the targets, and the gradients of their scores (exact/losses.h). The sums of terms and weights are
// reductions.
#pragma once

#include "../exact/losses.h"
#include "isa.h"

namespace es {

// Targets number 0 .. outer * inner - 1, each of which picks a class of scores (outer, classes, inner), contiguous; those
// that are `ignored` pick none.
struct Picks {
  int64_t outer, classes, inner, ignored;
  const int64_t* targets;
  const float* weights;  // of classes; null: all are 1
};

// All use threads inside.
struct Loss {
  // The number of the first target that is no class and not ignored; -1: there is none. `target`: what it is.
  int64_t (*misfit)(const Picks&, int64_t* target);
  // By target; +0 for what is ignored. `weights` may be null.
  void (*terms)(const Picks&, const float* scores, float* terms, float* weights);
  // Of the scores that are picked, which have to be +0 before as all others: `gradient` is one, or (`each`) one for each
  // target; `total`, null: 1, what the sum was divided by.
  void (*gradients)(const Picks&, const float* gradient, bool each, const float* total, float* out);
};

}

ES_NAMESPACE {

// The weight of a target that is not ignored, and where its score lies.
ES_FN float weight_of(const es::Picks& p, int64_t at) { return p.weights ? p.weights[p.targets[at]] : 1.0f; }
ES_FN int64_t score_of(const es::Picks& p, int64_t at) {
  return (at / p.inner * p.classes + p.targets[at]) * p.inner + at % p.inner;
}

// What is done for target `at`, as Loss says.
struct Misfit {
  es::Picks p;
  ES_FN bool operator()(int64_t at) const { return p.targets[at] != p.ignored && !is_class(p.targets[at], p.classes); }
};

struct TermOf {
  es::Picks p;
  const float* scores;
  float *terms, *weights;
  ES_FN void operator()(int64_t at) const {
    const bool picks = p.targets[at] != p.ignored;
    const float weight = picks ? weight_of(p, at) : 0.0f;
    terms[at] = picks ? nll_term(weight, scores[score_of(p, at)]) : 0.0f;
    if (weights) weights[at] = weight;
  }
};

struct GradientOf {
  es::Picks p;
  const float* gradient;
  bool each;
  const float* total;
  float* out;
  ES_FN void operator()(int64_t at) const {
    if (p.targets[at] != p.ignored)
      out[score_of(p, at)] = nll_gradient(weight_of(p, at), gradient[each ? at : 0], total ? *total : 1.0f);
  }
};

}
ES_NAMESPACE_END

ES_TABLE(Loss, loss)
