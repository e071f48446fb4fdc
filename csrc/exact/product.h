// What a matrix product does with an element beside `contract`.
#pragma once

#include "base.h"

ES_NAMESPACE {

// beta * c + alpha * sum, where `sum` is that of `contract`. With a beta of 0, c is not looked at, NaN included.
ES_FN float scale_and_add(float sum, float alpha, float beta, float c) {
  float scaled = alpha * sum;
  return beta == 0 ? scaled : fma(beta, c, scaled);
}

}
ES_NAMESPACE_END
