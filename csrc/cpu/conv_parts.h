// What the kernels of one instruction set share: each part is a file of its own.
#pragma once

#include "conv.h"
#include "conv_image.h"

ES_NAMESPACE {

// One sum for each output, over `inner` channels times taps: what forward and backward-data come down to.
void gather_forward(const ConvShape&, const Volume& x, const Volume& w, const float* bias, const Volume& y);
void gather_backward(const ConvShape&, const Volume& dy, const Volume& w, const float* bias, const Volume& dx);
void weight_gradient(const ConvShape&, const Volume& x, const Volume& dy, const Volume& dw);
void bias_gradient(const ConvShape&, const Volume& dy, float* db);

// One channel in, one out, few taps.
bool is_depthwise(const ConvShape&);
void depthwise_forward(const ConvShape&, const Volume& x, const Volume& w, const float* bias, const Volume& y);
void depthwise_backward(const ConvShape&, const Volume& dy, const Volume& w, const float* bias, const Volume& dx);
void depthwise_weight(const ConvShape&, const Volume& x, const Volume& dy, const Volume& dw);

}
ES_NAMESPACE_END
