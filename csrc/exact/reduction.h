// What is accumulated by sums, products, extremes and norms, and in which order: `reduce` of order.h for sums, the same
// lanes and tree with another operation for products. Extremes have no order: maximum and minimum are associative.
#pragma once

#include "order.h"

ES_NAMESPACE {

// One reduction: `init` in every lane, `step` for each element, `combine` for lanes and blocks. A step with `neutral`
// changes nothing: that is what kernels put where there is no element.
struct Sum {
  static constexpr float init = 0, neutral = 0;
  template <class T>
  static ES_FN T step(T total, T x) { return total + x; }
  template <class T>
  static ES_FN T combine(T a, T b) { return a + b; }
};

struct SumOfNumbers : Sum {  // NaN counts as nothing
  static ES_FN float step(float total, float x) { return total + (x != x ? 0.0f : x); }
};

struct SumOfMagnitudes : Sum {
  static ES_FN float step(float total, float x) { return total + from_bits(bits(x) & 0x7fffffff); }
};

struct SumOfSquares : Sum {
  static ES_FN float step(float total, float x) { return fma(x, x, total); }
};

struct CountOfNonzeros : Sum {
  static ES_FN float step(float total, float x) { return total + (x == 0 ? 0.0f : 1.0f); }
};

struct Product {
  static constexpr float init = 1, neutral = 1;
  template <class T>
  static ES_FN T step(T total, T x) { return total * x; }
  template <class T>
  static ES_FN T combine(T a, T b) { return a * b; }
};

struct Maximum {
  static constexpr float init = -kInfinity, neutral = -kInfinity;
  static ES_FN float step(float total, float x) { return maximum(total, x); }
  static ES_FN float combine(float a, float b) { return maximum(a, b); }
};

struct Minimum {
  static constexpr float init = kInfinity, neutral = kInfinity;
  static ES_FN float step(float total, float x) { return minimum(total, x); }
  static ES_FN float combine(float a, float b) { return minimum(a, b); }
};

struct MaximumMagnitude : Maximum {
  static ES_FN float step(float total, float x) { return maximum(total, from_bits(bits(x) & 0x7fffffff)); }
};

struct MinimumMagnitude : Minimum {
  static ES_FN float step(float total, float x) { return minimum(total, from_bits(bits(x) & 0x7fffffff)); }
};

// As `maximum` and `minimum` of exact/base.h.
struct MaximumOfDoubles {
  static constexpr double init = -(double)kInfinity;
  static ES_FN double step(double total, double x) { return combine(total, x); }
  static ES_FN double combine(double a, double b) {
    double larger = a > b ? a : b;
    if (a == b) larger = bit_cast<double>(bit_cast<uint64_t>(a) & bit_cast<uint64_t>(b));
    return a != a ? a : (b != b ? b : larger);
  }
};

struct MinimumOfDoubles {
  static constexpr double init = (double)kInfinity;
  static ES_FN double step(double total, double x) { return combine(total, x); }
  static ES_FN double combine(double a, double b) { return -MaximumOfDoubles::combine(-a, -b); }
};

// The blocks of any reduction, pairwise: as PairwiseSum, with `combine` for the addition.
template <class Op>
struct Pairwise {
  float level[44];
  int height = 0;
  uint64_t count = 0;

  ES_FN void add(float x) {
    for (uint64_t rest = count++; rest & 1; rest >>= 1) x = Op::combine(level[--height], x);
    level[height++] = x;
  }
  ES_FN float result() const {
    if (height == 0) return Op::init;
    float x = level[height - 1];
    for (int i = height - 2; i >= 0; --i) x = Op::combine(level[i], x);
    return x;
  }
};

// The definition of all of them.
template <class Op, class X>
ES_FN float reduce_by(int64_t length, X x) {
  Pairwise<Op> blocks;
  for (int64_t start = 0; start < length; start += kBlock) {
    int64_t end = start + kBlock < length ? start + kBlock : length;
    float lane[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) lane[l] = Op::init;
    for (int64_t i = start; i < end; ++i) lane[i % kLanes] = Op::step(lane[i % kLanes], x(i));
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
      for (int64_t l = 0; l < half; ++l) lane[l] = Op::combine(lane[l], lane[l + half]);
    blocks.add(lane[0]);
  }
  return blocks.result();
}

// Running sums and products: within each block of kBlock one ascending chain from `init`; what came before a block is
// the ascending chain of the blocks' totals, and is combined with each of its elements: out(i) = before o chain(i).
template <class T>
struct Running {
  T before, chain;
  int64_t at = 0;

  ES_FN explicit Running(T init) : before(init), chain(init) {}
  template <class Combine>
  ES_FN T next(T x, T init, Combine combine) {
    if (at == kBlock) {
      before = combine(before, chain);
      chain = init;
      at = 0;
    }
    ++at;
    chain = combine(chain, x);
    return combine(before, chain);
  }
};

}
ES_NAMESPACE_END
