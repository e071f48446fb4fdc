// Forward and backward-data as products of the weights with patches, which are copied straight from the image into the
// panels of gemm_kernel.h: rows are channels of the output, columns its pixels, in the order (sample, depth, height,
// width). Backward-data has one product for each remainder that a position has modulo the stride.
#include "conv_parts.h"
#include "gemm_block.h"

ES_NAMESPACE {

// Pixels of the output on a regular grid, and what tap 0 of channel 0 reads for them.
struct Grid {
  int64_t batch, size[3];
  int64_t in_batch, in_step[3], out_batch, out_step[3];

  int64_t pixels() const { return size[0] * size[1] * size[2]; }

  // Dimensions that follow each other seamlessly, on both sides, are one.
  void merge() {
    for (int outer = 1; outer >= 0; --outer) {
      if (size[outer] == 1) continue;
      if (in_step[outer] != size[2] || out_step[outer] != size[2] * out_step[2]) return;
      size[2] *= size[outer], size[outer] = 1;
    }
  }
};

// Neighbouring pixels of one line.
struct Run {
  int64_t in, out;
  int column, length;
};

static int runs_of(const Grid& g, int64_t first, int64_t count, Run* runs) {
  int64_t w = first % g.size[2], line = first / g.size[2];
  int64_t h = line % g.size[1], d = line / g.size[1] % g.size[0], n = line / g.size[1] / g.size[0];
  int total = 0;
  for (int64_t column = 0; column < count;) {
    const int64_t length = g.size[2] - w < count - column ? g.size[2] - w : count - column;
    runs[total++] = {n * g.in_batch + d * g.in_step[0] + h * g.in_step[1] + w,
                     n * g.out_batch + d * g.out_step[0] + h * g.out_step[1] + w * g.out_step[2], (int)column,
                     (int)length};
    column += length, w = 0;
    if (++h == g.size[1]) {
      h = 0;
      if (++d == g.size[0]) d = 0, ++n;
    }
  }
  return total;
}

// Packs patches: row k of a panel is the image shifted by offset[k].
class Patches {
 public:
  Patches(const Grid& grid, const float* image, const int64_t* offset, bool has_slack)
      : grid(grid), image(image), offset(offset), has_slack(has_slack) {}

  int64_t k_step() const { return kChunk; }
  void pack_columns(float* panel, int64_t first, int64_t columns, int64_t k, int64_t length) const {
    Run runs[kColumns];
    const int count = runs_of(grid, first, columns, runs);
    Piece pieces[kColumns];
    int total = 0;
    bool whole = true;
    for (int r = 0; r < count; ++r)
      for (int i = 0; i < runs[r].length; i += kWidth) {
        const int rest = runs[r].length - i < kWidth ? runs[r].length - i : kWidth;
        whole = whole && rest == kWidth;
        pieces[total++] = {image + runs[r].in + i, runs[r].column + i, rest};
      }
    const int64_t width = padded(columns);
    if (!whole && !has_slack) return copy<0, true>(panel, width, pieces, total, offset + k, length);
    switch (total) {
      case 1:
        return copy<1, false>(panel, width, pieces, total, offset + k, length);
      case 2:
        return copy<2, false>(panel, width, pieces, total, offset + k, length);
      case 3:
        return copy<3, false>(panel, width, pieces, total, offset + k, length);
      case 4:
        return copy<4, false>(panel, width, pieces, total, offset + k, length);
      case 5:
        return copy<5, false>(panel, width, pieces, total, offset + k, length);
      case 6:
        return copy<6, false>(panel, width, pieces, total, offset + k, length);
      default:
        return copy<0, false>(panel, width, pieces, total, offset + k, length);
    }
  }

 private:
  struct Piece {
    const float* from;
    int column, count;
  };

  const Grid& grid;
  const float* image;
  const int64_t* offset;
  const bool has_slack;

  // Whole vectors are written: what is too much is overwritten by the piece after it. Total: 0 if not known here.
  template <int Total, bool Exactly>
  static void copy(float* panel, int64_t width, const Piece* pieces, int total, const int64_t* shift, int64_t length) {
    for (; length > 0; --length, ++shift, panel += width) {
#pragma GCC unroll 6
      for (int i = 0; i < (Total ? Total : total); ++i) {
        const float* from = pieces[i].from + *shift;
        if (Total && Total <= 2) __builtin_prefetch(from + kColumns, 0, 2);  // for the next tile
        store(panel + pieces[i].column, Exactly ? load_some(from, pieces[i].count) : load(from));
      }
    }
  }
};

// Weights by parts of so many rows, in each of which k is outermost: parts are written, and panels copied from them, in
// the order in which they lie in memory.
constexpr int64_t kPart = 16;
static_assert(kPart >= kRows && kPart % kWidth == 0);

struct TurnedWeights {
  const float* data;  // [part][k][kPart]
  int64_t k_size;

  int64_t k_step() const { return kChunk; }
  void pack_rows(float* panel, int64_t first, int64_t rows, int64_t k, int64_t length) const {
    const int64_t shift = first % kPart, here = kPart - shift < rows ? kPart - shift : rows;
    const float* low = data + (first / kPart * k_size + k) * kPart + shift;
    const float* high = here < rows ? low + k_size * kPart - shift : low;
    const int64_t jump = here < rows ? here : 0;
    // Whole vectors are written: what is too much is overwritten by what comes next.
    for (; length > 0; --length, panel += rows, low += kPart, high += kPart) {
      for (int64_t i = 0; i < here; i += kWidth) store(panel + i, load(low + i));
      if (jump)
        for (int64_t i = jump; i < rows; i += kWidth) store(panel + i, load(high + i - jump));
    }
  }
};

template <class T>
ES_FN void write_strided(T* to, int64_t step, const float* sums, int64_t count, float bias, bool add) {
  for (int64_t i = 0; i < count; ++i) to[i * step] = narrow<T>(add ? sums[i] + bias : sums[i]);
}

// Where finished sums go.
struct Pixels {
  const Grid& grid;
  Volume out;  // data: that of pixel 0, channel 0
  const float* bias;
  mutable int64_t known = -1;
  mutable int count = 0;
  mutable Run runs[kColumns] = {};

  void find(int64_t column) const {
    if (column == known) return;
    const int64_t rest = grid.batch * grid.pixels() - column;
    count = runs_of(grid, column, rest < kColumns ? rest : kColumns, runs);
    known = column;
  }

  float* direct(int64_t row, int64_t column, int64_t* out_row) const {
    if (bias || out.element != Element::f32 || grid.out_step[2] != 1) return nullptr;
    find(column);
    if (count > 1) return nullptr;
    *out_row = out.stride[1];
    return (float*)out.data + row * out.stride[1] + runs[0].out;
  }

  template <class T>
  void write(const float* sums, int64_t row, int64_t rows) const {
    T* base = (T*)out.data + row * out.stride[1];
    if (out.stride[1] == 1 && grid.out_step[2] != 1) {  // channels last
      for (int r = 0; r < count; ++r)
        for (int i = 0; i < runs[r].length; ++i) {
          const float* from = sums + runs[r].column + i;
          T* to = base + runs[r].out + i * grid.out_step[2];
          for (int64_t c = 0; c < rows; ++c)
            to[c] = narrow<T>(bias ? from[c * kColumns] + bias[row + c] : from[c * kColumns]);
        }
      return;
    }
    for (int64_t c = 0; c < rows; ++c, sums += kColumns, base += out.stride[1]) {
      const float add = bias ? bias[row + c] : 0;
      for (int r = 0; r < count; ++r) {
        if (grid.out_step[2] == 1 && out.element == Element::f32) {
          const float* from = sums + runs[r].column;
          float* to = (float*)base + runs[r].out;
          for (int64_t i = 0; i < runs[r].length; i += kWidth) {
            const int64_t rest = runs[r].length - i < kWidth ? runs[r].length - i : kWidth;
            vfloat x = load_some(from + i, rest);
            store_some(to + i, bias ? x + broadcast(add) : x, rest);
          }
        } else {
          write_strided(base + runs[r].out, grid.out_step[2], sums + runs[r].column, runs[r].length, add, bias);
        }
      }
    }
  }

  void finish(const float* sums, int64_t row, int64_t rows, int64_t column, int64_t) const {
    find(column);
    switch (out.element) {
      case Element::bf16:
        return write<bf16>(sums, row, rows);
      case Element::fp16:
        return write<fp16>(sums, row, rows);
      default:
        return write<float>(sums, row, rows);
    }
  }
};

// One product for each group.
struct Gather {
  Grid grid;
  int64_t groups, rows, k;  // of one group
  const float* weights;    // TurnedWeights of a group after the other
  const float* image;
  int64_t image_group;
  bool has_slack;
  const int64_t* offset;
  Volume out;
  const float* bias;

  void run() {
    grid.merge();
    const int64_t pixels = grid.batch * grid.pixels(), tiles = divide_up(pixels, kColumns);
    if (pixels * rows * groups == 0) return;
    const int64_t chunks = k > kChunk ? divide_up(k, kChunk) : 1, panels = divide_up(rows, kRows);
    const int64_t all = groups * tiles, threads = parallel_width();
    // Few tiles: their rows are divided, too.
    int64_t splits = threads > 1 && all < 4 * threads ? divide_up(4 * threads, all) : 1;
    if (splits > panels) splits = panels;
    const int64_t work = kColumns * (k + 8) * divide_up(rows, splits);
    parallel_for(all * splits, divide_up(1 << 18, work), [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t split = begin / all, group = begin % all / tiles, first = begin % tiles;
        const int64_t last = first + end - begin < tiles ? first + end - begin : tiles;
        begin += last - first;
        const TurnedWeights left{weights + group * divide_up(rows, kPart) * kPart * k, k};
        const Patches right(grid, image + group * image_group, offset, has_slack);
        Volume to = out;
        const int64_t shift = group * rows * out.stride[1];
        to.data = (char*)out.data + shift * (out.element == Element::f32 ? 4 : 2);
        Pixels sink{grid, to, bias ? bias + group * rows : nullptr};
        Range columns{first * kColumns, last * kColumns < pixels ? last * kColumns : pixels};
        blocks(left, right, sink, Range{0, rows}.part(split, splits, 1), columns, Range{0, chunks}, k);
      }
    });
  }
};

// Whether the taps of a kernel are floats that follow each other.
static bool taps_are_dense(const ConvShape& s, const Volume& w) {
  bool dense = w.element == Element::f32;
  for (int64_t d = 2, step = 1; d >= 0; step *= s.kernel[d--])
    dense = dense && (w.stride[2 + d] == step || s.kernel[d] == 1);
  return dense;
}

void gather_forward(const ConvShape& s, const Volume& x, const Volume& w, const float* bias, const Volume& y) {
  const Window windows[3] = {forward_window(s, 0), forward_window(s, 1), forward_window(s, 2)};
  const int64_t taps = s.kernel[0] * s.kernel[1] * s.kernel[2], k = s.in_channels * taps;
  Image image(x, windows, s.batch, s.groups * s.in_channels);

  Scratch offsets(2 * k);
  int64_t* offset = offsets.as<int64_t>();
  const int64_t slot[3] = {image.step[0], image.step[1], 1};
  int64_t at = 0;
  for (int64_t c = 0; c < s.in_channels; ++c)
    for (int64_t d = 0; d < s.kernel[0]; ++d)
      for (int64_t h = 0; h < s.kernel[1]; ++h)
        for (int64_t t = 0; t < s.kernel[2]; ++t)
          offset[at++] =
              c * image.channel + windows[0].tap(d) * slot[0] + windows[1].tap(h) * slot[1] + windows[2].tap(t);

  const int64_t parts = divide_up(s.out_channels, kPart);
  Scratch turned(s.groups * parts * kPart * k);
  const bool dense = taps_are_dense(s, w) && (w.stride[1] == taps || s.in_channels == 1);
  parallel_for(k > 0 ? s.groups * parts : 0, divide_up(1 << 14, k * kPart + 1), [&](int64_t begin, int64_t end) {
    Scratch lines(dense ? 0 : kPart * k);
    for (int64_t part = begin; part < end; ++part) {
      const int64_t group = part / parts, row = part % parts * kPart;
      const int64_t rows = s.out_channels - row < kPart ? s.out_channels - row : kPart;
      const int64_t first = (group * s.out_channels + row) * w.stride[0];
      if (!dense)
        for (int64_t r = 0; r < rows; ++r) {
          float* to = lines.data() + r * k;
          for (int64_t c = 0; c < s.in_channels; ++c)
            for (int64_t d = 0; d < s.kernel[0]; ++d)
              for (int64_t h = 0; h < s.kernel[1]; ++h, to += s.kernel[2])
                read_run(w, first + r * w.stride[0] + c * w.stride[1] + d * w.stride[2] + h * w.stride[3], w.stride[4],
                         to, s.kernel[2]);
        }
      pack(turned.data() + part * kPart * k, dense ? (const float*)w.data + first : lines.data(),
           dense ? w.stride[0] : k, 1, rows, kPart, k);
    }
  });

  Gather gather{};
  gather.grid = {s.batch, {s.out[0], s.out[1], s.out[2]}, image.batch, {image.step[0], image.step[1], 1}, y.stride[0],
                 {y.stride[2], y.stride[3], y.stride[4]}};
  gather.groups = s.groups, gather.rows = s.out_channels, gather.k = k;
  gather.weights = turned.data();
  gather.image = image.data, gather.image_group = s.in_channels * image.channel, gather.has_slack = image.has_slack();
  gather.offset = offset, gather.out = y, gather.bias = bias;
  gather.run();
}

void gather_backward(const ConvShape& s, const Volume& dy, const Volume& w, const float* bias, const Volume& dx) {
  const Window windows[3] = {backward_window(s, 0), backward_window(s, 1), backward_window(s, 2)};
  Image image(dy, windows, s.batch, s.groups * s.out_channels);
  const int64_t most = s.out_channels * s.kernel[0] * s.kernel[1] * s.kernel[2];
  const int64_t parts = divide_up(s.in_channels, kPart);
  Scratch offsets(2 * most), turned(s.groups * most * parts * kPart);
  int64_t* offset = offsets.as<int64_t>();
  const bool dense = taps_are_dense(s, w);

  Gather gather{};
  gather.groups = s.groups, gather.rows = s.in_channels;
  gather.weights = turned.data();
  gather.image = image.data, gather.image_group = s.out_channels * image.channel, gather.has_slack = image.has_slack();
  gather.offset = offset, gather.bias = bias;
  int64_t r[3];
  for (r[0] = 0; r[0] < s.stride[0] && r[0] < s.in[0]; ++r[0])
    for (r[1] = 0; r[1] < s.stride[1] && r[1] < s.in[1]; ++r[1])
      for (r[2] = 0; r[2] < s.stride[2] && r[2] < s.in[2]; ++r[2]) {
        const Taps taps[3] = {taps_at(s, 0, r[0]), taps_at(s, 1, r[1]), taps_at(s, 2, r[2])};
        const int64_t volume = taps[0].count * taps[1].count * taps[2].count;
        auto each_tap = [&](auto f) {
          int64_t t[3];
          for (int64_t i = 0; i < taps[0].count; ++i)
            for (int64_t j = 0; j < taps[1].count; ++j)
              for (int64_t l = 0; l < taps[2].count; ++l) {
                t[0] = taps[0].first + i * taps[0].step, t[1] = taps[1].first + j * taps[1].step;
                t[2] = taps[2].first + l * taps[2].step;
                f(t);
              }
        };
        int64_t at = 0;
        for (int64_t c = 0; c < s.out_channels; ++c)
          each_tap([&](const int64_t* t) {
            int64_t place = c * image.channel;
            for (int d = 0; d < 3; ++d)
              place += (backward_shift(s, d, r[d], t[d]) + windows[d].low) * (d < 2 ? image.step[d] : 1);
            offset[at++] = place;
          });
        const int64_t k = s.out_channels * volume;
        parallel_for(s.groups * parts, divide_up(1 << 14, k * kPart + 1), [&](int64_t begin, int64_t end) {
          for (int64_t part = begin; part < end; ++part) {
            const int64_t group = part / parts, row = part % parts * kPart;
            const int64_t rows = s.in_channels - row < kPart ? s.in_channels - row : kPart;
            float* to = turned.data() + part * kPart * k;
            const bool all = volume == s.kernel[0] * s.kernel[1] * s.kernel[2];
            for (int64_t c = 0; c < s.out_channels; ++c) {
              const int64_t from = (group * s.out_channels + c) * w.stride[0] + row * w.stride[1];
              if (all && dense) {
                pack(to, (const float*)w.data + from, w.stride[1], 1, rows, kPart, volume);
                to += volume * kPart;
                continue;
              }
              each_tap([&](const int64_t* t) {
                const int64_t at = from + t[0] * w.stride[2] + t[1] * w.stride[3] + t[2] * w.stride[4];
                if (w.element == Element::f32)
                  for (int64_t i = 0; i < rows; ++i) to[i] = ((const float*)w.data)[at + i * w.stride[1]];
                else
                  read_run(w, at, w.stride[1], to, rows);
                to += kPart;
              });
            }
          }
        });
        gather.k = k;
        gather.grid = {s.batch, {}, image.batch, {image.step[0], image.step[1], 1}, dx.stride[0], {}};
        gather.out = dx;
        int64_t begin = 0;
        for (int d = 0; d < 3; ++d) {
          gather.grid.size[d] = divide_up(s.in[d] - r[d], s.stride[d]);
          gather.grid.out_step[d] = s.stride[d] * dx.stride[2 + d];
          begin += r[d] * dx.stride[2 + d];
        }
        gather.out.data = (char*)dx.data + begin * (dx.element == Element::f32 ? 4 : 2);
        gather.run();
      }
}

}
ES_NAMESPACE_END
