// How values that go to the same place are put together: a chain in ascending position of the values, which begins with
// what the place holds. Lookups whose results are summed (bags of embeddings) and backward passes of lookups too.
#pragma once

#include "base.h"

ES_NAMESPACE {

enum class Combine { add, multiply, maximum, minimum };

ES_FN float combine(Combine how, float held, float x) {
  switch (how) {
    case Combine::add:
      return held + x;
    case Combine::multiply:
      return held * x;
    case Combine::maximum:
      return maximum(held, x);
    default:
      return minimum(held, x);
  }
}

// Of values with a factor each.
ES_FN float add_scaled(float held, float scale, float x) { return fma(scale, x, held); }

}
ES_NAMESPACE_END
