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

// f(constant), of which `value` is `how` where the compiler has to know it.
template <Combine how>
struct Constant {
  static constexpr Combine value = how;
};
template <class F>
ES_FN void with_constant(Combine how, F f) {
  switch (how) {
    case Combine::add:
      return f(Constant<Combine::add>());
    case Combine::multiply:
      return f(Constant<Combine::multiply>());
    case Combine::maximum:
      return f(Constant<Combine::maximum>());
    case Combine::minimum:
      return f(Constant<Combine::minimum>());
  }
}

// Of values with a factor each.
ES_FN float add_scaled(float held, float scale, float x) { return fma(scale, x, held); }

}
ES_NAMESPACE_END
