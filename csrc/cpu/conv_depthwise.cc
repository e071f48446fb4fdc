// Depthwise convolutions: one channel in, one out. Nothing is packed: a line of outputs is a vector, and each tap a
// line of the padded plane that is added to it. For the gradient of the weights, vectors are channels.
#include "conv_parts.h"
#include "gemm_pack.h"

ES_NAMESPACE {

bool is_depthwise(const ConvShape& s) {
  return s.in_channels == 1 && s.out_channels == 1 && s.kernel[0] * s.kernel[1] * s.kernel[2] <= kChunk;
}

// out[i] = chain over t of w[t] * from[offset[t] + i], + bias. What is read beyond `count` is not written.
template <int Vectors>
ES_FN void line_of(int64_t taps, const float* w, const int64_t* offset, const float* from, const float* bias,
                   float* out, int64_t count) {
  vfloat sum[Vectors];
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) sum[v] = vfloat{};
  for (int64_t t = 0; t < taps; ++t) {
    const vfloat weight = broadcast(w[t]);
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sum[v] = fma(weight, load(from + offset[t] + v * kWidth), sum[v]);
  }
  if (bias) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sum[v] = sum[v] + broadcast(*bias);
  }
#pragma GCC unroll 4
  for (int v = 0; v + 1 < Vectors; ++v) store(out + v * kWidth, sum[v]);
  const int64_t tail = count - (Vectors - 1) * kWidth;
  if (tail >= kWidth)
    store(out + (Vectors - 1) * kWidth, sum[Vectors - 1]);
  else
    store_some(out + (Vectors - 1) * kWidth, sum[Vectors - 1], tail);
}

static void line(int64_t taps, const float* w, const int64_t* offset, const float* from, const float* bias, float* out,
                 int64_t count) {
  for (; count > 3 * kWidth; count -= 4 * kWidth, from += 4 * kWidth, out += 4 * kWidth)
    line_of<4>(taps, w, offset, from, bias, out, count);
  if (count > 2 * kWidth) return line_of<3>(taps, w, offset, from, bias, out, count);
  if (count > kWidth) return line_of<2>(taps, w, offset, from, bias, out, count);
  if (count > 0) line_of<1>(taps, w, offset, from, bias, out, count);
}

template <class T>
static void spread_line(const float* from, T* to, int64_t step, int64_t count) {
  if (step == 1)
    for (int64_t i = 0; i < count; ++i) to[i] = narrow<T>(from[i]);
  else if (step == 2)
    for (int64_t i = 0; i < count; ++i) to[2 * i] = narrow<T>(from[i]);
  else
    for (int64_t i = 0; i < count; ++i) to[i * step] = narrow<T>(from[i]);
}

static void write_line(const Volume& v, int64_t at, int64_t step, const float* from, int64_t count) {
  switch (v.element) {
    case Element::bf16:
      return spread_line(from, (bf16*)v.data + at, step, count);
    case Element::fp16:
      return spread_line(from, (fp16*)v.data + at, step, count);
    default:
      return spread_line(from, (float*)v.data + at, step, count);
  }
}

// to[2 * i] = even[i], to[2 * i + 1] = odd[i], `count` in all. Reads whole vectors.
static void interleave(const float* even, const float* odd, float* to, int64_t count) {
  for (; count > 0; count -= 2 * kWidth, even += kWidth, odd += kWidth, to += 2 * kWidth) {
    const vfloat x = load(even), y = load(odd);
    const vfloat low = interleave_low(x, y), high = interleave_high(x, y);
    if (count >= 2 * kWidth) {
      store(to, low), store(to + kWidth, high);
    } else {
      store_some(to, low, count < kWidth ? count : kWidth);
      if (count > kWidth) store_some(to + kWidth, high, count - kWidth);
    }
  }
}

// The taps of one line of outputs: where each reads, and which weight it has.
struct LineTaps {
  int64_t count;
  int64_t *offset, *weight;
};

// Planes of `in`, padded as `windows` say, to lines of `out`. A line is a position (d, h) of the output and one of
// `apart` remainders of its width: taps_of(d, h, remainder, LineTaps&) fills in what its elements have in common, and
// place(d, h) is where it begins in the plane.
template <class TapsOf, class Place>
static void planes_to_lines(const ConvShape& s, const Volume& in, const Window* windows, const Volume& w,
                            const float* bias, const Volume& out, const int64_t* size, const int64_t* apart,
                            TapsOf taps_of, Place place) {
  const Planes planes(in, windows);
  const int64_t taps = s.kernel[0] * s.kernel[1] * s.kernel[2], kinds = apart[0] * apart[1] * apart[2];
  Scratch tables(4 * taps * kinds);
  int64_t* table = tables.as<int64_t>();
  Scratch lists((int64_t)sizeof(LineTaps) / 4 * kinds);
  LineTaps* kind = lists.as<LineTaps>();
  for (int64_t i = 0; i < kinds; ++i) {
    kind[i] = {0, table + 2 * taps * i, table + 2 * taps * i + taps};
    taps_of(i / apart[2] / apart[1], i / apart[2] % apart[1], i % apart[2], kind[i]);
  }
  // Weights in the order in which each kind of line takes them: [channel][kind][taps].
  Scratch chosen(s.groups * kinds * taps);
  for (int64_t c = 0; c < s.groups; ++c)
    for (int64_t i = 0; i < kinds; ++i)
      for (int64_t t = 0; t < kind[i].count; ++t) {
        const int64_t tap = kind[i].weight[t];
        read_run(w, c * w.stride[0] + tap / (s.kernel[1] * s.kernel[2]) * w.stride[2] +
                        tap / s.kernel[2] % s.kernel[1] * w.stride[3] + tap % s.kernel[2] * w.stride[4],
                 1, chosen.data() + (c * kinds + i) * taps + t, 1);
      }
  const bool floats = out.element == Element::f32 && out.stride[4] == 1;
  const bool direct = floats && apart[2] == 1, pairs = floats && apart[2] == 2;
  const int64_t work = planes.size() + size[0] * size[1] * size[2] * taps, half = divide_up(size[2], 2) + 4 * kWidth;
  parallel_for(s.batch * s.groups, divide_up(1 << 15, work), [&](int64_t begin, int64_t end) {
    Scratch plane(planes.size() + 4 * kWidth), buffer(size[2] + 2 * half);
    for (int64_t at = begin; at < end; ++at) {
      const int64_t n = at / s.groups, c = at % s.groups;
      planes.copy(n * in.stride[0] + c * in.stride[1], plane.data());
      const float* weights = chosen.data() + c * kinds * taps;
      const float* add = bias ? bias + c : nullptr;
      const int64_t base = n * out.stride[0] + c * out.stride[1];
      int64_t d_kind = 0;
      for (int64_t d = 0; d < size[0]; ++d) {
        int64_t kind_of_line = d_kind * apart[1] * apart[2];
        for (int64_t h = 0, h_kind = 0; h < size[1]; ++h) {
          const float* from = plane.data() + place(d, h);
          const int64_t to = base + d * out.stride[2] + h * out.stride[3];
          for (int64_t r = 0; r < apart[2] && r < size[2]; ++r) {
            const int64_t i = kind_of_line + r, count = divide_up(size[2] - r, apart[2]);
            float* sums = direct ? (float*)out.data + to : buffer.data() + r % 2 * half;
            line(kind[i].count, weights + i * taps, kind[i].offset, from, add, sums, count);
            if (!direct && !pairs) write_line(out, to + r * out.stride[4], apart[2] * out.stride[4], sums, count);
          }
          if (pairs) interleave(buffer.data(), buffer.data() + half, (float*)out.data + to, size[2]);
          kind_of_line += apart[2];
          if (++h_kind == apart[1]) h_kind = 0, kind_of_line = d_kind * apart[1] * apart[2];
        }
        if (++d_kind == apart[0]) d_kind = 0;
      }
    }
  });
}

void depthwise_forward(const ConvShape& s, const Volume& x, const Volume& w, const float* bias, const Volume& y) {
  const Window windows[3] = {forward_window(s, 0), forward_window(s, 1), forward_window(s, 2)};
  const int64_t one[3] = {1, 1, 1}, row = windows[2].size(), slice = row * windows[1].size();
  planes_to_lines(
      s, x, windows, w, bias, y, s.out, one,
      [&](int64_t, int64_t, int64_t, LineTaps& taps) {
        for (int64_t d = 0; d < s.kernel[0]; ++d)
          for (int64_t h = 0; h < s.kernel[1]; ++h)
            for (int64_t t = 0; t < s.kernel[2]; ++t, ++taps.count) {
              taps.offset[taps.count] = windows[0].tap(d) * slice + windows[1].tap(h) * row + windows[2].tap(t);
              taps.weight[taps.count] = taps.count;
            }
      },
      [&](int64_t d, int64_t h) { return d * slice + h * row; });
}

void depthwise_backward(const ConvShape& s, const Volume& dy, const Volume& w, const float* bias, const Volume& dx) {
  const Window windows[3] = {backward_window(s, 0), backward_window(s, 1), backward_window(s, 2)};
  const int64_t row = windows[2].size(), slice = row * windows[1].size();
  planes_to_lines(
      s, dy, windows, w, bias, dx, s.in, s.stride,
      [&](int64_t r0, int64_t r1, int64_t r2, LineTaps& found) {
        const Taps taps[3] = {taps_at(s, 0, r0), taps_at(s, 1, r1), taps_at(s, 2, r2)};
        for (int64_t i = 0, d = taps[0].first; i < taps[0].count; ++i, d += taps[0].step)
          for (int64_t j = 0, h = taps[1].first; j < taps[1].count; ++j, h += taps[1].step)
            for (int64_t l = 0, t = taps[2].first; l < taps[2].count; ++l, t += taps[2].step, ++found.count) {
              found.offset[found.count] = (backward_shift(s, 0, r0, d) + windows[0].low) * slice +
                                          (backward_shift(s, 1, r1, h) + windows[1].low) * row +
                                          backward_shift(s, 2, r2, t) + windows[2].low;
              found.weight[found.count] = (d * s.kernel[1] + h) * s.kernel[2] + t;
            }
      },
      [&](int64_t d, int64_t h) { return d / s.stride[0] * slice + h / s.stride[1] * row; });
}

// Pixels begin .. end of one sample, for kWidth channels and some taps.
template <int Count>
static void add_pixels(const float* x, const float* dy, const int64_t* pixel, const int64_t* tap, int64_t begin,
                       int64_t end, float* sums) {
  vfloat sum[Count];
  const float* from[Count];
#pragma GCC unroll 9
  for (int t = 0; t < Count; ++t) sum[t] = load(sums + t * kWidth), from[t] = x + tap[t];
  for (int64_t p = begin; p < end; ++p) {
    const vfloat gradient = load(dy + p * kWidth);
    const int64_t at = pixel[p];
#pragma GCC unroll 9
    for (int t = 0; t < Count; ++t) sum[t] = fma(load(from[t] + at), gradient, sum[t]);
  }
#pragma GCC unroll 9
  for (int t = 0; t < Count; ++t) store(sums + t * kWidth, sum[t]);
}
using AddPixels = void (*)(const float*, const float*, const int64_t*, const int64_t*, int64_t, int64_t, float*);
constexpr int64_t kTaps = 9;  // at once
constexpr AddPixels kAddPixels[kTaps + 1] = {nullptr,       add_pixels<1>, add_pixels<2>, add_pixels<3>, add_pixels<4>,
                                             add_pixels<5>, add_pixels<6>, add_pixels<7>, add_pixels<8>, add_pixels<9>};

// `count` pixels, `step` apart, of up to kWidth channels: to[pixel][kWidth], the channels that are missing +0.
static void turn_line(const Volume& v, int64_t at, int64_t step, int64_t channels, int64_t count, float* to) {
  if (v.element == Element::f32) {
    if (count > 0) pack(to, (const float*)v.data + at, v.stride[1], step, channels, kWidth, count);
    return;
  }
  for (int64_t i = 0; i < count; ++i, at += step, to += kWidth) {
    read_run(v, at, v.stride[1], to, channels);
    for (int64_t c = channels; c < kWidth; ++c) to[c] = 0;
  }
}

void depthwise_weight(const ConvShape& s, const Volume& x, const Volume& dy, const Volume& dw) {
  const int64_t pixels = s.out[0] * s.out[1] * s.out[2], taps = s.kernel[0] * s.kernel[1] * s.kernel[2];
  int64_t length[3];
  for (int d = 0; d < 3; ++d) length[d] = (s.out[d] - 1) * s.stride[d] + (s.kernel[d] - 1) * s.dilation[d] + 1;
  const int64_t area = length[1] * length[2], volume = length[0] * area;
  Scratch tables(2 * (pixels + taps));
  int64_t *pixel = tables.as<int64_t>(), *tap = pixel + pixels;
  for (int64_t p = 0; p < pixels; ++p)
    pixel[p] = (p / (s.out[1] * s.out[2]) * s.stride[0] * area + p / s.out[2] % s.out[1] * s.stride[1] * length[2] +
                p % s.out[2] * s.stride[2]) * kWidth;
  for (int64_t t = 0; t < taps; ++t)
    tap[t] = (t / (s.kernel[1] * s.kernel[2]) * s.dilation[0] * area +
              t / s.kernel[2] % s.kernel[1] * s.dilation[1] * length[2] + t % s.kernel[2] * s.dilation[2]) * kWidth;

  // Where a padded line has the input's.
  int64_t first = s.padding[2], last = s.in[2] + s.padding[2] < length[2] ? s.in[2] + s.padding[2] : length[2];
  if (first > last) first = last;
  parallel_for(divide_up(s.groups, kWidth), 1, [&](int64_t begin, int64_t end) {
    Scratch image(volume * kWidth), gradient(pixels * kWidth), chain(taps * kWidth);
    Scratch trees((int64_t)sizeof(PairwiseSum<vfloat>) / 4 * taps);
    auto* tree = trees.as<PairwiseSum<vfloat>>();
    for (int64_t block = begin; block < end; ++block) {
      const int64_t c = block * kWidth, channels = s.groups - c < kWidth ? s.groups - c : kWidth;
      for (int64_t t = 0; t < taps; ++t) tree[t].height = 0, tree[t].count = 0;
      int64_t in_chunk = 0;
      clear(chain.data(), taps * kWidth);
      auto finish = [&] {
        for (int64_t t = 0; t < taps; ++t) tree[t].add(load(chain.data() + t * kWidth));
        clear(chain.data(), taps * kWidth);
        in_chunk = 0;
      };
      for (int64_t n = 0; n < s.batch; ++n) {
        for (int64_t line = 0; line < length[0] * length[1]; ++line) {
          const int64_t d = line / length[1] - s.padding[0], h = line % length[1] - s.padding[1];
          float* to = image.data() + line * length[2] * kWidth;
          if (d < 0 || d >= s.in[0] || h < 0 || h >= s.in[1]) {
            clear(to, length[2] * kWidth);
            continue;
          }
          clear(to, first * kWidth);
          clear(to + last * kWidth, (length[2] - last) * kWidth);
          turn_line(x, n * x.stride[0] + c * x.stride[1] + d * x.stride[2] + h * x.stride[3] +
                           (first - s.padding[2]) * x.stride[4],
                    x.stride[4], channels, last - first, to + first * kWidth);
        }
        for (int64_t line = 0; line < s.out[0] * s.out[1]; ++line)
          turn_line(dy, n * dy.stride[0] + c * dy.stride[1] + line / s.out[1] * dy.stride[2] +
                            line % s.out[1] * dy.stride[3],
                    dy.stride[4], channels, s.out[2], gradient.data() + line * s.out[2] * kWidth);
        for (int64_t p = 0; p < pixels;) {
          const int64_t part = kChunk - in_chunk < pixels - p ? kChunk - in_chunk : pixels - p;
          for (int64_t t = 0; t < taps; t += kTaps) {
            const int64_t some = taps - t < kTaps ? taps - t : kTaps;
            kAddPixels[some](image.data(), gradient.data(), pixel, tap + t, p, p + part, chain.data() + t * kWidth);
          }
          p += part, in_chunk += part;
          if (in_chunk == kChunk) finish();
        }
      }
      if (in_chunk > 0) finish();
      for (int64_t t = 0; t < taps; ++t) {
        float sums[kWidth];
        store(sums, tree[t].result());
        const int64_t t0 = t / (s.kernel[1] * s.kernel[2]), t1 = t / s.kernel[2] % s.kernel[1], t2 = t % s.kernel[2];
        write_line(dw, c * dw.stride[0] + t0 * dw.stride[2] + t1 * dw.stride[3] + t2 * dw.stride[4], dw.stride[0], sums,
                   channels);
      }
    }
  });
}

}
ES_NAMESPACE_END
