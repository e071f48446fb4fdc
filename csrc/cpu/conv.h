// Convolutions in the order of exact/conv.h, on volumes of any strides.
#pragma once

#include "../exact/conv.h"
#include "element.h"
#include "isa.h"

namespace es {

// (batch, channel, depth, height, width) of an activation; (out channel, channel in group, ...) of weights. Strides
// count elements and may be 0.
struct Volume {
  void* data;
  Element element;
  int64_t stride[5];
};

// Threads inside. Results overlap nothing. `bias` is added last, rounded by itself; it may be null.
struct Conv {
  void (*forward)(const ConvShape&, const Volume& x, const Volume& w, const float* bias, const Volume& y);
  void (*backward_data)(const ConvShape&, const Volume& dy, const Volume& w, const float* bias, const Volume& dx);
  void (*backward_weight)(const ConvShape&, const Volume& x, const Volume& dy, const Volume& dw);
  void (*backward_bias)(const ConvShape&, const Volume& dy, float* db);
};

}
ES_TABLE(Conv, conv)
