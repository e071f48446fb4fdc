// Convolutions of one to three dimensions: which products each element of a result is the sum of, and in which order.
// Fewer dimensions are three with leading ones of length 1. A transposed convolution is `conv_backward_data` as
// forward. These are the definition, one element at a time; kernels may group the work in any way that gives the same
// bits.
#pragma once

#include "order.h"

ES_NAMESPACE {

struct ConvShape {
  int64_t batch, groups;
  int64_t in_channels, out_channels;  // of one group
  int64_t in[3], out[3];              // depth, height, width
  int64_t kernel[3], stride[3], padding[3], dilation[3];
};

// The taps of a kernel that meet one position of the input, in one dimension: those t for which position + padding -
// t * dilation is a multiple of the stride. first, first + step, ...: `count` of them, functions of (position +
// padding) modulo the stride. The output that t belongs to may lie outside: then it takes part as +0.
struct Taps {
  int64_t first, step, count;
};

ES_FN Taps taps_of(int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, int64_t position) {
  int64_t step = 1;
  while (step * dilation % stride != 0) ++step;
  for (int64_t first = 0; first < step && first < kernel; ++first)
    if ((position + padding - first * dilation) % stride == 0)
      return Taps{first, step, (kernel - first + step - 1) / step};
  return Taps{0, step, 0};
}

// y(n, c, o), without bias: k counts (channel in group, depth, height, width of the kernel). x(n, channel, i) and
// w(out channel, channel in group, t) return floats; padding takes part as +0.
template <class X, class W>
ES_FN float conv_forward(const ConvShape& s, int64_t n, int64_t c, const int64_t* o, X x, W w) {
  int64_t area = s.kernel[1] * s.kernel[2], volume = s.kernel[0] * area;
  return contract(
      s.in_channels * volume,
      [&](int64_t k) {
        int64_t t[3] = {k % volume / area, k % area / s.kernel[2], k % s.kernel[2]};
        return w(c, k / volume, t);
      },
      [&](int64_t k) {
        int64_t t[3] = {k % volume / area, k % area / s.kernel[2], k % s.kernel[2]}, i[3];
        for (int d = 0; d < 3; ++d) {
          i[d] = o[d] * s.stride[d] - s.padding[d] + t[d] * s.dilation[d];
          if (i[d] < 0 || i[d] >= s.in[d]) return 0.0f;
        }
        return x(n, c / s.out_channels * s.in_channels + k / volume, i);
      });
}

// dx(n, c, i): k counts (out channel in group, taps of the depth, height, width that meet i).
template <class Y, class W>
ES_FN float conv_backward_data(const ConvShape& s, int64_t n, int64_t c, const int64_t* i, Y dy, W w) {
  Taps taps[3];
  for (int d = 0; d < 3; ++d) taps[d] = taps_of(s.kernel[d], s.stride[d], s.padding[d], s.dilation[d], i[d]);
  int64_t area = taps[1].count * taps[2].count, volume = taps[0].count * area;
  int64_t group = c / s.in_channels;
  auto tap = [&](int64_t k, int64_t* t) {
    t[0] = taps[0].first + taps[0].step * (k % volume / area);
    t[1] = taps[1].first + taps[1].step * (k % area / taps[2].count);
    t[2] = taps[2].first + taps[2].step * (k % taps[2].count);
  };
  return contract(
      s.out_channels * volume,
      [&](int64_t k) {
        int64_t t[3];
        tap(k, t);
        return w(group * s.out_channels + k / volume, c % s.in_channels, t);
      },
      [&](int64_t k) {
        int64_t t[3], o[3];
        tap(k, t);
        for (int d = 0; d < 3; ++d) {
          int64_t distance = i[d] + s.padding[d] - t[d] * s.dilation[d];
          o[d] = distance / s.stride[d];
          if (distance < 0 || o[d] >= s.out[d]) return 0.0f;
        }
        return dy(n, group * s.out_channels + k / volume, o);
      });
}

// dw(out channel c, channel in group, t): k counts (batch, depth, height, width of the output).
template <class X, class Y>
ES_FN float conv_backward_weight(const ConvShape& s, int64_t c, int64_t in_channel, const int64_t* t, X x, Y dy) {
  int64_t area = s.out[1] * s.out[2], volume = s.out[0] * area;
  return contract(
      s.batch * volume,
      [&](int64_t k) {
        int64_t o[3] = {k % volume / area, k % area / s.out[2], k % s.out[2]};
        return dy(k / volume, c, o);
      },
      [&](int64_t k) {
        int64_t o[3] = {k % volume / area, k % area / s.out[2], k % s.out[2]}, i[3];
        for (int d = 0; d < 3; ++d) {
          i[d] = o[d] * s.stride[d] - s.padding[d] + t[d] * s.dilation[d];
          if (i[d] < 0 || i[d] >= s.in[d]) return 0.0f;
        }
        return x(k / volume, c / s.out_channels * s.in_channels + in_channel, i);
      });
}

// The gradient of the bias of channel c: a reduction over (batch, depth, height, width of the output).
template <class Y>
ES_FN float conv_backward_bias(const ConvShape& s, int64_t c, Y dy) {
  int64_t area = s.out[1] * s.out[2], volume = s.out[0] * area;
  return reduce<float>(s.batch * volume, [&](float sum, int64_t k) {
    int64_t o[3] = {k % volume / area, k % area / s.out[2], k % s.out[2]};
    return sum + dy(k / volume, c, o);
  });
}

}
ES_NAMESPACE_END
