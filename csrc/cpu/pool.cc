#include "pool.h"

#include "parallel.h"
#include "pool_row.h"

ES_NAMESPACE {

constexpr int64_t kGrain = 16384;  // elements

// Where the elements of a plane lie.
struct Place3 {
  int64_t depth, rows, columns;
  int64_t size() const { return depth * rows * columns; }
  int64_t row(int64_t d, int64_t h) const { return (d * rows + h) * columns; }
};
template <class Axis>
static Place3 inputs_of(const Axis* axis) {
  return {axis[0].in, axis[1].in, axis[2].in};
}
template <class Axis>
static Place3 outputs_of(const Axis* axis) {
  return {axis[0].out, axis[1].out, axis[2].out};
}

// How many of the `parts` (rows of outputs, or one) that each plane has a thread should get at least.
static int64_t grain(const Place3& a, const Place3& b, int64_t inner, int64_t parts = 1) {
  return kGrain / ((a.size() + b.size()) * inner / (parts + 1) + 1) + 1;
}

// f(plane, d, h) for the rows begin .. end - 1 of outputs, counted over all planes.
template <class F>
static void for_rows(const Place3& out, int64_t begin, int64_t end, F f) {
  const int64_t rows = out.depth * out.rows;
  for (int64_t row = begin; row < end; ++row) f(row / rows, row % rows / out.rows, row % out.rows);
}

// f(number of the row's first position) for the rows of input that outputs (d, h) see.
template <class Axis, class F>
static void for_seen_rows(const Axis* axis, int64_t d, int64_t h, F f) {
  const Window depth = axis[0].window(d), height = axis[1].window(h);
  for (int64_t i = depth.first; i < depth.end; i += depth.step)
    for (int64_t j = height.first; j < height.end; j += height.step) f((i * axis[1].in + j) * axis[2].in);
}

// f(number of the position) for all that the output sees whose window along the width this is.
template <class Axis, class F>
static void for_seen(const Axis* axis, int64_t d, int64_t h, const Window& width, F f) {
  for_seen_rows(axis, d, h, [&](int64_t first) {
    for (int64_t w = width.first; w < width.end; w += width.step) f(first + w);
  });
}

template <class Mean>
static void mean(const Planes& p, const Mean& m, const float* in, float* out) {
  const Place3 from = inputs_of(m.axis), to = outputs_of(m.axis);
  const int64_t inner = p.inner, rows = to.depth * to.rows;
  parallel_for(p.outer * rows, grain(from, to, inner, rows), [&](int64_t begin, int64_t end) {
    const Row row(m.axis[2]);
    auto shares = shares_of(m);
    for_rows(to, begin, end, [&](int64_t plane, int64_t d, int64_t h) {
      const float* x = in + plane * from.size() * inner;
      float* y = out + (plane * to.size() + to.row(d, h)) * inner;
      shares.row(d, h);
      if (inner == 1 && !row.in_runs()) {
        for (int64_t o = 0; o < to.columns; ++o) {
          float sum = 0;
          for_seen(m.axis, d, h, row.window(o), [&](int64_t place) { sum = sum + x[place]; });
          y[o] = shares.of(o)(sum);
        }
        return;
      }
      for (int64_t i = 0; i < to.columns * inner; ++i) y[i] = 0;
      if (inner == 1) {
        for_seen_rows(m.axis, d, h, [&](int64_t first) { row.add_to(y, x + first); });
        for (int64_t o = 0; o < to.columns; ++o) y[o] = shares.of(o)(y[o]);
        return;
      }
      for (int64_t o = 0; o < to.columns; ++o, y += inner) {
        for_seen(m.axis, d, h, row.window(o), [&](int64_t place) { add<1>(y, x + place * inner, inner, 1); });
        const auto share = shares.of(o);
        for (int64_t c = 0; c < inner; ++c) y[c] = share(y[c]);
      }
    });
  });
}

// The outputs of a plane in row-major order, each to what it sees: so each position's chain is in order.
template <class Mean>
static void mean_backward(const Planes& p, const Mean& m, const float* grad, float* grad_in) {
  const Place3 to = inputs_of(m.axis), from = outputs_of(m.axis);
  const int64_t inner = p.inner;
  parallel_for(p.outer, grain(from, to, inner), [&](int64_t begin, int64_t end) {
    const Row row(m.axis[2]);
    auto shares = shares_of(m);
    Scratch scratch(inner == 1 ? from.columns : inner);
    float* __restrict__ part = scratch.data();
    const int64_t rows = from.depth * from.rows;
    for_rows(from, begin * rows, end * rows, [&](int64_t plane, int64_t d, int64_t h) {
      float* x = grad_in + plane * to.size() * inner;
      const float* y = grad + (plane * from.size() + from.row(d, h)) * inner;
      if (d == 0 && h == 0)
        for (int64_t i = 0; i < to.size() * inner; ++i) x[i] = 0;
      shares.row(d, h);
      if (inner == 1) {
        for (int64_t o = 0; o < from.columns; ++o) part[o] = shares.of(o)(y[o]);
        for_seen_rows(m.axis, d, h, [&](int64_t first) { row.spread_to(x + first, part); });
        return;
      }
      for (int64_t o = 0; o < from.columns; ++o, y += inner) {
        const auto share = shares.of(o);
        for (int64_t c = 0; c < inner; ++c) part[c] = share(y[c]);
        for_seen(m.axis, d, h, row.window(o), [&](int64_t place) { add<1>(x + place * inner, part, inner, 1); });
      }
    });
  });
}

template <class Number, class Axis>
static void maximum_by(const Planes& p, const Axis* axis, const float* in, float* out, int64_t* where) {
  const Place3 from = inputs_of(axis), to = outputs_of(axis);
  const int64_t inner = p.inner, rows = to.depth * to.rows, length = inner == 1 ? to.columns : inner;
  parallel_for(p.outer * rows, grain(from, to, inner, rows), [&](int64_t begin, int64_t end) {
    const Row row(axis[2]);
    Scratch scratch(length * (int64_t)(sizeof(Number) / sizeof(float)));
    Number* __restrict__ numbers = scratch.template as<Number>();
    for_rows(to, begin, end, [&](int64_t plane, int64_t d, int64_t h) {
      const float* x = in + plane * from.size() * inner;
      const int64_t start = (plane * to.size() + to.row(d, h)) * inner;
      const int64_t top = (axis[0].window(d).first * from.rows + axis[1].window(h).first) * from.columns;
      float* __restrict__ y = out + start;
      int64_t* __restrict__ at = where + start;
      if (inner == 1 && !row.in_runs()) {
        for (int64_t o = 0; o < to.columns; ++o) {
          Largest most = {-kInfinity, top + row.window(o).first};
          for_seen(axis, d, h, row.window(o), [&](int64_t place) {
            if (is_larger(x[place], most.value)) most = {x[place], place};
          });
          y[o] = most.value, at[o] = most.at;
        }
        return;
      }
      for (int64_t i = 0; i < to.columns * inner; ++i) y[i] = -kInfinity;
      if (inner == 1) {
        for (int64_t o = 0; o < to.columns; ++o) numbers[o] = (Number)(top + row.window(o).first);
        for_seen_rows(axis, d, h, [&](int64_t first) { row.keep_larger_of(y, numbers, x + first, (Number)first); });
        for (int64_t o = 0; o < to.columns; ++o) at[o] = numbers[o];
        return;
      }
      for (int64_t o = 0; o < to.columns; ++o, y += inner, at += inner) {
        for (int64_t c = 0; c < inner; ++c) numbers[c] = (Number)(top + row.window(o).first);
        for_seen(axis, d, h, row.window(o), [&](int64_t place) {
          keep_larger<1>(y, numbers, x + place * inner, inner, (Number)place, (Number)0, 1);
        });
        for (int64_t c = 0; c < inner; ++c) at[c] = numbers[c];
      }
    });
  });
}

template <class Axis>
static void maximum(const Planes& p, const Axis* axis, const float* in, float* out, int64_t* where) {
  if (inputs_of(axis).size() <= INT32_MAX) return maximum_by<int32_t>(p, axis, in, out, where);
  maximum_by<int64_t>(p, axis, in, out, where);
}

template <class Axis>
static void maximum_backward(const Planes& p, const Axis* axis, const float* grad, const int64_t* where,
                             float* grad_in) {
  const Place3 to = inputs_of(axis), from = outputs_of(axis);
  const int64_t size = to.size(), outputs = from.size(), inner = p.inner;
  parallel_for(p.outer, grain(from, to, inner), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      float* x = grad_in + plane * size * inner;
      const float* y = grad + plane * outputs * inner;
      const int64_t* at = where + plane * outputs * inner;
      for (int64_t i = 0; i < size * inner; ++i) x[i] = 0;
      for (int64_t o = 0; o < outputs; ++o, y += inner, at += inner)
        for (int64_t c = 0; c < inner; ++c)
          if ((uint64_t)at[c] < (uint64_t)size) x[at[c] * inner + c] = x[at[c] * inner + c] + y[c];
    }
  });
}

template <class Word>
static void copies(const Planes& p, const Nearest* axis, const Word* in, Word* out) {
  const Place3 from = inputs_of(axis), to = outputs_of(axis);
  const int64_t inner = p.inner, rows = to.depth * to.rows;
  parallel_for(p.outer * rows, grain(from, to, inner, rows), [&](int64_t begin, int64_t end) {
    const Row row(axis[2]);
    for_rows(to, begin, end, [&](int64_t plane, int64_t d, int64_t h) {
      const int64_t line = from.row(axis[0].source(d), axis[1].source(h));
      const Word* __restrict__ x = in + (plane * from.size() + line) * inner;
      Word* __restrict__ y = out + (plane * to.size() + to.row(d, h)) * inner;
      for (int64_t o = 0; o < to.columns; ++o, y += inner)
        for (int64_t c = 0; c < inner; ++c) y[c] = x[row.window(o).first * inner + c];
    });
  });
}

static void nearest(const Planes& p, const Nearest* axis, int64_t bytes, const void* in, void* out) {
  if (bytes == 1) return copies(p, axis, (const uint8_t*)in, (uint8_t*)out);
  if (bytes == 2) return copies(p, axis, (const uint16_t*)in, (uint16_t*)out);
  if (bytes == 4) return copies(p, axis, (const uint32_t*)in, (uint32_t*)out);
  copies(p, axis, (const uint64_t*)in, (uint64_t*)out);
}

// Tap by tap over a plane, each a run of windows in a row.
static void fold(const Fold& s, const float* columns, float* image) {
  const Windows &down = s.axis[0], &right = s.axis[1];
  const int64_t size = down.in * right.in, windows = down.out * right.out, taps = down.kernel * right.kernel;
  parallel_for(s.planes, kGrain / (taps * windows + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      float* x = image + plane * size;
      for (int64_t i = 0; i < size; ++i) x[i] = 0;
      for (int64_t tap = 0; tap < taps; ++tap) {
        const float* y = columns + (plane * taps + tap) * windows;
        const Run rows = run_of(down, down.kernel - 1 - tap / right.kernel);
        const Run run = run_of(right, right.kernel - 1 - tap % right.kernel);
        for (int64_t h = 0; h < rows.count; ++h)
          ES_BY_STEP(spread, run.step, x + (rows.position + h * down.stride) * right.in + run.position,
                     y + (rows.output + h) * right.out + run.output, run.count);
      }
    }
  });
}

static const Pool kTable = {mean<WindowMean>,
                            mean_backward<WindowMean>,
                            mean<PartMean>,
                            mean_backward<PartMean>,
                            maximum<Windows>,
                            maximum_backward<Windows>,
                            maximum<Parts>,
                            maximum_backward<Parts>,
                            nearest,
                            mean_backward<Copies<Nearest>>,
                            mean_backward<Copies<Border>>,
                            fold};

}
ES_NAMESPACE_END

ES_TABLE_IS(Pool, pool_kernels, kTable)
