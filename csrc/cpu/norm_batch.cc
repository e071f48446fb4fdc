#include "norm_batch.h"

#include "norm_rows.h"

ES_NAMESPACE {

// `f(channel)` for each.
template <class F>
static ES_FN void each_channel(const Images& s, F f) {
  parallel_for(s.channels, 1 + 16384 / (s.batch * s.positions + 1), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) f(Channel{s.batch, s.channels, s.positions, c});
  });
}

// `f(from)` for each row of channels, where they are last.
template <class F>
static ES_FN void each_row(const Images& s, F f) {
  parallel_for(s.batch * s.positions, 1 + 16384 / (s.channels + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) f(row * s.channels);
  });
}

static void statistics(const BatchStatistics& s) {
  const Images& shape = s.shape;
  int64_t rows = shape.batch * shape.positions, channels = shape.channels;
  float count = (float)rows;
  if (shape.channels_last) {
    sum_columns<1>(
        rows, channels,
        [&](vfloat* total, int64_t row, int64_t at, auto part) { *total += get(s.x + row * channels + at, part, 0); },
        {s.mean});
    for (int64_t c = 0; c < channels; ++c) s.mean[c] = divide(s.mean[c], count);
    sum_columns<1>(
        rows, channels,
        [&](vfloat* total, int64_t row, int64_t at, auto part) {
          vfloat distance = get(s.x + row * channels + at, part, 0) - get(s.mean + at, part, 0);
          *total = fma(distance, distance, *total);
        },
        {s.squares});
    return;
  }
  each_channel(shape, [&](const Channel& channel) {
    alignas(64) float scratch[kBlock];
    float sum[1];
    channel.sums<1>(
        [&](int64_t start, int64_t end) { return SumStep{channel.block(s.x, start, end, scratch)}; }, sum);
    float mean = divide(sum[0], count);
    channel.sums<1>(
        [&](int64_t start, int64_t end) { return SquareStep{channel.block(s.x, start, end, scratch), mean}; }, sum);
    s.mean[channel.index] = mean;
    s.squares[channel.index] = sum[0];
  });
}

static void forward(const BatchNorm& b) {
  if (b.shape.channels_last) {
    each_row(b.shape, [&](int64_t at) {
      if (b.weight)
        map(
            b.shape.channels, b.y + at,
            [](float x, float mean, float inverse, float weight, float bias) {
              return affine(normal(x, mean, inverse), weight, bias);
            },
            b.x + at, b.mean, b.inverse, b.weight, b.bias);
      else
        map(
            b.shape.channels, b.y + at,
            [](float x, float mean, float inverse) { return affine(normal(x, mean, inverse), 1, 0); }, b.x + at,
            b.mean, b.inverse);
    });
    return;
  }
  each_channel(b.shape, [&](const Channel& channel) {
    int64_t c = channel.index;
    float mean = b.mean[c], inverse = b.inverse[c];
    float weight = b.weight ? b.weight[c] : 1, bias = b.weight ? b.bias[c] : 0;
    for (int64_t n = 0; n < channel.batch; ++n)
      map(
          channel.positions, b.y + channel.place(n),
          [=](float x) { return affine(normal(x, mean, inverse), weight, bias); }, b.x + channel.place(n));
  });
}

static void backward(const BatchNormBackward& b) {
  const Images& shape = b.shape;
  int64_t rows = shape.batch * shape.positions, channels = shape.channels;
  float count = (float)rows;
  bool training = b.training;
  if (!shape.channels_last) {
    each_channel(shape, [&](const Channel& channel) {
      alignas(64) float gradients[kBlock], scratch[kBlock];
      int64_t c = channel.index;
      float mean = b.mean[c], inverse = b.inverse[c], scale = inverse * (b.weight ? b.weight[c] : 1), sums[2];
      channel.sums<2>(
          [&](int64_t start, int64_t end) {
            return GradientStep{channel.block(b.gradient, start, end, gradients),
                                channel.block(b.x, start, end, scratch), mean, inverse};
          },
          sums);
      b.dbias[c] = sums[0];
      b.dweight[c] = sums[1];
      if (!b.dx) return;
      float sum = divide(sums[0], count), dot = divide(sums[1], count);
      for (int64_t n = 0; n < channel.batch; ++n) {
        int64_t at = channel.place(n);
        if (training)
          map(
              channel.positions, b.dx + at,
              [=](float g, float x) { return norm_gradient(g, normal(x, mean, inverse), sum, dot, scale); },
              b.gradient + at, b.x + at);
        else
          map(channel.positions, b.dx + at, [=](float g) { return g * scale; }, b.gradient + at);
      }
    });
    return;
  }
  sum_columns<2>(
      rows, channels,
      [&](vfloat* totals, int64_t row, int64_t at, auto part) {
        vfloat g = get(b.gradient + row * channels + at, part, 0);
        vfloat normals = (get(b.x + row * channels + at, part, 0) - get(b.mean + at, part, 0)) *
                         get(b.inverse + at, part, 0);
        totals[0] += g;
        totals[1] = fma(g, normals, totals[1]);
      },
      {b.dbias, b.dweight});
  if (!b.dx) return;
  float* sum = (float*)malloc(12 * (size_t)channels + 4);
  float *dot = sum + channels, *scale = dot + channels;
  for (int64_t c = 0; c < channels; ++c) {
    sum[c] = divide(b.dbias[c], count);
    dot[c] = divide(b.dweight[c], count);
    scale[c] = b.inverse[c] * (b.weight ? b.weight[c] : 1);
  }
  each_row(shape, [&](int64_t at) {
    if (training)
      map(
          channels, b.dx + at,
          [](float g, float x, float mean, float inverse, float sum, float dot, float scale) {
            return norm_gradient(g, normal(x, mean, inverse), sum, dot, scale);
          },
          b.gradient + at, b.x + at, b.mean, b.inverse, sum, dot, scale);
    else
      map(channels, b.dx + at, [](float g, float scale) { return g * scale; }, b.gradient + at, scale);
  });
  free(sum);
}

static void inverse_deviations(const float* variance, float epsilon, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = inverse_deviation(variance[i], epsilon);
}

static void running(float* inout, const float* now, float momentum, float rest, int64_t count) {
  for (int64_t i = 0; i < count; ++i) inout[i] = running_statistic(inout[i], now[i], momentum, rest);
}

static const BatchNorms kTable = {statistics, forward, backward, inverse_deviations, running};

}
ES_NAMESPACE_END

ES_TABLE_IS(BatchNorms, batch_norm_kernels, kTable)
