#include "conv.h"

#include "../exact/half.h"
#include "parallel.h"

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

static void write(const Volume& v, int64_t n, int64_t c, const int64_t* i, float x) {
  int64_t at = n * v.stride[0] + c * v.stride[1] + i[0] * v.stride[2] + i[1] * v.stride[3] + i[2] * v.stride[4];
  switch (v.element) {
    case Element::bf16:
      ((bf16*)v.data)[at] = narrow<bf16>(x);
      break;
    case Element::fp16:
      ((fp16*)v.data)[at] = narrow<fp16>(x);
      break;
    default:
      ((float*)v.data)[at] = x;
  }
}

template <class F>
static void each(int64_t first, int64_t second, const int64_t* size, F f) {
  int64_t area = size[1] * size[2], volume = size[0] * area;
  parallel_for(first * second * volume, 16, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      int64_t i[3] = {at % volume / area, at % area / size[2], at % size[2]};
      f(at / volume / second, at / volume % second, i);
    }
  });
}

static void forward(const ConvShape& s, const Volume& x, const Volume& w, const float* bias, const Volume& y) {
  auto rx = [&](int64_t n, int64_t c, const int64_t* i) { return read(x, n, c, i); };
  auto rw = [&](int64_t n, int64_t c, const int64_t* i) { return read(w, n, c, i); };
  each(s.batch, s.groups * s.out_channels, s.out, [&](int64_t n, int64_t c, const int64_t* o) {
    float sum = conv_forward(s, n, c, o, rx, rw);
    write(y, n, c, o, bias ? sum + bias[c] : sum);
  });
}

static void backward_data(const ConvShape& s, const Volume& dy, const Volume& w, const float* bias, const Volume& dx) {
  auto ry = [&](int64_t n, int64_t c, const int64_t* i) { return read(dy, n, c, i); };
  auto rw = [&](int64_t n, int64_t c, const int64_t* i) { return read(w, n, c, i); };
  each(s.batch, s.groups * s.in_channels, s.in, [&](int64_t n, int64_t c, const int64_t* i) {
    float sum = conv_backward_data(s, n, c, i, ry, rw);
    write(dx, n, c, i, bias ? sum + bias[c] : sum);
  });
}

static void backward_weight(const ConvShape& s, const Volume& x, const Volume& dy, const Volume& dw) {
  auto rx = [&](int64_t n, int64_t c, const int64_t* i) { return read(x, n, c, i); };
  auto ry = [&](int64_t n, int64_t c, const int64_t* i) { return read(dy, n, c, i); };
  each(s.groups * s.out_channels, s.in_channels, s.kernel, [&](int64_t c, int64_t in_channel, const int64_t* t) {
    write(dw, c, in_channel, t, conv_backward_weight(s, c, in_channel, t, rx, ry));
  });
}

static void backward_bias(const ConvShape& s, const Volume& dy, float* db) {
  auto ry = [&](int64_t n, int64_t c, const int64_t* i) { return read(dy, n, c, i); };
  parallel_for(s.groups * s.out_channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) db[c] = conv_backward_bias(s, c, ry);
  });
}

static const Conv kTable = {forward, backward_data, backward_weight, backward_bias};

}
ES_NAMESPACE_END

ES_TABLE_IS(Conv, conv, kTable)
