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

// Number k of a row-major array as (leading index, depth, height, width).
struct Place {
  int64_t lead, at[3];
};
ES_FN Place place_of(int64_t k, int64_t depth, int64_t height, int64_t width) {
  int64_t area = height * width, volume = depth * area;
  return {k / volume, {k % volume / area, k % area / width, k % width}};
}
ES_FN Place place_of(int64_t k, const int64_t* size) { return place_of(k, size[0], size[1], size[2]); }

ES_FN int64_t volume_of(const int64_t* size) { return size[0] * size[1] * size[2]; }

// Where tap t of output o lies in the input; false: in the padding.
ES_FN bool find_input(const ConvShape& s, const int64_t* o, const int64_t* t, int64_t* i) {
  for (int d = 0; d < 3; ++d) {
    i[d] = o[d] * s.stride[d] - s.padding[d] + t[d] * s.dilation[d];
    if (i[d] < 0 || i[d] >= s.in[d]) return false;
  }
  return true;
}

// Where tap t of position i lies in the output, for one of `taps_of`; false: outside.
ES_FN bool find_output(const ConvShape& s, const int64_t* i, const int64_t* t, int64_t* o) {
  for (int d = 0; d < 3; ++d) {
    const int64_t distance = i[d] + s.padding[d] - t[d] * s.dilation[d];
    o[d] = distance / s.stride[d];
    if (distance < 0 || o[d] >= s.out[d]) return false;
  }
  return true;
}

// Number k of (leading index, taps of the depth, height, width).
ES_FN Place tap_of(const Taps* taps, int64_t k) {
  Place tap = place_of(k, taps[0].count, taps[1].count, taps[2].count);
  for (int d = 0; d < 3; ++d) tap.at[d] = taps[d].first + taps[d].step * tap.at[d];
  return tap;
}

// y(n, c, o), without bias: k counts (channel in group, depth, height, width of the kernel). x(n, channel, i) and
// w(out channel, channel in group, t) return floats; padding takes part as +0.
template <class X, class W>
ES_FN float conv_forward(const ConvShape& s, int64_t n, int64_t c, const int64_t* o, X x, W w) {
  return contract(
      s.in_channels * volume_of(s.kernel),
      [&](int64_t k) {
        Place tap = place_of(k, s.kernel);
        return w(c, tap.lead, tap.at);
      },
      [&](int64_t k) {
        Place tap = place_of(k, s.kernel);
        int64_t i[3];
        if (!find_input(s, o, tap.at, i)) return 0.0f;
        return x(n, c / s.out_channels * s.in_channels + tap.lead, i);
      });
}

// dx(n, c, i): k counts (out channel in group, taps of the depth, height, width that meet i).
template <class Y, class W>
ES_FN float conv_backward_data(const ConvShape& s, int64_t n, int64_t c, const int64_t* i, Y dy, W w) {
  Taps taps[3];
  for (int d = 0; d < 3; ++d) taps[d] = taps_of(s.kernel[d], s.stride[d], s.padding[d], s.dilation[d], i[d]);
  int64_t group = c / s.in_channels;
  return contract(
      s.out_channels * taps[0].count * taps[1].count * taps[2].count,
      [&](int64_t k) {
        Place tap = tap_of(taps, k);
        return w(group * s.out_channels + tap.lead, c % s.in_channels, tap.at);
      },
      [&](int64_t k) {
        Place tap = tap_of(taps, k);
        int64_t o[3];
        if (!find_output(s, i, tap.at, o)) return 0.0f;
        return dy(n, group * s.out_channels + tap.lead, o);
      });
}

// dw(out channel c, channel in group, t): k counts (batch, depth, height, width of the output).
template <class X, class Y>
ES_FN float conv_backward_weight(const ConvShape& s, int64_t c, int64_t in_channel, const int64_t* t, X x, Y dy) {
  return contract(
      s.batch * volume_of(s.out),
      [&](int64_t k) {
        Place out = place_of(k, s.out);
        return dy(out.lead, c, out.at);
      },
      [&](int64_t k) {
        Place out = place_of(k, s.out);
        int64_t i[3];
        if (!find_input(s, out.at, t, i)) return 0.0f;
        return x(out.lead, c / s.out_channels * s.in_channels + in_channel, i);
      });
}

// The gradient of the bias of channel c: a reduction over (batch, depth, height, width of the output).
template <class Y>
ES_FN float conv_backward_bias(const ConvShape& s, int64_t c, Y dy) {
  return reduce<float>(s.batch * volume_of(s.out), [&](float sum, int64_t k) {
    Place out = place_of(k, s.out);
    return sum + dy(out.lead, c, out.at);
  });
}

}
ES_NAMESPACE_END
