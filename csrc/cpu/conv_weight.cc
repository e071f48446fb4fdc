// The gradient of the weights, as a product whose k runs over the pixels of all samples: rows are output channels,
// columns are (tap, input channel). The input is copied with its channels innermost and its padding around it, so that
// a row of a panel of columns is a piece of one line. And the gradient of the bias.
#include "conv_parts.h"
#include "gemm_block.h"

ES_NAMESPACE {

// Pixels of channels that follow each other at one distance, in each sample.
struct Plane {
  const float* data;
  int64_t batch, channel, pixel, pixels;

  Plane from(int64_t c) const { return {data + c * channel, batch, channel, pixel, pixels}; }

  // panel[i * width + j] is pixel k + i of channel first + j.
  void pack_some(float* panel, int64_t first, int64_t count, int64_t width, int64_t k, int64_t length) const {
    while (length > 0) {
      const int64_t n = k / pixels, at = k % pixels, part = pixels - at < length ? pixels - at : length;
      const float* from = data + n * batch + first * channel + at * pixel;
      pack(panel, from, channel, pixel, count, width, part);
      if (pixel == 1)  // the next chunk of each: too many places for the processor to foresee
        for (int64_t i = 0; i < count; ++i)
          for (int64_t j = 0; j < part; j += 16) __builtin_prefetch(from + i * channel + part + j, 0, 2);
      panel += part * width, k += part, length -= part;
    }
  }
  int64_t k_step() const { return channel == 1 ? kStepAcross : kChunk; }
  void pack_rows(float* panel, int64_t first, int64_t rows, int64_t k, int64_t length) const {
    pack_some(panel, first, rows, rows, k, length);
  }
  void pack_columns(float* panel, int64_t first, int64_t columns, int64_t k, int64_t length) const {
    pack_some(panel, first, columns, padded(columns), k, length);
  }
};

// Columns by whole vectors: vector v of tap 0 at pixel k is at data[pixel[k] + vector[v]].
struct Lines {
  const float* data;
  const int64_t *pixel, *vector;

  int64_t k_step() const { return kChunk; }
  void pack_columns(float* panel, int64_t first, int64_t columns, int64_t k, int64_t length) const {
    const float* left = data + vector[first / kWidth];
    const int64_t* at = pixel + k;
    if (columns <= kWidth) {
      for (; length > 0; --length, ++at, panel += kWidth) store(panel, load(left + *at));
      return;
    }
    const float* right = data + vector[first / kWidth + 1];
    for (; length > 0; --length, ++at, panel += kColumns) {
      store(panel, load(left + *at));
      store(panel + kWidth, load(right + *at));
    }
  }
};

static void write_one(const Volume& v, int64_t at, float x) {
  switch (v.element) {
    case Element::bf16:
      ((bf16*)v.data)[at] = narrow<bf16>(x);
      break;
    case Element::fp16:
      ((fp16*)v.data)[at] = narrow<fp16>(x);
      break;
    default:
      ((float*)v.data)[at] = x;
  }
}

// Column j of the product is the weight at place[j] of its row, or nothing's.
struct Weights {
  Volume out;
  int64_t first_row;
  const int64_t* place;

  float* direct(int64_t, int64_t, int64_t*) const { return nullptr; }
  void finish(const float* sums, int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    for (int64_t i = 0; i < rows; ++i, sums += kColumns) {
      const int64_t base = (first_row + row + i) * out.stride[0];
      if (out.element == Element::f32) {
        float* to = (float*)out.data + base;
        for (int64_t j = 0; j < columns; ++j)
          if (place[column + j] >= 0) to[place[column + j]] = sums[j];
      } else {
        for (int64_t j = 0; j < columns; ++j)
          if (place[column + j] >= 0) write_one(out, base + place[column + j], sums[j]);
      }
    }
  }
};

// Sums of some of the chunks, to be added up later.
struct Partial {
  float* data;
  int64_t columns;
  float* direct(int64_t row, int64_t column, int64_t* out_row) const {
    *out_row = columns;
    return data + row * columns + column;
  }
  void finish(const float*, int64_t, int64_t, int64_t, int64_t) const {}
};

// The product of one group, shared among threads: by columns; where there are few, by groups of chunks that are
// subtrees of the pairwise sum.
template <class Right>
static void product(int64_t rows, int64_t columns, int64_t k, const Plane& left, const Right& right,
                    const Weights& sink) {
  const int64_t tiles = pieces(columns, kColumns), chunks = k > kChunk ? pieces(k, kChunk) : 1;
  const int64_t threads = parallel_width();
  const int64_t work = rows * kColumns * (k + 8);
  int64_t group = 1;
  while (group < chunks) group *= 2;
  if (threads > 1)
    while (group > 1 && tiles * pieces(chunks, group) < 8 * threads && work / pieces(chunks, group) > 1 << 18)
      group /= 2;
  const int64_t groups = pieces(chunks, group), wide = tiles * kColumns;
  Scratch partial(groups > 1 ? groups * rows * wide : 0);
  parallel_for(tiles * groups, divide_up(1 << 18, work / groups + 1), [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t g = begin / tiles, first = begin % tiles;
      const int64_t last = first + end - begin < tiles ? first + end - begin : tiles;
      begin += last - first;
      const Range some{first * kColumns, last * kColumns < columns ? last * kColumns : columns};
      const Range these{g * group, (g + 1) * group < chunks ? (g + 1) * group : chunks};
      if (groups == 1)
        blocks(left, right, sink, Range{0, rows}, some, these, k);
      else
        blocks(left, right, Partial{partial.data() + g * rows * wide, wide}, Range{0, rows}, some, these, k);
    }
  });
  if (groups == 1) return;
  parallel_for(rows * tiles, 64, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t row = at / tiles, column = at % tiles * kColumns;
      PairwiseSum<vfloat, 32> sums[2];
      for (int64_t g = 0; g < groups; ++g)
        for (int v = 0; v < 2; ++v) sums[v].add(load(partial.data() + (g * rows + row) * wide + column + v * kWidth));
      float done[kColumns];
      for (int v = 0; v < 2; ++v) store(done + v * kWidth, sums[v].result());
      sink.finish(done, row, 1, column, columns - column < kColumns ? columns - column : kColumns);
    }
  });
}

// The input with its channels innermost: position (d, h, w) of the padded input of sample n is a line of all channels
// at data[n * batch + d * step[0] + h * step[1] + w * step[2]].
class ChannelsLast {
 public:
  ChannelsLast(const ConvShape& s, const Volume& x) : channels_(s.groups * s.in_channels), hold_(size(s)) {
    step[2] = channels_, step[1] = length_[2] * step[2], step[0] = length_[1] * step[1], batch = length_[0] * step[0];
    data = hold_.data();
    const int64_t lines = length_[0] * length_[1];
    parallel_for(s.batch * lines, divide_up(1 << 13, step[1] + 1), [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        const int64_t d = at % lines / length_[1] * apart[0] - s.padding[0];
        const int64_t h = at % length_[1] * apart[1] - s.padding[1];
        float* to = hold_.data() + at * step[1];
        if (d < 0 || d >= s.in[0] || h < 0 || h >= s.in[1])
          clear(to, step[1]);
        else
          fill(s, x, at / lines * x.stride[0] + d * x.stride[2] + h * x.stride[3], to);
      }
    });
  }

  const float* data;
  int64_t batch, step[3];
  int64_t apart[3];  // positions lie so far apart in the input: the stride, if there is but one tap

 private:
  int64_t size(const ConvShape& s) {
    int64_t all = s.batch * channels_;
    for (int d = 0; d < 3; ++d) {
      apart[d] = s.kernel[d] == 1 ? s.stride[d] : 1;
      length_[d] = s.kernel[d] == 1 ? s.out[d] : (s.out[d] - 1) * s.stride[d] + (s.kernel[d] - 1) * s.dilation[d] + 1;
      all *= length_[d];
    }
    return all;
  }

  void fill(const ConvShape& s, const Volume& x, int64_t at, float* to) {
    int64_t first = divide_up(s.padding[2], apart[2]), last = divide_up(s.in[2] + s.padding[2], apart[2]);
    if (last > length_[2]) last = length_[2];
    if (first > last) first = last;
    clear(to, first * channels_);
    clear(to + last * channels_, (length_[2] - last) * channels_);
    const int64_t pixel = apart[2] * x.stride[4];
    at += (first * apart[2] - s.padding[2]) * x.stride[4];
    to += first * channels_;
    // `pack` writes too much, which the pixels after it mend: not the next line's, which may be another thread's.
    const int64_t mended = divide_up(kSlack, channels_);
    if (x.element == Element::f32 && last - first > mended) {
      const int64_t count = last - first - mended;
      pack(to, (const float*)x.data + at, x.stride[1], pixel, channels_, channels_, count);
      at += count * pixel, to += count * channels_, first += count;
    }
    for (int64_t i = first; i < last; ++i, at += pixel, to += channels_) read_run(x, at, x.stride[1], to, channels_);
  }

  int64_t channels_, length_[3];
  Scratch hold_;
};

void weight_gradient(const ConvShape& s, const Volume& x, const Volume& dy, const Volume& dw) {
  const int64_t pixels = s.out[0] * s.out[1] * s.out[2], k = s.batch * pixels, c = s.in_channels;
  const int64_t taps = s.kernel[0] * s.kernel[1] * s.kernel[2];
  const bool even = dy.element == Element::f32 && (s.out[1] == 1 || dy.stride[3] == s.out[2] * dy.stride[4]) &&
                    (s.out[0] == 1 || dy.stride[2] == s.out[1] * s.out[2] * dy.stride[4]);
  Window whole[3];
  for (int d = 0; d < 3; ++d) whole[d] = {s.out[d], 0, 1, 1, 1, s.out[d]};
  const int64_t channels = s.groups * s.out_channels;
  const Image copy(dy, whole, even ? 0 : s.batch, channels, true);
  const Plane left = even ? Plane{(const float*)dy.data, dy.stride[0], dy.stride[1], dy.stride[4], pixels}
                          : Plane{copy.data, copy.batch, copy.channel, 1, pixels};

  auto place_of = [&](int64_t tap, int64_t channel) {
    const int64_t t[3] = {tap / (s.kernel[1] * s.kernel[2]), tap / s.kernel[2] % s.kernel[1], tap % s.kernel[2]};
    return channel * dw.stride[1] + t[0] * dw.stride[2] + t[1] * dw.stride[3] + t[2] * dw.stride[4];
  };
  // One tap that reads every pixel where it is: both sides are matrices in memory.
  bool pointwise = taps == 1 && x.element == Element::f32;
  for (int d = 0; d < 3; ++d) pointwise = pointwise && s.stride[d] == 1 && s.padding[d] == 0;
  pointwise = pointwise && (s.in[1] == 1 || x.stride[3] == s.in[2] * x.stride[4]) &&
              (s.in[0] == 1 || x.stride[2] == s.in[1] * s.in[2] * x.stride[4]);
  if (pointwise) {
    Scratch places(2 * padded(c) + 2);
    int64_t* place = places.as<int64_t>();
    for (int64_t i = 0; i < c; ++i) place[i] = place_of(0, i);
    const Plane right{(const float*)x.data, x.stride[0], x.stride[1], x.stride[4], pixels};
    for (int64_t g = 0; g < s.groups; ++g)
      product(s.out_channels, c, k, left.from(g * s.out_channels), right.from(g * c),
              Weights{dw, g * s.out_channels, place});
    return;
  }
  ChannelsLast image(s, x);
  Scratch pixel_places(2 * k);
  int64_t* pixel = pixel_places.as<int64_t>();
  int64_t move[3];
  for (int d = 0; d < 3; ++d) move[d] = image.step[d] * (s.kernel[d] == 1 ? 1 : s.stride[d]);
  int64_t at = 0;
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t d = 0; d < s.out[0]; ++d)
      for (int64_t h = 0; h < s.out[1]; ++h)
        for (int64_t w = 0; w < s.out[2]; ++w)
          pixel[at++] = n * image.batch + d * move[0] + h * move[1] + w * move[2];

  // Vectors of columns: of all taps for some channels before the next channels, since these weights are neighbours. Of
  // few channels several taps share a vector, since they are neighbours in the image.
  const bool joined = s.groups == 1 && c < kColumns && s.dilation[2] == 1;
  const int64_t run = joined ? s.kernel[2] * c : c, runs = joined ? taps / s.kernel[2] : taps;
  const int64_t wide = joined ? run : kColumns;
  const int64_t most = runs * (run + kColumns) / kWidth + 1;
  Scratch vectors(2 * most), places(2 * most * kWidth);
  int64_t *vector = vectors.as<int64_t>(), *place = places.as<int64_t>(), count = 0;
  for (int64_t begin = 0; begin < run; begin += wide)
    for (int64_t r = 0; r < runs; ++r) {
      const int64_t first = joined ? r * s.kernel[2] : r;  // tap
      const int64_t area = s.kernel[1] * s.kernel[2];
      const int64_t t[3] = {first / area, first / s.kernel[2] % s.kernel[1], first % s.kernel[2]};
      int64_t base = 0;
      for (int d = 0; d < 3; ++d) base += t[d] * s.dilation[d] * image.step[d];
      for (int64_t i = begin; i < begin + wide && i < run; i += kWidth, ++count) {
        vector[count] = base + i;
        for (int64_t j = i; j < i + kWidth; ++j)
          place[count * kWidth + j - i] = j < run ? place_of(first + j / c, j % c) : -1;
      }
    }
  for (int64_t g = 0; g < s.groups; ++g)
    product(s.out_channels, count * kWidth, k, left.from(g * s.out_channels), Lines{image.data + g * c, pixel, vector},
            Weights{dw, g * s.out_channels, place});
}

// Blocks are copied to where their elements follow each other, so that lanes are vectors.
void bias_gradient(const ConvShape& s, const Volume& dy, float* db) {
  const int64_t pixels = s.out[0] * s.out[1] * s.out[2], length = s.batch * pixels;
  parallel_for(s.groups * s.out_channels, divide_up(1 << 14, length + 1), [&](int64_t begin, int64_t end) {
    Scratch block(kBlock);
    for (int64_t c = begin; c < end; ++c) {
      PairwiseSum<float> blocks;
      for (int64_t start = 0; start < length; start += kBlock) {
        const int64_t stop = start + kBlock < length ? start + kBlock : length;
        for (int64_t at = start; at < stop;) {
          const int64_t w = at % s.out[2], line = at / s.out[2], h = line % s.out[1], d = line / s.out[1] % s.out[0];
          const int64_t count = s.out[2] - w < stop - at ? s.out[2] - w : stop - at;
          read_run(dy, line / (s.out[0] * s.out[1]) * dy.stride[0] + c * dy.stride[1] + d * dy.stride[2] +
                           h * dy.stride[3] + w * dy.stride[4],
                   dy.stride[4], block.data() + at - start, count);
          at += count;
        }
        alignas(64) float lane[kLanes] = {};
        int64_t i = 0;
        for (; i + kLanes <= stop - start; i += kLanes)
          for (int64_t l = 0; l < kLanes; ++l) lane[l] += block.data()[i + l];
        for (int64_t l = 0; i + l < stop - start; ++l) lane[l] += block.data()[i + l];
        blocks.add(sum_lanes(lane));
      }
      db[c] = blocks.result();
    }
  });
}

}
ES_NAMESPACE_END
