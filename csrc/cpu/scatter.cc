#include "scatter.h"

#include "parallel.h"

ES_NAMESPACE {

constexpr int64_t kGrain = 16384;  // elements

// Positions in order, those of `first` .. `end` among the places, columns `left` .. `right`.
template <Combine how, bool scaled>
static void rows_part(const Rows& r, int64_t first, int64_t end, int64_t left, int64_t right) {
  int64_t columns = right - left;
  if (r.width == 1 && !scaled && !r.source && first == 0 && end == r.places) {
    for (int64_t p = 0; p < r.count; ++p)
      if (r.to[p] >= 0) r.out[r.to[p]] = combine(how, r.out[r.to[p]], r.from[p]);
    return;
  }
  for (int64_t p = 0; p < r.count; ++p) {
    int64_t place = r.to[p];
    if (place < first || place >= end) continue;
    float* __restrict__ out = r.out + place * r.width + left;
    const float* __restrict__ from = r.from + (r.source ? r.source[p] : p) * r.width + left;
    if (scaled) {
      float scale = r.scale[p];
      for (int64_t c = 0; c < columns; ++c) out[c] = add_scaled(out[c], scale, from[c]);
    } else {
      for (int64_t c = 0; c < columns; ++c) out[c] = combine(how, out[c], from[c]);
    }
  }
}

// Threads share the batches or the columns where there are many, else the places: each goes through all positions.
// part(batch, first place, last, first column, last).
template <class Part>
static void share(int64_t batches, int64_t count, int64_t width, int64_t places, int64_t least, Part part) {
  int64_t threads = batches * count * width < kGrain ? 1 : parallel_width();
  if (batches > 1)
    return parallel_for(batches, (batches + threads - 1) / threads, [&](int64_t begin, int64_t end) {
      for (int64_t batch = begin; batch < end; ++batch) part(batch, int64_t(0), places, int64_t(0), width);
    });
  if (threads > 1 && width >= least * threads)
    return parallel_for((width + least - 1) / least, 1, [&](int64_t begin, int64_t end) {
      part(int64_t(0), int64_t(0), places, begin * least, end * least < width ? end * least : width);
    });
  if (width == 1) threads = 1;
  parallel_for(places, (places + threads - 1) / threads,
               [&](int64_t begin, int64_t end) { part(int64_t(0), begin, end, int64_t(0), width); });
}

template <Combine how, bool scaled = false>
static void rows_as(const Rows& r) {
  share(r.batches, r.count, r.width, r.places, 16,
        [&](int64_t batch, int64_t first, int64_t end, int64_t left, int64_t right) {
          Rows part = r;
          part.out += batch * r.places * r.width;
          part.from += r.source ? 0 : batch * r.count * r.width;
          rows_part<how, scaled>(part, first, end, left, right);
        });
}

static void rows(const Rows& r, int how) {
  if (r.scale) return rows_as<Combine::add, true>(r);
  with_constant((Combine)how, [&](auto constant) { rows_as<constant.value>(r); });
}

static void assign(int64_t batches, int64_t count, int64_t width, int64_t places, const int64_t* to, const char* from,
                   char* out) {
  share(batches, count, width, places, 64, [&](int64_t batch, int64_t first, int64_t end, int64_t left, int64_t right) {
    const char* source = from + batch * count * width + left;
    char* target = out + batch * places * width + left;
    size_t bytes = (size_t)(right - left);
    if (bytes == 4) {
      for (int64_t p = 0; p < count; ++p)
        if (to[p] >= first && to[p] < end) memcpy(target + to[p] * width, source + p * width, 4);
      return;
    }
    for (int64_t p = 0; p < count; ++p)
      if (to[p] >= first && to[p] < end) memcpy(target + to[p] * width, source + p * width, bytes);
  });
}

template <Combine how>
static void lines_as(const Lines& l) {
  // A part: a run of lines, each a number (o, i) of an outer and an inner coordinate.
  parallel_for(l.outer * l.inner, kGrain / (l.length + 1) + 1, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      int64_t o = begin / l.inner, left = begin % l.inner;
      int64_t right = end - begin < l.inner - left ? left + (end - begin) : l.inner;
      float* out = l.out + o * l.outer_stride;
      if (l.inner == 1) {
        const int64_t* index = l.index + o * l.length;
        const float* from = l.from + o * l.length;
        for (int64_t k = 0; k < l.length; ++k) {
          float* place = out + index[k] * l.place_stride;
          *place = combine(how, *place, from[k]);
        }
        ++begin;
        continue;
      }
      for (int64_t k = 0; k < l.length; ++k) {
        int64_t row = (o * l.length + k) * l.inner;
        for (int64_t i = left; i < right; ++i) {
          float* place = out + l.index[row + i] * l.place_stride + i;
          *place = combine(how, *place, l.from[row + i]);
        }
      }
      begin += right - left;
    }
  });
}

static void lines(const Lines& l, int how) {
  with_constant((Combine)how, [&](auto constant) { lines_as<constant.value>(l); });
}

template <int kSize>
static void assign_lines_of(const Lines& l, const char* from, char* out) {
  parallel_for(l.outer, kGrain / (l.length * l.inner + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int64_t k = 0, at = o * l.length * l.inner; k < l.length; ++k)
        for (int64_t i = 0; i < l.inner; ++i, ++at)
          memcpy(out + (o * l.outer_stride + l.index[at] * l.place_stride + i) * kSize, from + at * kSize, kSize);
  });
}

static void assign_lines(const Lines& l, int64_t size, const char* from, char* out) {
  switch (size) {
    case 1:
      return assign_lines_of<1>(l, from, out);
    case 2:
      return assign_lines_of<2>(l, from, out);
    case 4:
      return assign_lines_of<4>(l, from, out);
    case 8:
      return assign_lines_of<8>(l, from, out);
    default:
      return assign_lines_of<16>(l, from, out);
  }
}

static void dots(int64_t count, int64_t width, const float* a, const int64_t* a_row, const float* b,
                 const int64_t* b_row, float* out) {
  parallel_for(count, kGrain / (width + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) out[p] = dot_of(width, a, a_row[p], b, b_row[p]);
  });
}

static void number(int64_t count, int64_t size, const int64_t* index, const int64_t* before, int64_t* out) {
  for (int64_t p = 0; p < count; ++p) out[p] = numbered(before ? before[p] : 0, size, index[p]);
}

static bool in_range(const int64_t* index, int64_t count, int64_t lowest, int64_t end) {
  uint64_t size = (uint64_t)(end - lowest), outside = 0;
  for (int64_t p = 0; p < count; ++p) outside += (uint64_t)(index[p] - lowest) >= size ? 1 : 0;
  return outside == 0;
}

static const Scatter kTable = {rows, assign, lines, assign_lines, dots, number, in_range};

}
ES_NAMESPACE_END

ES_TABLE_IS(Scatter, scatter, kTable)
