// One row of outputs along the width: what each sees, and the loops over it.
#pragma once

#include "../exact/pool.h"
#include "scratch.h"

ES_NAMESPACE {

// to[i] takes x[i * step]. A known step lets the compiler use vectors.
template <int kStep>
static void add(float* __restrict__ to, const float* __restrict__ x, int64_t count, int64_t step) {
  if (kStep) step = kStep;
  for (int64_t i = 0; i < count; ++i) to[i] = to[i] + x[i * step];
}

// x[i * step] takes from[i].
template <int kStep>
static void spread(float* __restrict__ x, const float* __restrict__ from, int64_t count, int64_t step) {
  if (kStep) step = kStep;
  for (int64_t i = 0; i < count; ++i) x[i * step] = x[i * step] + from[i];
}

// most[i] and where it is: of itself and x[i * step], whose number is place + i * apart. Numbers of 32 bits, as wide as
// floats, are several times faster than those of 64.
template <int kStep, class Number>
static void keep_larger(float* __restrict__ most, Number* __restrict__ at, const float* __restrict__ x, int64_t count,
                        Number place, Number apart, int64_t step) {
  if (kStep) step = kStep;
  for (int64_t i = 0; i < count; ++i) {
    const float value = x[i * step];
    const bool larger = is_larger(value, most[i]);
    most[i] = larger ? value : most[i];
    at[i] = larger ? place + (Number)i * apart : at[i];
  }
}

#define ES_BY_STEP(f, step, ...)               \
  do {                                         \
    if ((step) == 1) f<1>(__VA_ARGS__, step);  \
    else if ((step) == 2) f<2>(__VA_ARGS__, step); \
    else f<0>(__VA_ARGS__, step);              \
  } while (0)

// A row in runs: outputs o, o + output_step, ... see positions p, p + step, ..., one each. For a position its outputs
// ascend from run to run, and within a run if it is there more than once.
struct Run {
  int64_t output, position, count, output_step, step;
};

// Kernels that step: a run for each tap, the last one first, if rows are long enough to gain by it.
constexpr int64_t kLongRow = 8;
static int64_t runs_of(const Windows& a) { return a.out >= kLongRow ? a.kernel : 0; }
static Run run_of(const Windows& a, int64_t number) {
  const int64_t shift = (a.kernel - 1 - number) * a.dilation - a.padding, room = a.in - 1 - shift;
  const int64_t first = shift < 0 ? (-shift + a.stride - 1) / a.stride : 0;
  int64_t end = room < 0 ? 0 : room / a.stride + 1;
  end = end < a.out ? end : a.out;
  return {first, first * a.stride + shift, end > first ? end - first : 0, 1, a.stride};
}

static int64_t runs_of(const Parts&) { return 0; }
static Run run_of(const Parts&, int64_t) { return {}; }

// Upsampling by an integer, which is most of it: the first output of each position, the second, ...
static int64_t runs_of(const Nearest& a) {
  const int64_t times = a.out / a.in;
  if (times * a.in != a.out) return 0;
  for (int64_t o = 0; o < a.out; ++o)
    if (a.source(o) != o / times) return 0;
  return times;
}
static Run run_of(const Nearest& a, int64_t number) { return {number, 0, a.in, a.out / a.in, 1}; }

// Before the input, the input, behind it.
static int64_t runs_of(const Border&) { return 3; }
static Run run_of(const Border& a, int64_t number) {
  const int64_t start = a.before > 0 ? a.before : 0, behind = a.before + a.in;
  const int64_t front = start < a.out ? start : a.out, back = behind < a.out ? behind : a.out;
  const int64_t first[4] = {0, front, back > front ? back : front, a.out}, o = first[number];
  const int64_t step = number == 1 ? 1 : a.mirror ? -1 : 0;
  return {o, a.source(o), first[number + 1] - o, 1, step};
}

template <class Axis>
class Row {
 public:
  explicit Row(const Axis& axis)
      : count_(axis.out),
        runs_(runs_of(axis)),
        windows_memory_(count_ * (int64_t)(sizeof(Window) / sizeof(float))),
        runs_memory_(runs_ * (int64_t)(sizeof(Run) / sizeof(float))) {
    for (int64_t o = 0; o < count_; ++o) windows_memory_.template as<Window>()[o] = axis.window(o);
    for (int64_t i = 0; i < runs_; ++i) runs_memory_.template as<Run>()[i] = run_of(axis, i);
  }

  const Window& window(int64_t o) const { return windows_memory_.template as<Window>()[o]; }
  bool in_runs() const { return runs_ != 0; }

  // In runs: sums[o] takes what output o sees of the row x, from left to right.
  void add_to(float* sums, const float* x) const {
    for (int64_t i = runs_ - 1; i >= 0; --i) {
      const Run& one = run(i);
      ES_BY_STEP(add, one.step, sums + one.output, x + one.position, one.count);
    }
  }

  // In runs: the largest so far, and where it is; `place` is the number of the row's first position.
  template <class Number>
  void keep_larger_of(float* most, Number* at, const float* x, Number place) const {
    for (int64_t i = runs_ - 1; i >= 0; --i) {
      const Run& one = run(i);
      const Number first = place + (Number)one.position, apart = (Number)one.step;
      ES_BY_STEP(keep_larger, one.step, most + one.output, at + one.output, x + one.position, one.count, first, apart);
    }
  }

  // The other way round: each position takes the shares of the outputs that see it, in ascending order.
  void spread_to(float* x, const float* shares) const {
    for (int64_t i = 0; i < runs_; ++i) {
      const Run& one = run(i);
      if (one.output_step == 1)
        ES_BY_STEP(spread, one.step, x + one.position, shares + one.output, one.count);
      else
        ES_BY_STEP(add, one.output_step, x + one.position, shares + one.output, one.count);
    }
    for (int64_t o = 0; runs_ == 0 && o < count_; ++o)
      for (int64_t w = window(o).first; w < window(o).end; w += window(o).step) x[w] = x[w] + shares[o];
  }

 private:
  const Run& run(int64_t i) const { return runs_memory_.template as<Run>()[i]; }

  int64_t count_, runs_;
  Scratch windows_memory_, runs_memory_;
};

// Shares of a mean's sums. After `row(d, h)`, `of(o)` is what makes the share of output o of this row.
struct ByCount {
  float count;
  float operator()(float x) const { return divide(x, count); }
};

class WindowShares {
 public:
  explicit WindowShares(const WindowMean& m) : m_(m), counts_(m.axis[2].out) {}
  void row(int64_t d, int64_t h) {
    const int64_t area = m_.divisor ? m_.divisor : m_.count(m_.axis[0], d) * m_.count(m_.axis[1], h);
    if (area == area_) return;
    area_ = area;
    for (int64_t o = 0; o < m_.axis[2].out; ++o)
      counts_.data()[o] = (float)(m_.divisor ? area : area * m_.count(m_.axis[2], o));
  }
  ByCount of(int64_t o) { return {counts_.data()[o]}; }

 private:
  WindowMean m_;
  Scratch counts_;
  int64_t area_ = 0;
};

struct ByLengths {
  float depth, height, width;
  float operator()(float x) const { return divide(divide(divide(x, depth), height), width); }
};

class PartShares {
 public:
  explicit PartShares(const PartMean& m) : m_(m), widths_(m.axis[2].out) {
    for (int64_t o = 0; o < m.axis[2].out; ++o) widths_.data()[o] = PartMean::length(m.axis[2], o);
  }
  void row(int64_t d, int64_t h) {
    depth_ = PartMean::length(m_.axis[0], d), height_ = PartMean::length(m_.axis[1], h);
  }
  ByLengths of(int64_t o) { return {depth_, height_, widths_.data()[o]}; }

 private:
  PartMean m_;
  Scratch widths_;
  float depth_ = 1, height_ = 1;
};

struct Itself {
  float operator()(float x) const { return x; }
};
struct NoShares {
  void row(int64_t, int64_t) {}
  Itself of(int64_t) { return {}; }
};

static WindowShares shares_of(const WindowMean& m) { return WindowShares(m); }
static PartShares shares_of(const PartMean& m) { return PartShares(m); }
template <class Axis>
static NoShares shares_of(const Copies<Axis>&) {
  return {};
}

}
ES_NAMESPACE_END
