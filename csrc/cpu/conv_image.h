// Activations as the packers want them: floats, with their padding, so that every tap of every output is one addition
// away. Made once per call, or not at all where the tensor itself is like that.
#pragma once

#include "../exact/half.h"
#include "conv.h"
#include "conv_scratch.h"
#include "parallel.h"

ES_NAMESPACE {

ES_FN int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One dimension of an image. Position i of slot j holds the source's element i * stride + j * dilation - low, or +0: a
// slot for each remainder that a tap may have modulo the stride, so that neighbouring outputs read neighbours.
struct Window {
  int64_t source, low, stride, dilation, slots, length;

  bool is_plain() const { return low == 0 && stride == 1 && slots == 1 && length <= source; }
  int64_t size() const { return slots * length; }
  // The position that tap t of output 0 reads; the output o reads o further on.
  int64_t tap(int64_t t) const { return t % slots_apart() * length + t * dilation / stride; }
  int64_t slots_apart() const {
    int64_t apart = 1;
    while (apart * dilation % stride != 0) ++apart;
    return apart;
  }
};

// What the taps of a forward convolution read.
ES_FN Window forward_window(const ConvShape& s, int d) {
  Window w{s.in[d], s.padding[d], s.stride[d], s.dilation[d], 1, 0};
  w.slots = w.slots_apart() < s.kernel[d] ? w.slots_apart() : s.kernel[d];
  w.length = s.out[d] + (s.kernel[d] - 1) * w.dilation / w.stride;
  return w;
}

template <class T>
static void copy_run(const T* from, int64_t step, float* to, int64_t count) {
  if (step == 1)
    for (int64_t i = 0; i < count; ++i) to[i] = widen(from[i]);
  else if (step == 2)
    for (int64_t i = 0; i < count; ++i) to[i] = widen(from[2 * i]);
  else
    for (int64_t i = 0; i < count; ++i) to[i] = widen(from[step * i]);
}

// `count` elements of a volume from its element number `at` on, `step` apart.
static void read_run(const Volume& v, int64_t at, int64_t step, float* to, int64_t count) {
  switch (v.element) {
    case Element::bf16:
      return copy_run((const bf16*)v.data + at, step, to, count);
    case Element::fp16:
      return copy_run((const fp16*)v.data + at, step, to, count);
    default:
      return copy_run((const float*)v.data + at, step, to, count);
  }
}

ES_FN void clear(float* to, int64_t count) { memset(to, 0, sizeof(float) * (size_t)count); }

// The image of one channel of one sample, which begins at element `at`: row-major, [depth][height][width].
static void fill_plane(const Volume& v, int64_t at, const Window* w, float* to) {
  const int64_t row = w[2].size();
  for (int64_t d = 0; d < w[0].size(); ++d) {
    const int64_t from_d = d % w[0].length * w[0].stride + d / w[0].length * w[0].dilation % w[0].stride - w[0].low;
    const bool inside_d = from_d >= 0 && from_d < w[0].source;
    for (int64_t h = 0; h < w[1].size(); ++h, to += row) {
      const int64_t from_h = h % w[1].length * w[1].stride + h / w[1].length * w[1].dilation % w[1].stride - w[1].low;
      if (!inside_d || from_h < 0 || from_h >= w[1].source) {
        clear(to, row);
        continue;
      }
      const int64_t line = at + from_d * v.stride[2] + from_h * v.stride[3];
      for (int64_t slot = 0; slot < w[2].slots; ++slot) {
        float* part = to + slot * w[2].length;
        const int64_t shift = w[2].low - slot * w[2].dilation % w[2].stride;  // element i is the source's i * stride - shift
        int64_t first = shift > 0 ? divide_up(shift, w[2].stride) : 0;
        int64_t last = w[2].source + shift > 0 ? divide_up(w[2].source + shift, w[2].stride) : 0;
        if (last > w[2].length) last = w[2].length;
        if (first >= last) {
          clear(part, w[2].length);
          continue;
        }
        clear(part, first);
        read_run(v, line + (first * w[2].stride - shift) * v.stride[4], w[2].stride * v.stride[4], part + first, last - first);
        clear(part + last, w[2].length - last);
      }
    }
  }
}

// All channels of all samples: an element is at data[n * batch + c * channel + d * step[0] + h * step[1] + w].
class Image {
 public:
  Image(const Volume& v, const Window* w, int64_t batch, int64_t channels)
      : own_(!(v.element == Element::f32 && v.stride[4] == 1 && w[0].is_plain() && w[1].is_plain() && w[2].is_plain())),
        hold_(own_ ? batch * channels * w[0].size() * w[1].size() * w[2].size() : 0) {
    if (!own_) {
      data = (const float*)v.data, this->batch = v.stride[0], channel = v.stride[1];
      for (int d = 0; d < 3; ++d) step[d] = v.stride[2 + d];
      return;
    }
    step[2] = 1, step[1] = w[2].size(), step[0] = step[1] * w[1].size();
    channel = step[0] * w[0].size(), this->batch = channels * channel;
    data = hold_.data();
    parallel_for(batch * channels, divide_up(1 << 14, channel + 1), [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at)
        fill_plane(v, at / channels * v.stride[0] + at % channels * v.stride[1], w, hold_.data() + at * channel);
    });
  }

  const float* data;
  int64_t batch, channel, step[3];
  // Whether vectors may be read beyond the end.
  bool has_slack() const { return own_; }

 private:
  bool own_;
  Scratch hold_;
};

}
ES_NAMESPACE_END
