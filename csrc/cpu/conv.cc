// Which part does what.
#include "conv_parts.h"

ES_NAMESPACE {

static void forward(const ConvShape& s, const Volume& x, const Volume& w, const float* bias, const Volume& y) {
  (is_depthwise(s) ? depthwise_forward : gather_forward)(s, x, w, bias, y);
}
static void backward_data(const ConvShape& s, const Volume& dy, const Volume& w, const float* bias, const Volume& dx) {
  (is_depthwise(s) ? depthwise_backward : gather_backward)(s, dy, w, bias, dx);
}
static void backward_weight(const ConvShape& s, const Volume& x, const Volume& dy, const Volume& dw) {
  (is_depthwise(s) ? depthwise_weight : weight_gradient)(s, x, dy, dw);
}

static const Conv kTable = {forward, backward_data, backward_weight, bias_gradient};

}
ES_NAMESPACE_END

ES_TABLE_IS(Conv, conv, kTable)
