// Batch norm: a block has a channel, or, where channels are last, statistics go by columns.
#include "../cpu/norm_batch.h"

#include "../exact/norm.h"
#include "columns.h"
#include "each.h"

ES_NAMESPACE {

// Where element i of a channel lies, in the order of (batch, position); and which channel an element is of.
struct Layout {
  int64_t channels, positions;
  bool last;
  explicit Layout(const Images& s) : channels(s.channels), positions(s.positions), last(s.channels_last) {}
  ES_FN int64_t place(int64_t c, int64_t i) const {
    return last ? i * channels + c : (i / positions * channels + c) * positions + i % positions;
  }
  ES_FN int64_t channel(int64_t at) const { return last ? at % channels : at / positions % channels; }
};

template <int kSums, class Step>
ES_KERNEL void ES_THREADS(kThreads) channels_kernel(int64_t rows, int64_t channels, Step step, Outputs<kSums> outputs) {
  ES_SHARED(float, place, kSums * kTogether);
  for (int64_t c = blockIdx.x; c < channels; c += gridDim.x) {
    float sums[kSums];
    sum_row<kSums>(rows, place, [&](float* totals, int64_t i) { step(totals, i, c); }, sums);
    if (threadIdx.x == 0)
      for (int s = 0; s < kSums; ++s) outputs.out[s][c] = sums[s];
  }
}

struct SumStep {
  Layout layout;
  const float* x;
  ES_FN void operator()(float* total, int64_t i, int64_t c) const { *total = *total + x[layout.place(c, i)]; }
};

struct SquareStep {
  Layout layout;
  const float *x, *mean;
  ES_FN void operator()(float* total, int64_t i, int64_t c) const {
    const float distance = x[layout.place(c, i)] - mean[c];
    *total = fma(distance, distance, *total);
  }
};

struct GradientStep {
  Layout layout;
  const float *gradient, *x, *mean, *inverse;
  ES_FN void operator()(float* totals, int64_t i, int64_t c) const {
    const int64_t at = layout.place(c, i);
    totals[0] = totals[0] + gradient[at];
    totals[1] = fma(gradient[at], normal(x[at], mean[c], inverse[c]), totals[1]);
  }
};

struct MeanOf {
  float* mean;
  float count;
  ES_FN void operator()(int64_t c) const { mean[c] = divide(mean[c], count); }
};

struct Finish {
  BatchStatistics s;
  int64_t count;
  ES_FN void operator()(int64_t c) const {
    const float squares = s.inverse[c];
    s.inverse[c] = inverse_deviation(divide(squares, (float)count), s.epsilon);
    if (s.running_mean) s.running_mean[c] = running_statistic(s.running_mean[c], s.mean[c], s.momentum, s.rest);
    if (s.running_variance)
      s.running_variance[c] =
          running_statistic(s.running_variance[c], divide(squares, (float)(count - 1)), s.momentum, s.rest);
  }
};

struct Forward {
  BatchNorm b;
  Layout layout;
  ES_FN void operator()(int64_t at) const {
    const int64_t c = layout.channel(at);
    const float weight = b.weight ? b.weight[c] : 1, bias = b.weight ? b.bias[c] : 0;
    b.y[at] = affine(normal(b.x[at], b.mean[c], b.inverse[c]), weight, bias);
  }
};

struct Backward {
  BatchNormBackward b;
  Layout layout;
  float count;
  ES_FN void operator()(int64_t at) const {
    const int64_t c = layout.channel(at);
    const float scale = b.inverse[c] * (b.weight ? b.weight[c] : 1);
    b.dx[at] = b.training ? norm_gradient(b.gradient[at], normal(b.x[at], b.mean[c], b.inverse[c]),
                                          divide(b.dbias[c], count), divide(b.dweight[c], count), scale)
                          : b.gradient[at] * scale;
  }
};

struct InverseDeviation {
  const float* variance;
  float epsilon;
  float* out;
  ES_FN void operator()(int64_t i) const { out[i] = inverse_deviation(variance[i], epsilon); }
};

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

// Sums of each channel, by the step of a channel's element.
template <int kSums, class Step>
static void sum_channels(const Images& s, Step step, Outputs<kSums> outputs) {
  const int64_t rows = s.batch * s.positions;
  if (s.channels_last) return sum_columns<kSums>(rows, s.channels, step, outputs);
  if (s.channels)
    ES_LAUNCH(blocks_for(s.channels), kThreads, (channels_kernel<kSums, Step>), rows, s.channels, step, outputs);
}

static void statistics(const BatchStatistics& s) {
  const int64_t rows = s.shape.batch * s.shape.positions;
  const Layout layout(s.shape);
  sum_channels<1>(s.shape, SumStep{layout, s.x}, {{s.mean}});
  for_each(s.shape.channels, MeanOf{s.mean, (float)rows});
  sum_channels<1>(s.shape, SquareStep{layout, s.x, s.mean}, {{s.inverse}});
  for_each(s.shape.channels, Finish{s, rows});
}

static void forward(const BatchNorm& b) {
  for_each(b.shape.batch * b.shape.channels * b.shape.positions, Forward{b, Layout(b.shape)});
}

static void backward(const BatchNormBackward& b) {
  const int64_t rows = b.shape.batch * b.shape.positions;
  const Layout layout(b.shape);
  sum_channels<2>(b.shape, GradientStep{layout, b.gradient, b.x, b.mean, b.inverse}, {{b.dbias, b.dweight}});
  if (b.dx) for_each(rows * b.shape.channels, Backward{b, layout, (float)rows});
}

static void inverse_deviations(const float* variance, float epsilon, float* out, int64_t count) {
  for_each(count, InverseDeviation{variance, epsilon, out});
}

static const BatchNorms kTable = {statistics, forward, backward, inverse_deviations};

}
ES_NAMESPACE_END

ES_TABLE_IS(BatchNorms, batch_norm_kernels, kTable)
#endif
