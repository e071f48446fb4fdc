// nll_loss: the terms of the targets, and the gradients of their scores (exact/losses.h). The sums of terms and weights are
// reductions.
#pragma once

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

}
ES_NAMESPACE_END

ES_TABLE(Loss, loss)
