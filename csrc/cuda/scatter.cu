// Values put together where an index says: positions are sorted by their places, and a thread goes through all that meet
// in a column of a place. Lines that are short, or so many that each may have a thread of its own, are not sorted.
#include "../cpu/scatter.h"

#include "each.h"
#include "first.h"
#include "sorted.h"

ES_NAMESPACE {

constexpr int kAhead = 8;                 // values that are read before the first is added
constexpr int64_t kWide = 192;            // from here on a block has columns of one row, else threads have any
constexpr int64_t kShort = 64;            // a line that a thread may have alone
constexpr int64_t kManyLines = 1 << 14;   // or any, if there are so many

template <Combine how, bool scaled>
static ES_FN float step(float held, float scale, float x) {
  return scaled ? add_scaled(held, scale, x) : combine(how, held, x);
}

// All that goes to a column of the place of sorted position `first`, which begins its run.
template <Combine how, bool scaled>
static ES_FN void put_together(const Rows& r, const ByPlace& sorted, int64_t batch, int64_t first, int64_t column) {
  const int64_t place = sorted.keys[first];
  const float* from = r.from + (r.source ? 0 : batch * r.count * r.width) + column;
  float* out = r.out + (batch * r.places + place) * r.width + column;
  float held = *out;
  int64_t j = first;
  for (; j + kAhead <= r.count && sorted.keys[j + kAhead - 1] == place; j += kAhead) {
    float x[kAhead], scale[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int64_t p = sorted.positions[j + a];
      x[a] = from[(r.source ? r.source[p] : p) * r.width];
      scale[a] = scaled ? r.scale[p] : 1;
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) held = step<how, scaled>(held, scale[a], x[a]);
  }
  for (; j < r.count && sorted.keys[j] == place; ++j) {
    const int64_t p = sorted.positions[j];
    held = step<how, scaled>(held, scaled ? r.scale[p] : 1, from[(r.source ? r.source[p] : p) * r.width]);
  }
  *out = held;
}

template <Combine how, bool scaled>
ES_KERNEL void ES_THREADS(kThreads) wide_kernel(Rows r, ByPlace sorted) {
  const int64_t parts = (r.width + kThreads - 1) / kThreads, tasks = r.batches * r.count * parts;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t first = task / parts % r.count, column = task % parts * kThreads + threadIdx.x;
    if (column < r.width && sorted.keys[first] < r.places && sorted.begins(first))
      put_together<how, scaled>(r, sorted, task / parts / r.count, first, column);
  }
}

template <Combine how, bool scaled>
struct Narrow {
  Rows r;
  ByPlace sorted;
  ES_FN void operator()(int64_t at) const {
    const int64_t first = at / r.width % r.count;
    if (sorted.keys[first] < r.places && sorted.begins(first))
      put_together<how, scaled>(r, sorted, at / r.width / r.count, first, at % r.width);
  }
};

// Rows of units of the same size: the last one that goes to a place stays.
template <class Unit>
struct Assign {
  int64_t count, width, places;
  ByPlace sorted;
  const Unit* from;
  Unit* out;
  ES_FN void operator()(int64_t at) const {
    const int64_t batch = at / width / count, j = at / width % count, place = sorted.keys[j];
    if (place < places && sorted.ends(j, count))
      out[(batch * places + place) * width + at % width] =
          from[(batch * count + sorted.positions[j]) * width + at % width];
  }
};

template <Combine how>
struct LineOf {
  Lines l;
  ES_FN void operator()(int64_t line) const {
    const int64_t o = line / l.inner, i = line % l.inner;
    float* out = l.out + o * l.outer_stride + i;
    for (int64_t k = 0; k < l.length; ++k) {
      const int64_t at = (o * l.length + k) * l.inner + i;
      float* place = out + l.index[at] * l.place_stride;
      *place = combine(how, *place, l.from[at]);
    }
  }
};

struct DotOf {
  int64_t width;
  const float* a;
  const int64_t* a_row;
  const float* b;
  const int64_t* b_row;
  float* out;
  ES_FN void operator()(int64_t p) const {
    out[p] = dot_of(width, a, a_row[p], b, b_row[p]);
  }
};

// Every element of the lines' output is a place.
struct CellOf {
  Lines l;
  ES_FN int64_t operator()(int64_t p) const {
    return p / l.inner / l.length * l.outer_stride + l.index[p] * l.place_stride + p % l.inner;
  }
};

struct NumberOf {
  int64_t size;
  const int64_t *index, *before;
  int64_t* out;
  ES_FN void operator()(int64_t p) const { out[p] = numbered(before ? before[p] : 0, size, index[p]); }
};

struct Outside {
  const int64_t* index;
  int64_t lowest;
  uint64_t size;
  ES_FN bool operator()(int64_t p) const { return (uint64_t)(index[p] - lowest) >= size; }
};

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

template <Combine how, bool scaled>
static void put_rows(const Rows& r, const ByPlace& sorted) {
  const int64_t parts = (r.width + kThreads - 1) / kThreads, rows = r.batches * r.count;
  if (r.width >= kWide)
    ES_LAUNCH(blocks_for(rows * parts), kThreads, (wide_kernel<how, scaled>), r, sorted);
  else
    for_each(rows * r.width, Narrow<how, scaled>{r, sorted});
}

static void put_rows(const Rows& r, const ByPlace& sorted, int how) {
  if (r.batches * r.count * r.width == 0) return;
  if (r.scale) return put_rows<Combine::add, true>(r, sorted);
  with_constant((Combine)how, [&](auto constant) { put_rows<constant.value, false>(r, sorted); });
}

static void rows(const Rows& r, int how) {
  const Sorted sorted(r.count, (uint64_t)r.places, PlaceOf{r.to, r.places});
  put_rows(r, sorted.by_place, how);
}

template <class Unit>
static void assign_units(int64_t batches, int64_t count, int64_t bytes, int64_t places, const ByPlace& sorted,
                         const char* from, char* out) {
  const int64_t width = bytes / (int64_t)sizeof(Unit);
  for_each(batches * count * width, Assign<Unit>{count, width, places, sorted, (const Unit*)from, (Unit*)out});
}

static void assign_sorted(int64_t batches, int64_t count, int64_t width, int64_t places, const ByPlace& sorted,
                          const char* from, char* out) {
  if (((uintptr_t)from | (uintptr_t)out | (uintptr_t)width) % 4 == 0)
    assign_units<uint32_t>(batches, count, width, places, sorted, from, out);
  else
    assign_units<uint8_t>(batches, count, width, places, sorted, from, out);
}

static void assign(int64_t batches, int64_t count, int64_t width, int64_t places, const int64_t* to, const char* from,
                   char* out) {
  if (batches * count * width == 0) return;
  const Sorted sorted(count, (uint64_t)places, PlaceOf{to, places});
  assign_sorted(batches, count, width, places, sorted.by_place, from, out);
}

static void assign_lines(const Lines& l, int64_t size, const char* from, char* out) {
  const int64_t count = l.outer * l.length * l.inner, cells = l.outer * l.outer_stride;
  if (count == 0) return;
  const Sorted sorted(count, (uint64_t)cells, CellOf{l});
  assign_sorted(1, count, size, cells, sorted.by_place, from, out);
}

static void lines(const Lines& l, int how) {
  const int64_t lines = l.outer * l.inner, count = lines * l.length;
  if (count == 0) return;
  if (l.length > kShort && lines < kManyLines) {
    const int64_t cells = l.outer * l.outer_stride;
    const Sorted sorted(count, (uint64_t)cells, CellOf{l});
    return put_rows({1, count, 1, cells, nullptr, nullptr, l.from, nullptr, l.out}, sorted.by_place, how);
  }
  with_constant((Combine)how, [&](auto constant) { for_each(lines, LineOf<constant.value>{l}); });
}

static void dots(int64_t count, int64_t width, const float* a, const int64_t* a_row, const float* b,
                 const int64_t* b_row, float* out) {
  for_each(count, DotOf{width, a, a_row, b, b_row, out});
}

static void number(int64_t count, int64_t size, const int64_t* index, const int64_t* before, int64_t* out) {
  for_each(count, NumberOf{size, index, before, out});
}

static bool in_range(const int64_t* index, int64_t count, int64_t lowest, int64_t end) {
  return first_where(count, Outside{index, lowest, (uint64_t)(end - lowest)}) >= count;
}

static const Scatter kTable = {rows, assign, lines, assign_lines, dots, number, in_range};

}
ES_NAMESPACE_END

ES_TABLE_IS(Scatter, scatter, kTable)
#endif
