#include "softmax.h"

#include "../exact/reduction.h"
#include "../exact/softmax.h"
#include "parallel.h"
#include "reduce_columns.h"
#include "reduce_lanes.h"

ES_NAMESPACE {

static ES_FN vfloat larger(vfloat a, vfloat b) { return b > a ? b : a; }

// No lane is NaN.
static ES_FN float largest_of_lanes(const vfloat (&lanes)[kVectors]) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)lanes[0]);
#else
  vfloat most = lanes[0];
  for (int v = 1; v < kVectors; ++v) most = larger(most, lanes[v]);
  float one[kWidth];
  store(one, most);
  for (int half = kWidth / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) one[i] = one[i + half] > one[i] ? one[i + half] : one[i];
  return one[0];
#endif
}

static ES_FN float largest_of_row(const float* x, int64_t n) {
  vfloat lanes[1][kVectors];
  accumulate<1>(
      n, -kInfinity,
      [&](vfloat* most, int64_t at, auto part) { *most = larger(*most, get(x + at, part, -kInfinity)); }, lanes);
  return largest_of_lanes(lanes[0]);
}

static ES_FN float sum_of_row(const float* x, int64_t n) {
  float sum[1];
  reduce_row<1>(n, [&](vfloat* total, int64_t at, auto part) { *total += get(x + at, part, 0); }, sum);
  return sum[0];
}

static ES_FN void exponentials(const float* x, int64_t n, float most, float* out) {
  map(n, out, [=](float x) { return exponential(x - most); }, x);
}

static void softmax_row(const float* x, int64_t n, float* out) {
  exponentials(x, n, largest_of_row(x, n), out);
  float sum = sum_of_row(out, n);
  map(n, out, [=](float e) { return divide(e, sum); }, out);
}

// Several short rows together: their logarithms are one vector.
constexpr int64_t kTogether = 16;

static void log_softmax_rows(const float* x, int64_t rows, int64_t n, float* out) {
  float most[kTogether], sum[kTogether] = {}, block[kBlock];
  for (int64_t r = 0; r < rows; ++r) {
    most[r] = largest_of_row(x + r * n, n);
    PairwiseSum<float> blocks;
    for (int64_t start = 0; start < n; start += kBlock) {
      int64_t count = n - start < kBlock ? n - start : kBlock;
      exponentials(x + r * n + start, count, most[r], block);
      blocks.add(sum_of_row(block, count));
    }
    sum[r] = blocks.result();
  }
  for (int64_t r = 0; r < kTogether; ++r) sum[r] = logarithm(sum[r]);
  for (int64_t r = 0; r < rows; ++r) {
    float m = most[r], log_sum = sum[r];
    map(n, out + r * n, [=](float x) { return log_softmax(x, m, log_sum); }, x + r * n);
  }
}

static void softmax_gradient_row(const float* gradient, const float* output, int64_t n, float* out) {
  float sums[1];
  reduce_row<1>(
      n,
      [&](vfloat* total, int64_t at, auto part) {
        *total = fma(get(gradient + at, part, 0), get(output + at, part, 0), *total);
      },
      sums);
  float dot = sums[0];
  map(n, out, [=](float g, float y) { return softmax_gradient(g, y, dot); }, gradient, output);
}

static void log_softmax_gradient_row(const float* gradient, const float* output, int64_t n, float* out) {
  float sum = sum_of_row(gradient, n);
  map(n, out, [=](float g, float y) { return log_softmax_gradient(g, y, sum); }, gradient, output);
}

// The other way: `length` rows of side-by-side columns, `stride` apart.
using Lanes = ColumnLanes<1>;
struct Columns {
  int64_t length, stride, count;
};

template <class Step>
static ES_FN void sum_columns(Lanes& lanes, const Columns& c, Step step, float* out) {
  // As PairwiseSum, of rows: level[height] is the next one.
  float level[24][Lanes::kColumns];
  int height = 0;
  uint64_t blocks = 0;
  for (int64_t start = 0; start < c.length; start += kBlock) {
    int64_t rows = c.length - start < kBlock ? c.length - start : kBlock;
    accumulate_columns<1, Sum>(
        lanes, rows, c.count, 0.0f,
        [&](vfloat* total, int64_t row, int64_t at, auto part) { step(total, (start + row) * c.stride + at, part); },
        {level[height]});
    for (uint64_t rest = blocks++; rest & 1; rest >>= 1, --height)
      for (int64_t i = 0; i < c.count; ++i) level[height - 1][i] = level[height - 1][i] + level[height][i];
    ++height;
  }
  for (; height > 1; --height)
    for (int64_t i = 0; i < c.count; ++i) level[height - 2][i] = level[height - 2][i] + level[height - 1][i];
  memcpy(out, level[0], 4 * (size_t)c.count);
}

static void softmax_columns(const float* x, const Columns& c, float* out, bool logarithms) {
  alignas(64) float most[Lanes::kColumns], sum[Lanes::kColumns];
  Lanes lanes;
  for (int64_t i = 0; i < c.count; ++i) most[i] = -kInfinity;
  for (int64_t l = 0; l < c.length; ++l)
    for (int64_t i = 0; i < c.count; ++i) most[i] = x[l * c.stride + i] > most[i] ? x[l * c.stride + i] : most[i];
  for (int64_t l = 0; l < c.length; ++l)
    for (int64_t i = 0; i < c.count; ++i) out[l * c.stride + i] = exponential(x[l * c.stride + i] - most[i]);
  sum_columns(lanes, c, [&](vfloat* total, int64_t at, auto part) { *total += get(out + at, part, 0); }, sum);
  if (logarithms)
    for (int64_t i = 0; i < c.count; ++i) sum[i] = logarithm(sum[i]);
  for (int64_t l = 0; l < c.length; ++l) {
    const float* from = x + l * c.stride;
    float* to = out + l * c.stride;
    if (logarithms)
      for (int64_t i = 0; i < c.count; ++i) to[i] = log_softmax(from[i], most[i], sum[i]);
    else
      for (int64_t i = 0; i < c.count; ++i) to[i] = divide(to[i], sum[i]);
  }
}

static void gradient_columns(const float* gradient, const float* output, const Columns& c, float* out,
                             bool logarithms) {
  alignas(64) float sum[Lanes::kColumns];
  Lanes lanes;
  if (logarithms)
    sum_columns(lanes, c, [&](vfloat* total, int64_t at, auto part) { *total += get(gradient + at, part, 0); }, sum);
  else
    sum_columns(
        lanes, c,
        [&](vfloat* total, int64_t at, auto part) {
          *total = fma(get(gradient + at, part, 0), get(output + at, part, 0), *total);
        },
        sum);
  for (int64_t l = 0; l < c.length; ++l) {
    const float *g = gradient + l * c.stride, *y = output + l * c.stride;
    float* to = out + l * c.stride;
    if (logarithms)
      for (int64_t i = 0; i < c.count; ++i) to[i] = log_softmax_gradient(g[i], y[i], sum[i]);
    else
      for (int64_t i = 0; i < c.count; ++i) to[i] = softmax_gradient(g[i], y[i], sum[i]);
  }
}

// `rows(offset, count)` for rows of an array whose softmax axis is the last, else `columns(offset, strip)`.
template <class Job, class Rows, class Strip>
static ES_FN void along(const Job& job, Rows rows, Strip columns) {
  if (job.inner == 1) {
    int64_t together = job.length <= kBlock ? kTogether : 1;
    parallel_for(job.outer, 1 + 16384 / (job.length + 1), [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; o += together)
        rows(o * job.length, end - o < together ? end - o : together);
    });
    return;
  }
  constexpr int64_t kWide = 128;
  int64_t strips = (job.inner + kWide - 1) / kWide;
  parallel_for(job.outer * strips, 1 + 16384 / (job.length * kWide + 1), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      int64_t column = task % strips * kWide, rest = job.inner - column;
      columns(task / strips * job.length * job.inner + column,
              Columns{job.length, job.inner, rest < kWide ? rest : kWide});
    }
  });
}

static void softmax_all(const SoftmaxForward& job) {
  int64_t n = job.length;
  along(
      job,
      [&](int64_t at, int64_t rows) {
        for (; rows > 0; --rows, at += n) softmax_row(job.in + at, n, job.out + at);
      },
      [&](int64_t at, const Columns& c) { softmax_columns(job.in + at, c, job.out + at, false); });
}

static void log_softmax_all(const SoftmaxForward& job) {
  along(
      job, [&](int64_t at, int64_t rows) { log_softmax_rows(job.in + at, rows, job.length, job.out + at); },
      [&](int64_t at, const Columns& c) { softmax_columns(job.in + at, c, job.out + at, true); });
}

template <bool kLogarithms>
static void gradient_all(const SoftmaxBackward& job) {
  int64_t n = job.length;
  along(
      job,
      [&](int64_t at, int64_t rows) {
        for (; rows > 0; --rows, at += n)
          if (kLogarithms)
            log_softmax_gradient_row(job.gradient + at, job.output + at, n, job.out + at);
          else
            softmax_gradient_row(job.gradient + at, job.output + at, n, job.out + at);
      },
      [&](int64_t at, const Columns& c) {
        gradient_columns(job.gradient + at, job.output + at, c, job.out + at, kLogarithms);
      });
}

static const Softmax kTable = {softmax_all, log_softmax_all, gradient_all<false>, gradient_all<true>};

}
ES_NAMESPACE_END

ES_TABLE_IS(Softmax, softmax_kernels, kTable)
