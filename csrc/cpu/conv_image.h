// Activations as the packers want them: floats, with their padding, so that every tap of every output is one addition
// away. Made once per call, or not at all where the tensor itself is like that.
#pragma once

#include "../exact/half.h"
#include "conv.h"
#include "parallel.h"
#include "scratch.h"
#include "simd.h"

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

ES_FN Taps taps_at(const ConvShape& s, int d, int64_t position) {
  return taps_of(s.kernel[d], s.stride[d], s.padding[d], s.dilation[d], position);
}

// Position r + stride * j of the input meets tap t, one of its own, at the output j + this.
ES_FN int64_t backward_shift(const ConvShape& s, int d, int64_t r, int64_t t) {
  return (r + s.padding[d] - t * s.dilation[d]) / s.stride[d];
}

// What the taps of backward-data read: outputs, with room for those that do not exist.
ES_FN Window backward_window(const ConvShape& s, int d) {
  int64_t low = 0, high = 0;
  for (int64_t r = 0; r < s.stride[d] && r < s.in[d]; ++r) {
    const Taps taps = taps_at(s, d, r);
    for (int64_t t = taps.first, i = 0; i < taps.count; ++i, t += taps.step) {
      const int64_t shift = backward_shift(s, d, r, t), end = divide_up(s.in[d] - r, s.stride[d]) + shift;
      if (-shift > low) low = -shift;
      if (end > high) high = end;
    }
  }
  return {s.out[d], low, 1, 1, 1, low + high};
}

#if defined(__AVX512F__)
#define ES_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#elif defined(__AVX2__)
#define ES_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#else
#define ES_EVEN 0, 2, 4, 6
#endif

// Every second one of 2 * count - 1 floats. Writes whole vectors.
static void copy_even(const float* from, float* to, int64_t count) {
  for (; count >= kWidth; count -= kWidth, from += 2 * kWidth, to += kWidth)
    store(to, __builtin_shufflevector(load(from), load_some(from + kWidth, kWidth - 1), ES_EVEN));
  if (count <= 0) return;
  const int64_t there = 2 * count - 1;
  const vfloat low = load_some(from, there < kWidth ? there : kWidth);
  const vfloat high = there > kWidth ? load_some(from + kWidth, there - kWidth) : vfloat{};
  store(to, __builtin_shufflevector(low, high, ES_EVEN));
}
#undef ES_EVEN

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

// Copies single channels of single samples: row-major, [depth][height][width]. What is the same for all of them is
// found out once.
class Planes {
 public:
  Planes(const Volume& v, const Window* w)
      : v_(v), width_(w[2]), rows_(w[0].size() * w[1].size()), hold_(2 * (rows_ + 2 * width_.slots)) {
    line_ = hold_.as<int64_t>(), first_ = line_ + rows_, last_ = first_ + width_.slots;
    for (int64_t d = 0; d < w[0].size(); ++d)
      for (int64_t h = 0; h < w[1].size(); ++h) {
        const int64_t from_d = from(w[0], d), from_h = from(w[1], h);
        line_[d * w[1].size() + h] = from_d < 0 || from_h < 0 ? -1 : from_d * v.stride[2] + from_h * v.stride[3];
      }
    for (int64_t slot = 0; slot < width_.slots; ++slot) {
      const int64_t low = shift(slot), high = width_.source + low;  // element i is the source's i * stride - low
      first_[slot] = low > 0 ? divide_up(low, width_.stride) : 0;
      last_[slot] = high > 0 ? divide_up(high, width_.stride) : 0;
      if (last_[slot] > width_.length) last_[slot] = width_.length;
      if (first_[slot] > last_[slot]) first_[slot] = last_[slot];
    }
  }

  int64_t size() const { return rows_ * width_.size(); }

  // The one that begins at element `at`; writes up to 64 floats too many.
  void copy(int64_t at, float* to) const {
    const bool near = v_.element == Element::f32 && v_.stride[4] == 1;
    const int64_t length = width_.length;
    if (near && width_.stride == 1 && length <= kWidth) return copy_narrow((const float*)v_.data + at, to);
    for (int64_t row = 0; row < rows_; ++row) {
      if (line_[row] < 0) {
        fill(to, width_.size());
        to += width_.size();
        continue;
      }
      for (int64_t slot = 0; slot < width_.slots; ++slot, to += length) {
        const int64_t first = first_[slot], count = last_[slot] - first;
        const int64_t place = at + line_[row] + (first * width_.stride - shift(slot)) * v_.stride[4];
        fill(to, first);
        if (near && width_.stride == 1)
          move((const float*)v_.data + place, to + first, count);
        else if (near && width_.stride == 2)
          copy_even((const float*)v_.data + place, to + first, count);
        else
          read_run(v_, place, width_.stride * v_.stride[4], to + first, count);
        fill(to + first + count, length - first - count);
      }
    }
  }

 private:
  int64_t shift(int64_t slot) const { return width_.low - slot * width_.dilation % width_.stride; }
  static int64_t from(const Window& w, int64_t i) {
    const int64_t at = i % w.length * w.stride + i / w.length * w.dilation % w.stride - w.low;
    return at < w.source ? at : -1;
  }
  // Lines of less than a vector: the zeros after one are those before the next.
  void copy_narrow(const float* from, float* to) const {
    const int64_t first = first_[0], count = last_[0] - first, length = width_.length;
    from += first - width_.low;
    store(to, vfloat{});
    for (int64_t row = 0; row < rows_; ++row, to += length)
      store(to + first, line_[row] < 0 ? vfloat{} : load_some(from + line_[row], count));
  }
  static void fill(float* to, int64_t count) {
    for (int64_t i = 0; i < count; i += kWidth) store(to + i, vfloat{});
  }
  static void move(const float* from, float* to, int64_t count) {
    for (; count >= kWidth; count -= kWidth, from += kWidth, to += kWidth) store(to, load(from));
    if (count > 0) store(to, load_some(from, count));
  }

  Volume v_;
  Window width_;
  int64_t rows_;
  Scratch hold_;
  int64_t *line_, *first_, *last_;
};

// All channels of all samples: an element is at data[n * batch + c * channel + d * step[0] + h * step[1] + w].
class Image {
 public:
  Image(const Volume& v, const Window* w, int64_t batch, int64_t channels, bool always = false)
      : own_(always || v.element != Element::f32 || v.stride[4] != 1 || !w[0].is_plain() || !w[1].is_plain() ||
             !w[2].is_plain()),
        hold_(own_ ? batch * channels * w[0].size() * w[1].size() * w[2].size() : 0) {
    if (!own_) {
      data = (const float*)v.data, this->batch = v.stride[0], channel = v.stride[1];
      for (int d = 0; d < 3; ++d) step[d] = v.stride[2 + d];
      return;
    }
    const Planes planes(v, w);
    step[2] = 1, step[1] = w[2].size(), step[0] = step[1] * w[1].size();
    channel = planes.size(), this->batch = channels * channel;
    data = hold_.data();
    parallel_for(batch * channels, divide_up(1 << 14, channel + 1), [&](int64_t begin, int64_t end) {
      // The last plane's surplus would be another thread's first.
      Scratch last(channel);
      for (int64_t at = begin; at < end; ++at) {
        float* to = at + 1 < end ? hold_.data() + at * channel : last.data();
        planes.copy(at / channels * v.stride[0] + at % channels * v.stride[1], to);
      }
      memcpy(hold_.data() + (end - 1) * channel, last.data(), sizeof(float) * (size_t)channel);
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
