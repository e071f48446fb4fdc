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

// Channels that are last, repeated until a row of them is long enough for vectors: what is done for each channel.
struct Repeated {
  static constexpr int64_t kLong = 256;
  int64_t width;

  explicit Repeated(int64_t channels) : width(channels >= kLong ? channels : kLong / channels * channels) {}
  // `from`, repeated in `to`, or itself.
  const float* operator()(const float* from, int64_t channels, float (&to)[kLong]) const {
    if (!from || width == channels) return from;
    for (int64_t at = 0; at < width; at += channels) memcpy(to + at, from, 4 * (size_t)channels);
    return to;
  }
  // `f(from, count)` for each row.
  template <class F>
  ES_FN void each_row(const Images& s, F f) const {
    int64_t all = s.batch * s.positions * s.channels;
    parallel_for((all + width - 1) / width, 1 + 16384 / width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) f(row * width, all - row * width < width ? all - row * width : width);
    });
  }
};

static void finish_channel(const BatchStatistics& s, int64_t c, float mean, float squares, int64_t count) {
  s.mean[c] = mean;
  s.inverse[c] = inverse_deviation(divide(squares, (float)count), s.epsilon);
  if (s.running_mean) s.running_mean[c] = running_statistic(s.running_mean[c], mean, s.momentum, s.rest);
  if (s.running_variance)
    s.running_variance[c] =
        running_statistic(s.running_variance[c], divide(squares, (float)(count - 1)), s.momentum, s.rest);
}

static void statistics(const BatchStatistics& s) {
  const Images& shape = s.shape;
  int64_t rows = shape.batch * shape.positions, channels = shape.channels;
  if (shape.channels_last) {
    sum_columns<1>(
        rows, channels,
        [&](vfloat* total, int64_t row, int64_t at, auto part) { *total += get(s.x + row * channels + at, part, 0); },
        {s.mean});
    for (int64_t c = 0; c < channels; ++c) s.mean[c] = divide(s.mean[c], (float)rows);
    sum_columns<1>(
        rows, channels,
        [&](vfloat* total, int64_t row, int64_t at, auto part) {
          vfloat distance = get(s.x + row * channels + at, part, 0) - get(s.mean + at, part, 0);
          *total = fma(distance, distance, *total);
        },
        {s.inverse});
    for (int64_t c = 0; c < channels; ++c) finish_channel(s, c, s.mean[c], s.inverse[c], rows);
    return;
  }
  each_channel(shape, [&](const Channel& channel) {
    alignas(64) float scratch[kBlock];
    float sum[1];
    channel.sums<1>(
        [&](int64_t start, int64_t end) { return SumStep{channel.block(s.x, start, end, scratch)}; }, sum);
    float mean = divide(sum[0], (float)rows);
    channel.sums<1>(
        [&](int64_t start, int64_t end) { return SquareStep{channel.block(s.x, start, end, scratch), mean}; }, sum);
    finish_channel(s, channel.index, mean, sum[0], rows);
  });
}

static void forward(const BatchNorm& b) {
  const Images& shape = b.shape;
  if (shape.channels_last) {
    Repeated repeated(shape.channels);
    float copies[4][Repeated::kLong];
    const float *mean = repeated(b.mean, shape.channels, copies[0]);
    const float *inverse = repeated(b.inverse, shape.channels, copies[1]);
    const float *weight = repeated(b.weight, shape.channels, copies[2]);
    const float *bias = repeated(b.bias, shape.channels, copies[3]);
    repeated.each_row(shape, [&](int64_t at, int64_t count) {
      if (b.weight)
        map(
            count, b.y + at,
            [](float x, float mean, float inverse, float weight, float bias) {
              return affine(normal(x, mean, inverse), weight, bias);
            },
            b.x + at, mean, inverse, weight, bias);
      else
        map(
            count, b.y + at,
            [](float x, float mean, float inverse) { return affine(normal(x, mean, inverse), 1, 0); }, b.x + at, mean,
            inverse);
    });
    return;
  }
  int64_t positions = shape.positions;
  parallel_for(shape.batch * shape.channels, 1 + 16384 / (positions + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t c = row % shape.channels;
      float mean = b.mean[c], inverse = b.inverse[c];
      float weight = b.weight ? b.weight[c] : 1, bias = b.weight ? b.bias[c] : 0;
      map(
          positions, b.y + row * positions,
          [=](float x) { return affine(normal(x, mean, inverse), weight, bias); }, b.x + row * positions);
    }
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
  Scratch hold(3 * channels);
  float *sum = hold.data(), *dot = sum + channels, *scale = dot + channels;
  for (int64_t c = 0; c < channels; ++c) {
    sum[c] = divide(b.dbias[c], count);
    dot[c] = divide(b.dweight[c], count);
    scale[c] = b.inverse[c] * (b.weight ? b.weight[c] : 1);
  }
  Repeated repeated(channels);
  float copies[5][Repeated::kLong];
  const float *means = repeated(b.mean, channels, copies[0]), *inverses = repeated(b.inverse, channels, copies[1]);
  const float *sums = repeated(sum, channels, copies[2]), *dots = repeated(dot, channels, copies[3]);
  const float* scales = repeated(scale, channels, copies[4]);
  repeated.each_row(shape, [&](int64_t at, int64_t n) {
    if (training)
      map(
          n, b.dx + at,
          [](float g, float x, float mean, float inverse, float sum, float dot, float scale) {
            return norm_gradient(g, normal(x, mean, inverse), sum, dot, scale);
          },
          b.gradient + at, b.x + at, means, inverses, sums, dots, scales);
    else
      map(n, b.dx + at, [](float g, float scale) { return g * scale; }, b.gradient + at, scales);
  });
}

static void inverse_deviations(const float* variance, float epsilon, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = inverse_deviation(variance[i], epsilon);
}

static const BatchNorms kTable = {statistics, forward, backward, inverse_deviations};

}
ES_NAMESPACE_END

ES_TABLE_IS(BatchNorms, batch_norm_kernels, kTable)
