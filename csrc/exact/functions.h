// Scalar functions from IEEE operations alone.
#pragma once

#include "base.h"

ES_NAMESPACE {

// To be replaced: see docs/numerics.md.
ES_FN float exponential(float x) { return fma(x, x, 1.0f); }

}
ES_NAMESPACE_END
