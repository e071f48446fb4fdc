// Linear interpolation between the elements of one dimension, and its backward.
#pragma once

#include "base.h"

ES_NAMESPACE {

// The two neighbours of an output position, and their weights.
struct Between {
  int64_t low, high;
  float low_weight, high_weight;
};

ES_FN Between between(int64_t output, int64_t length, float scale, bool align_corners) {
  float at = align_corners ? scale * (float)output : scale * ((float)output + 0.5f) - 0.5f;
  at = at < 0 ? 0.0f : at;
  int64_t low = (int64_t)at;
  low = low < length - 1 ? low : length - 1;
  float weight = at - (float)low;
  weight = weight < 1 ? weight : 1.0f;
  return {low, low + (low < length - 1 ? 1 : 0), 1.0f - weight, weight};
}

ES_FN float interpolate(Between b, float low, float high) { return fma(b.high_weight, high, b.low_weight * low); }

}
ES_NAMESPACE_END
