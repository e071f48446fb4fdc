#include "norm.h"

#include "norm_rows.h"

ES_NAMESPACE {

static ES_FN float mean_of_row(const float* x, int64_t n) {
  float sum[1];
  reduce_row<1>(n, SumStep{x}, sum);
  return divide(sum[0], (float)n);
}

static ES_FN float inverse_of_row(const float* x, int64_t n, float mean, float epsilon) {
  float squares[1];
  reduce_row<1>(n, SquareStep{x, mean}, squares);
  return inverse_deviation(divide(squares[0], (float)n), epsilon);
}

static void layer_norm(const LayerNorm& l) {
  int64_t n = l.length;
  parallel_for(l.rows, 1 + 16384 / (n + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = l.x + row * n;
      float mean = mean_of_row(x, n), inverse = inverse_of_row(x, n, mean, l.epsilon);
      if (l.weight)
        map(
            n, l.y + row * n,
            [=](float x, float weight, float bias) { return affine(normal(x, mean, inverse), weight, bias); }, x,
            l.weight, l.bias);
      else
        map(n, l.y + row * n, [=](float x) { return affine(normal(x, mean, inverse), 1, 0); }, x);
      l.mean[row] = mean;
      l.inverse[row] = inverse;
    }
  });
}

// dx from g, which is `gradient * weight`.
static ES_FN void gradient_of_row(const float* g, const float* x, int64_t n, float mean, float inverse, float* dx) {
  float sums[2];
  reduce_row<2>(n, GradientStep{g, x, mean, inverse}, sums);
  float sum = divide(sums[0], (float)n), dot = divide(sums[1], (float)n);
  map(
      n, dx, [=](float g, float x) { return norm_gradient(g, normal(x, mean, inverse), sum, dot, inverse); }, g, x);
}

static void layer_norm_backward(const LayerNormBackward& l) {
  int64_t n = l.length;
  auto gradients = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* g = l.gradient + row * n;
      float* dx = l.dx + row * n;
      if (l.weight) {
        map(n, dx, [](float gradient, float weight) { return gradient * weight; }, g, l.weight);
        g = dx;
      }
      gradient_of_row(g, l.x + row * n, n, l.mean[row], l.inverse[row], dx);
    }
  };
  auto step = [&](vfloat* totals, int64_t row, int64_t at, auto part) {
    vfloat gradient = get(l.gradient + row * n + at, part, 0);
    vfloat normals = (get(l.x + row * n + at, part, 0) - l.mean[row]) * l.inverse[row];
    totals[0] += gradient;
    totals[1] = fma(gradient, normals, totals[1]);
  };
  bool sums = l.dweight || l.dbias, together = sums && l.dx && l.rows > kBlock * (parallel_width() - 1);
  if (l.dx && !together)
    parallel_for(l.rows, 1 + 16384 / (n + 1), [&](int64_t begin, int64_t end) { gradients(begin, end); });
  if (!sums) return;
  Scratch unwanted(l.dweight && l.dbias ? 0 : n);
  float* const out[2] = {l.dbias ? l.dbias : unwanted.data(), l.dweight ? l.dweight : unwanted.data()};
  if (together)
    sum_columns<2>(l.rows, n, step, out, gradients);
  else
    sum_columns<2>(l.rows, n, step, out);
}

static void group_norm(const GroupNorm& g) {
  int64_t wide = g.channels / g.groups, n = wide * g.positions;
  parallel_for(g.batch * g.groups, 1 + 16384 / (n + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float mean = mean_of_row(g.x + row * n, n), inverse = inverse_of_row(g.x + row * n, n, mean, g.epsilon);
      for (int64_t c = 0; c < wide; ++c) {
        int64_t channel = row % g.groups * wide + c, at = row * n + c * g.positions;
        float weight = g.weight ? g.weight[channel] : 1, bias = g.weight ? g.bias[channel] : 0;
        map(
            g.positions, g.y + at, [=](float x) { return affine(normal(x, mean, inverse), weight, bias); },
            g.x + at);
      }
      g.mean[row] = mean;
      g.inverse[row] = inverse;
    }
  });
}

static void group_norm_backward(const GroupNormBackward& g) {
  int64_t wide = g.channels / g.groups, n = wide * g.positions;
  if (g.dx)
    parallel_for(g.batch * g.groups, 1 + 16384 / (n + 1), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t c = 0; c < wide; ++c) {
          int64_t at = row * n + c * g.positions;
          float weight = g.weight ? g.weight[row % g.groups * wide + c] : 1;
          map(g.positions, g.dx + at, [=](float gradient) { return gradient * weight; }, g.gradient + at);
        }
        gradient_of_row(g.dx + row * n, g.x + row * n, n, g.mean[row], g.inverse[row], g.dx + row * n);
      }
    });
  if (!g.dweight && !g.dbias) return;
  parallel_for(g.channels, 1, [&](int64_t begin, int64_t end) {
    alignas(64) float gradients[kBlock], normals[kBlock];
    for (int64_t c = begin; c < end; ++c) {
      Channel channel = {g.batch, g.channels, g.positions, c};
      float sums[2];
      channel.sums<2>(
          [&](int64_t start, int64_t end) {
            const float* gradient = channel.block(g.gradient, start, end, gradients);
            channel.segments(start, end, [&](int64_t b, int64_t from, int64_t count, int64_t at) {
              int64_t row = b * g.groups + c / wide;
              float mean = g.mean[row], inverse = g.inverse[row];
              map(count, normals + at, [=](float x) { return normal(x, mean, inverse); }, g.x + from);
            });
            return GradientStep{gradient, normals, 0, 1};
          },
          sums);
      if (g.dbias) g.dbias[c] = sums[0];
      if (g.dweight) g.dweight[c] = sums[1];
    }
  });
}

static const Norm kTable = {layer_norm, layer_norm_backward, group_norm, group_norm_backward};

}
ES_NAMESPACE_END

ES_TABLE_IS(Norm, norm_kernels, kTable)
