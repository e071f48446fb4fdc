#include "conv_parts.h"

ES_NAMESPACE {

static float read(const Volume& v, int64_t n, int64_t c, const int64_t* i) {
  int64_t at = n * v.stride[0] + c * v.stride[1] + i[0] * v.stride[2] + i[1] * v.stride[3] + i[2] * v.stride[4];
  switch (v.element) {
    case Element::bf16:
      return widen(((const bf16*)v.data)[at]);
    case Element::fp16:
      return widen(((const fp16*)v.data)[at]);
    default:
      return ((const float*)v.data)[at];
  }
}

static void backward_bias(const ConvShape& s, const Volume& dy, float* db) {
  auto ry = [&](int64_t n, int64_t c, const int64_t* i) { return read(dy, n, c, i); };
  parallel_for(s.groups * s.out_channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) db[c] = conv_backward_bias(s, c, ry);
  });
}

static void forward(const ConvShape& s, const Volume& x, const Volume& w, const float* bias, const Volume& y) {
  (is_depthwise(s) ? depthwise_forward : gather_forward)(s, x, w, bias, y);
}
static void backward_data(const ConvShape& s, const Volume& dy, const Volume& w, const float* bias, const Volume& dx) {
  (is_depthwise(s) ? depthwise_backward : gather_backward)(s, dy, w, bias, dx);
}
static void backward_weight(const ConvShape& s, const Volume& x, const Volume& dy, const Volume& dw) {
  (is_depthwise(s) ? depthwise_weight : weight_gradient)(s, x, dy, dw);
}

static const Conv kTable = {forward, backward_data, backward_weight, backward_bias};

}
ES_NAMESPACE_END

ES_TABLE_IS(Conv, conv, kTable)
