// Layer and group norm: a block has a row; what is summed over rows goes by columns.
#include "../cpu/norm.h"

#include "../exact/norm.h"
#include "columns.h"

ES_NAMESPACE {

// The weight and bias of element i of a row: each has its own, or `positions` neighbours share one, with those of
// `groups` rows after each other.
struct Affine {
  const float *weight, *bias;
  int64_t positions, groups, wide;  // wide: how many a row has
  ES_FN int64_t place(int64_t row, int64_t i) const { return row % groups * wide + i / positions; }
};

struct Rows {
  int64_t rows, length;
  const float *gradient, *x;
  Affine affine;
  float epsilon;
  float *out, *mean, *inverse;
};

ES_KERNEL void ES_THREADS(kThreads) forward_kernel(Rows job) {
  ES_SHARED(float, place, kTogether);
  const int64_t n = job.length;
  for (int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
    const float* x = job.x + row * n;
    float sum;
    sum_row<1>(n, place, [&](float* total, int64_t i) { *total = *total + x[i]; }, &sum);
    const float mean = divide(sum, (float)n);
    sum_row<1>(n, place, [&](float* total, int64_t i) { *total = fma(x[i] - mean, x[i] - mean, *total); }, &sum);
    const float inverse = inverse_deviation(divide(sum, (float)n), job.epsilon);
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      const int64_t at = job.affine.place(row, i);
      const float weight = job.affine.weight ? job.affine.weight[at] : 1;
      const float bias = job.affine.weight ? job.affine.bias[at] : 0;
      job.out[row * n + i] = affine(normal(x[i], mean, inverse), weight, bias);
    }
    if (threadIdx.x == 0) job.mean[row] = mean, job.inverse[row] = inverse;
  }
}

ES_KERNEL void ES_THREADS(kThreads) backward_kernel(Rows job) {
  ES_SHARED(float, place, 2 * kTogether);
  const int64_t n = job.length;
  for (int64_t row = blockIdx.x; row < job.rows; row += gridDim.x) {
    const float mean = job.mean[row], inverse = job.inverse[row];
    const float *x = job.x + row * n, *gradient = job.gradient + row * n;
    auto g = [&](int64_t i) {
      return job.affine.weight ? gradient[i] * job.affine.weight[job.affine.place(row, i)] : gradient[i];
    };
    float sums[2];
    sum_row<2>(
        n, place,
        [&](float* totals, int64_t i) {
          const float one = g(i);
          totals[0] = totals[0] + one;
          totals[1] = fma(one, normal(x[i], mean, inverse), totals[1]);
        },
        sums);
    const float sum = divide(sums[0], (float)n), dot = divide(sums[1], (float)n);
    for (int64_t i = threadIdx.x; i < n; i += kThreads)
      job.out[row * n + i] = norm_gradient(g(i), normal(x[i], mean, inverse), sum, dot, inverse);
  }
}

struct LayerSums {
  const float *gradient, *x, *mean, *inverse;
  int64_t length;
  ES_FN void operator()(float* totals, int64_t row, int64_t column) const {
    const float g = gradient[row * length + column];
    totals[0] = totals[0] + g;
    totals[1] = fma(g, normal(x[row * length + column], mean[row], inverse[row]), totals[1]);
  }
};

ES_KERNEL void ES_THREADS(kThreads) channel_sums_kernel(GroupNormBackward g) {
  ES_SHARED(float, place, 2 * kTogether);
  for (int64_t c = blockIdx.x; c < g.channels; c += gridDim.x) {
    float sums[2];
    sum_row<2>(
        g.batch * g.positions, place,
        [&](float* totals, int64_t i) {
          const int64_t n = i / g.positions, at = (n * g.channels + c) * g.positions + i % g.positions;
          const int64_t row = n * g.groups + c / (g.channels / g.groups);
          totals[0] = totals[0] + g.gradient[at];
          totals[1] = fma(g.gradient[at], normal(g.x[at], g.mean[row], g.inverse[row]), totals[1]);
        },
        sums);
    if (threadIdx.x == 0 && g.dbias) g.dbias[c] = sums[0];
    if (threadIdx.x == 0 && g.dweight) g.dweight[c] = sums[1];
  }
}

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

static void layer_norm(const LayerNorm& l) {
  if (l.rows == 0) return;
  const Rows job{l.rows, l.length, nullptr, l.x, {l.weight, l.bias, 1, 1, l.length}, l.epsilon, l.y, l.mean, l.inverse};
  ES_LAUNCH(blocks_for(l.rows), kThreads, forward_kernel, job);
}

static void layer_norm_backward(const LayerNormBackward& l) {
  const Rows job{l.rows, l.length, l.gradient, l.x, {l.weight, nullptr, 1, 1, l.length}, 0,
                 l.dx,   (float*)l.mean, (float*)l.inverse};
  // Before dx, which may take the gradient's place.
  if (l.dweight || l.dbias)
    sum_columns<2>(l.rows, l.length, LayerSums{l.gradient, l.x, l.mean, l.inverse, l.length}, {{l.dbias, l.dweight}});
  if (l.dx && l.rows) ES_LAUNCH(blocks_for(l.rows), kThreads, backward_kernel, job);
}

static void group_norm(const GroupNorm& g) {
  const int64_t rows = g.batch * g.groups, wide = g.channels / g.groups;
  if (rows == 0) return;
  const Rows job{rows, wide * g.positions, nullptr, g.x, {g.weight, g.bias, g.positions, g.groups, wide}, g.epsilon,
                 g.y,  g.mean, g.inverse};
  ES_LAUNCH(blocks_for(rows), kThreads, forward_kernel, job);
}

static void group_norm_backward(const GroupNormBackward& g) {
  const int64_t rows = g.batch * g.groups, wide = g.channels / g.groups;
  if ((g.dweight || g.dbias) && g.channels) ES_LAUNCH(blocks_for(g.channels), kThreads, channel_sums_kernel, g);
  const Rows job{rows, wide * g.positions, g.gradient, g.x, {g.weight, nullptr, g.positions, g.groups, wide}, 0,
                 g.dx, (float*)g.mean, (float*)g.inverse};
  if (g.dx && rows) ES_LAUNCH(blocks_for(rows), kThreads, backward_kernel, job);
}

static const Norm kTable = {layer_norm, layer_norm_backward, group_norm, group_norm_backward};

}
ES_NAMESPACE_END

ES_TABLE_IS(Norm, norm_kernels, kTable)
#endif
