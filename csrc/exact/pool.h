// Windows of pools, nearest upsampling and padding: which positions of the input an output sees, which outputs see a
// position, and the order in which values meet. Fewer than three dimensions are three with leading ones of length 1.
// These are the definition, one element at a time; kernels may group the work in any way that gives the same bits.
#pragma once

#include "search.h"

ES_NAMESPACE {

// a / b for a >= 0 and b > 0, in 32 bits where they fit: several times faster on a GPU.
ES_FN int64_t quotient(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}

// Positions first, first + step, ... below end.
struct Window {
  int64_t first, end, step;
};

// first .. end - 1.
struct Outputs {
  int64_t first, end;
};

// What follows is one dimension, in four kinds. `window(o)`: what output o sees. `outputs(i)` and `sees`: position i is
// seen by those o of outputs(i) for which sees(o, i).

// Average and maximum pools: a kernel that steps over the padded input.
struct Windows {
  int64_t in, out, kernel, stride, padding, dilation;

  ES_FN Window window(int64_t o) const {
    int64_t first = o * stride - padding, end = first + (kernel - 1) * dilation + 1;
    if (first < 0) first += quotient(dilation - 1 - first, dilation) * dilation;
    return {first, end < in ? end : in, dilation};
  }
  ES_FN Outputs outputs(int64_t i) const {
    int64_t at = i + padding, reach = at - (kernel - 1) * dilation, end = quotient(at, stride) + 1;
    return {reach > 0 ? quotient(reach + stride - 1, stride) : 0, end < out ? end : out};
  }
  ES_FN bool sees(int64_t o, int64_t i) const { return dilation == 1 || (i + padding - o * stride) % dilation == 0; }

  // Of a window without dilation: how much of it lies in the input and its padding.
  ES_FN int64_t padded(int64_t o) const {
    int64_t first = o * stride - padding, end = first + kernel;
    return (end < in + padding ? end : in + padding) - first;
  }
};

// Adaptive pools: the input in `out` parts, which overlap where they do not come out even.
struct Parts {
  int64_t in, out;

  ES_FN Window window(int64_t o) const { return {quotient(o * in, out), quotient((o + 1) * in + out - 1, out), 1}; }
  ES_FN Outputs outputs(int64_t i) const { return {quotient(i * out, in), quotient((i + 1) * out + in - 1, in)}; }
  ES_FN bool sees(int64_t, int64_t) const { return true; }
};

// Nearest upsampling: one position each. `centers`: by the middles of pixels (nearest-exact). Sources ascend with
// outputs.
struct Nearest {
  int64_t in, out;
  float scale;
  bool centers;

  ES_FN int64_t source(int64_t o) const {
    if (!centers && out == in) return o;
    if (!centers && out == 2 * in) return o / 2;
    float at = centers ? (float)(((double)o + 0.5) * (double)scale) : (float)o * scale;
    int64_t below = at < (float)in ? (int64_t)at : in - 1;
    return below < in - 1 ? below : in - 1;
  }
  ES_FN Window window(int64_t o) const {
    int64_t at = source(o);
    return {at, at + 1, 1};
  }
  // The first output whose source is i or more.
  ES_FN int64_t first_from(int64_t i) const {
    return first_that(out, [&](int64_t o) { return source(o) >= i; });
  }
  ES_FN Outputs outputs(int64_t i) const { return {first_from(i), first_from(i + 1)}; }
  ES_FN bool sees(int64_t, int64_t) const { return true; }
};

// Padding by `before` positions at the front (negative: it is cut), with the input's mirror or with its ends.
struct Border {
  int64_t in, out, before;
  bool mirror;

  ES_FN int64_t source(int64_t o) const {
    int64_t at = o - before;
    if (at < 0) return mirror ? -at : 0;
    return at < in ? at : mirror ? 2 * (in - 1) - at : in - 1;
  }
  ES_FN Window window(int64_t o) const {
    int64_t at = source(o);
    return {at, at + 1, 1};
  }
  // From the mirror image at the front to the one at the end.
  ES_FN Outputs outputs(int64_t i) const {
    int64_t first = before + i, end = first + 1, image = before + 2 * (in - 1) - i;
    if (mirror) {
      if (before - i < first) first = before - i;
      if (first < 0) first = before + i;
      if (image < out && image >= end) end = image + 1;
    } else {
      if (i == 0) first = 0;
      if (i == in - 1) end = out;
    }
    return {first > 0 ? first : 0, end < out ? end : out};
  }
  ES_FN bool sees(int64_t o, int64_t i) const { return source(o) == i; }
};

// Volumes of (outer, depth, height, width, inner): inner is 1, or the channels where they come last.
struct Planes {
  int64_t outer, inner;
};

// What the outputs of average pools are: each by its window's share of a sum.
struct WindowMean {
  Windows axis[3];
  int64_t divisor;  // 0: the number of elements,
  bool padding;     // those of the padding with them

  ES_FN float share(float x, int64_t d, int64_t h, int64_t w) const {
    if (divisor) return divide(x, (float)divisor);
    return divide(x, (float)(count(axis[0], d) * count(axis[1], h) * count(axis[2], w)));
  }
  ES_FN int64_t count(const Windows& a, int64_t o) const {
    if (padding) return a.padded(o);
    Window window = a.window(o);
    return window.end - window.first;
  }
};

struct PartMean {
  Parts axis[3];

  ES_FN float share(float x, int64_t d, int64_t h, int64_t w) const {
    return divide(divide(divide(x, length(axis[0], d)), length(axis[1], h)), length(axis[2], w));
  }
  static ES_FN float length(const Parts& a, int64_t o) {
    Window window = a.window(o);
    return (float)(window.end - window.first);
  }
};

// Nearest upsampling and padding: the value itself.
template <class Axis>
struct Copies {
  Axis axis[3];
  ES_FN float share(float x, int64_t, int64_t, int64_t) const { return x; }
};

// visit(d, h, w) for what output (d, h, w) sees, in row-major order.
template <class Axis, class Visit>
ES_FN void visit_window(const Axis* axis, const int64_t* o, Visit visit) {
  const Window depth = axis[0].window(o[0]), height = axis[1].window(o[1]), width = axis[2].window(o[2]);
  for (int64_t d = depth.first; d < depth.end; d += depth.step)
    for (int64_t h = height.first; h < height.end; h += height.step)
      for (int64_t w = width.first; w < width.end; w += width.step) visit(d, h, w);
}

// visit(d, h, w) for the outputs that see position i, in row-major order.
template <class Axis, class Visit>
ES_FN void visit_outputs(const Axis* axis, const int64_t* i, Visit visit) {
  const Outputs depth = axis[0].outputs(i[0]), height = axis[1].outputs(i[1]), width = axis[2].outputs(i[2]);
  for (int64_t d = depth.first; d < depth.end; ++d) {
    if (!axis[0].sees(d, i[0])) continue;
    for (int64_t h = height.first; h < height.end; ++h) {
      if (!axis[1].sees(h, i[1])) continue;
      for (int64_t w = width.first; w < width.end; ++w)
        if (axis[2].sees(w, i[2])) visit(d, h, w);
    }
  }
}

// x(d, h, w) of the input.
template <class Mean, class X>
ES_FN float mean_of(const Mean& m, const int64_t* o, X x) {
  float sum = 0;
  visit_window(m.axis, o, [&](int64_t d, int64_t h, int64_t w) { sum = sum + x(d, h, w); });
  return m.share(sum, o[0], o[1], o[2]);
}

// grad(d, h, w) of the outputs.
template <class Mean, class Grad>
ES_FN float mean_gradient(const Mean& m, const int64_t* i, Grad grad) {
  float sum = 0;
  visit_outputs(m.axis, i, [&](int64_t d, int64_t h, int64_t w) { sum = sum + m.share(grad(d, h, w), d, h, w); });
  return sum;
}

// Whether an element takes the place of the largest one before it: the first of equals stays, the last NaN.
ES_FN bool is_larger(float x, float most) { return x > most || x != x; }

struct Largest {
  float value;
  int64_t at;  // the position's number in its plane
};

template <class Axis, class X>
ES_FN Largest largest_of(const Axis* axis, const int64_t* o, X x) {
  auto number = [=](int64_t d, int64_t h, int64_t w) { return (d * axis[1].in + h) * axis[2].in + w; };
  Largest most = {-kInfinity,
                  number(axis[0].window(o[0]).first, axis[1].window(o[1]).first, axis[2].window(o[2]).first)};
  visit_window(axis, o, [&](int64_t d, int64_t h, int64_t w) {
    const float value = x(d, h, w);
    if (is_larger(value, most.value)) most = {value, number(d, h, w)};
  });
  return most;
}

// Whether output o sees the position of this number.
template <class Axis>
ES_FN bool sees_number(const Axis* axis, const int64_t* o, int64_t number) {
  if (number < 0 || number >= axis[0].in * axis[1].in * axis[2].in) return false;
  const int64_t row = quotient(number, axis[2].in), layer = quotient(row, axis[1].in);
  const int64_t at[3] = {layer, row - layer * axis[1].in, number - row * axis[2].in};
  for (int d = 0; d < 3; ++d) {
    const Window window = axis[d].window(o[d]);
    if (at[d] < window.first || at[d] >= window.end) return false;
    if (window.step != 1 && (at[d] - window.first) % window.step != 0) return false;
  }
  return true;
}

// fold (col2im): an image is put together from the windows that were taken out of it. Columns are (planes,
// axis[0].kernel, axis[1].kernel, axis[0].out, axis[1].out), images (planes, axis[0].in, axis[1].in).
struct Fold {
  int64_t planes;
  Windows axis[2];
};

// The window whose tap k lies on position i; negative: none.
ES_FN int64_t window_at(const Windows& a, int64_t i, int64_t k) {
  const int64_t at = i + a.padding - k * a.dilation;
  if (at < 0) return -1;
  const int64_t o = quotient(at, a.stride);
  return o < a.out && o * a.stride == at ? o : -1;
}

// column(tap, tap, window, window).
template <class Column>
ES_FN float folded(const Fold& s, int64_t h, int64_t w, Column column) {
  float sum = 0;
  for (int64_t k = 0; k < s.axis[0].kernel; ++k) {
    const int64_t row = window_at(s.axis[0], h, k);
    for (int64_t l = 0; row >= 0 && l < s.axis[1].kernel; ++l) {
      const int64_t at = window_at(s.axis[1], w, l);
      if (at >= 0) sum = sum + column(k, l, row, at);
    }
  }
  return sum;
}

}
ES_NAMESPACE_END
