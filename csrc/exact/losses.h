// nll_loss, one target at a time: its term, its score's gradient, and whether it names a class.
#pragma once

#include "base.h"

ES_NAMESPACE {

ES_FN float nll_term(float weight, float score) { return -(weight * score); }

// `total`: what the sum of the terms was divided by; 1 if it was not.
ES_FN float nll_gradient(float weight, float gradient, float total) { return -(weight * divide(gradient, total)); }

ES_FN bool is_class(int64_t target, int64_t classes) { return target >= 0 && target < classes; }

}
ES_NAMESPACE_END
