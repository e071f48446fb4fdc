#include "gemm.h"

#include "../exact/product.h"
#include "gemm_thin.h"
#include "parallel.h"

ES_NAMESPACE {

// A matrix of the batch.
template <class T>
struct View {
  T* data;
  int64_t row, column;
  ES_FN T& at(int64_t i, int64_t j) const { return data[i * row + j * column]; }
};

template <class T>
ES_FN View<T> view(const Matrix& m, int64_t x) {
  return {(T*)m.data + x * m.batch, m.row, m.column};
}

// Where sums become elements of the output.
template <class T>
struct Epilogue {
  View<T> out, c;
  float alpha, beta;

  float* direct(int64_t, int64_t, int64_t*) const { return nullptr; }
  ES_FN void element(float sum, int64_t i, int64_t j) const {
    out.at(i, j) = narrow<T>(scale_and_add(sum, alpha, beta, beta == 0 ? 0 : widen(c.at(i, j))));
  }
  void finish(const float* sums, int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) element(sums[i * kColumns + j], row + i, column + j);
  }
};

template <>
float* Epilogue<float>::direct(int64_t i, int64_t j, int64_t* out_row) const {
  if (alpha != 1 || beta != 0 || out.column != 1) return nullptr;
  *out_row = out.row;
  return &out.at(i, j);
}

template <>
void Epilogue<float>::finish(const float* sums, int64_t row, int64_t rows, int64_t column, int64_t columns) const {
  if (out.column != 1 || (beta != 0 && c.column != 1)) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) element(sums[i * kColumns + j], row + i, column + j);
    return;
  }
  for (int64_t i = 0; i < rows; ++i, sums += kColumns)
    for (int64_t j = 0; j < columns; j += kWidth) {
      const int64_t count = columns - j < kWidth ? columns - j : kWidth;
      vfloat scaled = broadcast(alpha) * load(sums + j);
      if (beta != 0) scaled = fma(broadcast(beta), load_some(&c.at(row + i, column + j), count), scaled);
      store_some(&out.at(row + i, column + j), scaled, count);
    }
}

// Sums as they are, for a later addition.
struct Partial {
  float* data;
  int64_t row;
  float* direct(int64_t i, int64_t j, int64_t* out_row) const {
    *out_row = row;
    return data + i * row + j;
  }
  void finish(const float* sums, int64_t i, int64_t rows, int64_t j, int64_t columns) const {
    for (int64_t r = 0; r < rows; ++r) memcpy(data + (i + r) * row + j, sums + r * kColumns, columns * sizeof(float));
  }
};

template <class T>
struct Problem {
  int64_t m, n, k;
  View<const T> a, b;
  Epilogue<T> end;
};

// How many multiplications are worth another thread.
constexpr int64_t kWorthwhile = 1 << 17;

// With no k at all.
template <class T>
static void nothing(const Problem<T>& p) {
  for (int64_t i = 0; i < p.m; ++i)
    for (int64_t j = 0; j < p.n; ++j) p.end.element(0, i, j);
}

// The sums over some chunks for a part of the output, by this thread.
template <class T, class Sink>
static void part(const Problem<T>& p, const Sink& sink, Range rows, Range columns, Range chunks) {
  if (rows.size() <= 0 || columns.size() <= 0) return;
  const LeftMatrix<T> left{p.a.data, p.a.row, p.a.column};
  const RightMatrix<T> right{p.b.data, p.b.row, p.b.column};
  if (p.m == 1 && p.n == 1)
    inner_product(p.a.data, p.a.column, p.b.data, p.b.row, sink, chunks, p.k);
  else if (is_thin(p.m, right))
    thin(p.m, left, right, sink, columns, chunks, p.k);
  else
    blocks(left, right, sink, rows, columns, chunks, p.k);
}

// Threads take parts of the chunks: whole nodes of the tree over them, which are added up in the end.
template <class T>
static void split_chunks(const Problem<T>& p, int64_t node) {
  const int64_t chunks = pieces(p.k, kChunk), nodes = pieces(chunks, node), size = p.m * p.n;
  Scratch hold(nodes * size);
  float* partial = hold.data();
  parallel_for(nodes, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t to = (i + 1) * node;
      part(p, Partial{partial + i * size, p.n}, {0, p.m}, {0, p.n}, {i * node, to < chunks ? to : chunks});
    }
  });
  // In rounds, as it is defined; neighbours are `apart` from each other.
  parallel_for(size, kWorthwhile / 16, [&](int64_t begin, int64_t end) {
    for (int64_t apart = 1; apart < nodes; apart *= 2)
      for (int64_t i = 0; i + apart < nodes; i += 2 * apart) {
        float *to = partial + i * size, *from = to + apart * size;
        for (int64_t x = begin; x < end; ++x) to[x] = to[x] + from[x];
      }
    for (int64_t x = begin; x < end; ++x) p.end.element(partial[x], x / p.n, x % p.n);
  });
}

template <class T>
static void multiply(const Problem<T>& p, int64_t threads) {
  if (p.k == 0) return nothing(p);
  const Range rows{0, p.m}, columns{0, p.n}, chunks{0, pieces(p.k, kChunk)};
  if (threads == 1) return part(p, p.end, rows, columns, chunks);
  const int64_t row_panels = pieces(p.m, kRows), column_panels = pieces(p.n, kColumns);
  if (row_panels * column_panels < 8 * threads && chunks.size() >= 4 * threads) {
    int64_t node = 1;
    while (pieces(chunks.size(), 2 * node) >= 8 * threads) node *= 2;
    return split_chunks(p, node);
  }
  // The fewest tiles for the thread that has most, then the least to be packed.
  const bool thin = p.m <= kThinRows;
  int64_t best = -1, across = 1;
  for (int64_t t = 1; t <= (thin ? 1 : threads); ++t) {
    if (threads % t) continue;
    int64_t cost = pieces(row_panels, t) * pieces(column_panels, threads / t) * 32 + pieces(row_panels, t) +
                   pieces(column_panels, threads / t);
    if (best < 0 || cost < best) best = cost, across = t;
  }
  const int64_t along = threads / across;
  parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      part(p, p.end, rows.part(t / along, across, kRows), columns.part(t % along, along, kColumns), chunks);
  });
}

template <class T>
static Problem<T> problem(const Product& p, int64_t x) {
  View<const T> a = view<const T>(p.a, x), b = view<const T>(p.b, x);
  View<T> c = view<T>(p.c, x), out = view<T>(p.out, x);
  // The transposed problem, where its output is the one with contiguous rows, or it has few of them.
  if (p.m > kThinRows ? out.column != 1 && out.row == 1 || p.n <= kThinRows : out.column != 1 && p.n <= p.m)
    return {p.n, p.m, p.k, {b.data, b.column, b.row}, {a.data, a.column, a.row},
            {{out.data, out.column, out.row}, {c.data, c.column, c.row}, p.alpha, p.beta}};
  return {p.m, p.n, p.k, a, b, {out, c, p.alpha, p.beta}};
}

template <class T>
static void typed(const Product& p) {
  if (p.m == 0 || p.n == 0 || p.batch == 0) return;
  const int64_t work = p.m * p.n * p.k;
  int64_t threads = parallel_width();
  if (work * p.batch <= kWorthwhile) threads = 1;
  if (p.batch >= threads) {
    const int64_t grain = 1 + kWorthwhile / (work + 1);
    parallel_for(p.batch, threads == 1 ? p.batch : grain, [&](int64_t begin, int64_t end) {
      for (int64_t x = begin; x < end; ++x) multiply(problem<T>(p, x), p.batch == 1 ? threads : 1);
    });
  } else {
    for (int64_t x = 0; x < p.batch; ++x) multiply(problem<T>(p, x), threads);
  }
}

static void product(const Product& p) {
  switch (p.element) {
    case Element::f32:
      return typed<float>(p);
    case Element::bf16:
      return typed<bf16>(p);
    case Element::fp16:
      return typed<fp16>(p);
  }
}

static const Gemm kTable = {product};

}
ES_NAMESPACE_END

ES_TABLE_IS(Gemm, gemm, kTable)
