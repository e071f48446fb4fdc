#include "reduce.h"

#include "../exact/reduction.h"
#include "parallel.h"
#include "reduce_columns.h"
#include "reduce_lanes.h"
#include "scratch.h"

ES_NAMESPACE {

// The same operations on vectors.
static ES_FN vfloat vector_maximum(vfloat a, vfloat b) {
  vfloat larger = a > b ? a : b;
  larger = a == b ? (vfloat)((vint)a & (vint)b) : larger;
  return a != a ? a : (b != b ? b : larger);
}
static ES_FN vfloat vector_minimum(vfloat a, vfloat b) {
  vfloat smaller = a < b ? a : b;
  smaller = a == b ? (vfloat)((vint)a | (vint)b) : smaller;
  return a != a ? a : (b != b ? b : smaller);
}

struct VectorSum : Sum {};
struct VectorSumOfNumbers : SumOfNumbers {
  static ES_FN vfloat step(vfloat total, vfloat x) { return total + (x != x ? vfloat{} : x); }
};
struct VectorSumOfMagnitudes : SumOfMagnitudes {
  static ES_FN vfloat step(vfloat total, vfloat x) { return total + (vfloat)((vint)x & 0x7fffffff); }
};
struct VectorSumOfSquares : SumOfSquares {
  static ES_FN vfloat step(vfloat total, vfloat x) { return fma(x, x, total); }
};
struct VectorCountOfNonzeros : CountOfNonzeros {
  static ES_FN vfloat step(vfloat total, vfloat x) { return total + (x == 0.0f ? vfloat{} : broadcast(1)); }
};
struct VectorProduct : Product {};
struct VectorMaximum : Maximum {
  using Maximum::combine;
  static ES_FN vfloat step(vfloat total, vfloat x) { return vector_maximum(total, x); }
  static ES_FN vfloat combine(vfloat a, vfloat b) { return vector_maximum(a, b); }
};
struct VectorMinimum : Minimum {
  using Minimum::combine;
  static ES_FN vfloat step(vfloat total, vfloat x) { return vector_minimum(total, x); }
  static ES_FN vfloat combine(vfloat a, vfloat b) { return vector_minimum(a, b); }
};

// What is not there has magnitude 0, which is no larger than any.
struct VectorMaximumMagnitude : VectorMaximum {
  static constexpr float neutral = 0;
  static ES_FN vfloat step(vfloat total, vfloat x) { return vector_maximum(total, (vfloat)((vint)x & 0x7fffffff)); }
};
struct VectorMinimumMagnitude : VectorMinimum {
  static ES_FN vfloat step(vfloat total, vfloat x) { return vector_minimum(total, (vfloat)((vint)x & 0x7fffffff)); }
};

// Walks along the reduced axes in runs of the last one: `f(offset, stride, count)` for elements begin .. end.
template <class F>
static ES_FN void walk(const Reduction& r, int64_t begin, int64_t end, F f) {
  if (r.reduced_axes == 0) return f(int64_t(0), int64_t(0), end - begin);
  const Axis& last = r.reduced[r.reduced_axes - 1];
  for (int64_t i = begin; i < end;) {
    int64_t rest = last.size - i % last.size, count = rest < end - i ? rest : end - i;
    f(offsets_of(r.reduced, r.reduced_axes, i).in, last.stride, count);
    i += count;
  }
}

template <class T>
static void gather(const T* in, const Reduction& r, int64_t begin, int64_t end, T* to) {
  walk(r, begin, end, [&](int64_t offset, int64_t stride, int64_t count) {
    if (stride == 1) {
      memcpy(to, in + offset, sizeof(T) * (size_t)count);
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = in[offset + i * stride];
    }
    to += count;
  });
}

template <class Op>
static ES_FN float join_lanes(const vfloat (&lanes)[kVectors]) {
  float lane[kLanes];
  for (int v = 0; v < kVectors; ++v) store(lane + v * kWidth, lanes[v]);
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t l = 0; l < half; ++l) lane[l] = Op::combine(lane[l], lane[l + half]);
  return lane[0];
}

// K blocks of n elements each.
template <class Op, int K>
static ES_FN void contiguous_blocks(const float* const* in, int64_t n, float* out) {
  vfloat lanes[K][kVectors];
  accumulate<K>(
      n, Op::init,
      [&](vfloat* totals, int64_t at, auto part) {
        for (int k = 0; k < K; ++k) totals[k] = Op::step(totals[k], get(in[k] + at, part, Op::neutral));
      },
      lanes);
  for (int k = 0; k < K; ++k) {
    if constexpr (__is_base_of(Sum, Op))
      out[k] = add_lanes(lanes[k]);
    else
      out[k] = join_lanes<Op>(lanes[k]);
  }
}

// Blocks of all outputs as one sequence of tasks: block b of output o is task o * blocks + b. What more than one block
// gives to an output is put into `partial` (by output, then block) and joined when all are there.
template <class Op>
static void join_partials(const Reduction& r, const float* partial, int64_t outputs, int64_t blocks, int64_t by_output,
                          int64_t by_block) {
  parallel_for(outputs, 1 + 4096 / blocks, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      Pairwise<Op> total;
      for (int64_t b = 0; b < blocks; ++b) total.add(partial[o * by_output + b * by_block]);
      ((float*)r.out)[offsets_of(r.kept, r.kept_axes, o).out] = total.result();
    }
  });
}

// Each output by itself, its elements gathered where they do not lie side by side.
template <class Op>
static void by_rows(const Reduction& r, int64_t outputs, int64_t length, float* partial) {
  const float* in = (const float*)r.in;
  float* out = (float*)r.out;
  int64_t blocks = (length + kBlock - 1) / kBlock;
  bool contiguous = r.reduced_axes == 1 && r.reduced[0].stride == 1;
  int64_t most = length < kBlock ? length : kBlock;
  parallel_for(outputs * blocks, 1 + 32768 / most, [&](int64_t begin, int64_t end) {
    alignas(64) float scratch[4][kBlock];
    const float* from[4];
    float* to[4];
    int64_t count[4];
    for (int64_t task = begin; task < end;) {
      int ready = 0;
      for (; ready < 4 && task + ready < end; ++ready) {
        int64_t o = (task + ready) / blocks, start = (task + ready) % blocks * kBlock;
        Offsets kept = offsets_of(r.kept, r.kept_axes, o);
        count[ready] = length - start < kBlock ? length - start : kBlock;
        if (ready && count[ready] != count[0]) break;
        from[ready] = in + kept.in + start;
        if (!contiguous) {
          gather(in + kept.in, r, start, start + count[ready], scratch[ready]);
          from[ready] = scratch[ready];
        }
        to[ready] = partial ? partial + task + ready : out + kept.out;
      }
      float total[4];
      if (ready == 4) {
        contiguous_blocks<Op, 4>(from, count[0], total);
      } else {
        for (int k = 0; k < ready; ++k) contiguous_blocks<Op, 1>(from + k, count[0], total + k);
      }
      for (int k = 0; k < ready; ++k) *to[k] = total[k];
      task += ready;
    }
  });
  if (partial) join_partials<Op>(r, partial, outputs, blocks, blocks, 1);
}

// Where the last kept axis is contiguous: its outputs side by side.
template <class Op>
static void by_columns(const Reduction& r, int64_t outputs, int64_t length, float* partial) {
  using Lanes = ColumnLanes<1>;
  const float* in = (const float*)r.in;
  float* out = (float*)r.out;
  const Axis& last = r.kept[r.kept_axes - 1];
  int64_t blocks = (length + kBlock - 1) / kBlock, strips = (last.size + Lanes::kColumns - 1) / Lanes::kColumns;
  int64_t width = (last.size + strips - 1) / strips, most = length < kBlock ? length : kBlock;
  width = (width + 15) / 16 * 16;
  parallel_for(outputs / last.size * blocks * strips, 1 + 32768 / (most * width), [&](int64_t begin, int64_t end) {
    alignas(64) float result[Lanes::kColumns];
    Lanes lanes;
    int64_t row[kBlock], first = -1;  // where the rows of the block that begins at `first` are
    for (int64_t task = begin; task < end; ++task) {
      int64_t outer = task / strips / blocks, start = task / strips % blocks * kBlock, column = task % strips * width;
      int64_t columns = last.size - column < width ? last.size - column : width;
      int64_t rows = length - start < kBlock ? length - start : kBlock;
      if (columns <= 0) continue;
      if (first != start) {
        int64_t* to = row;
        walk(r, start, start + rows, [&](int64_t offset, int64_t stride, int64_t count) {
          for (int64_t i = 0; i < count; ++i) *to++ = offset + i * stride;
        });
        first = start;
      }
      Offsets kept = offsets_of(r.kept, r.kept_axes - 1, outer);
      const float* from = in + kept.in + column;
      float* to = partial ? partial + task / strips * last.size + column : result;
      accumulate_columns<1, Op>(
          lanes, rows, columns, Op::init,
          [&](vfloat* total, int64_t i, int64_t at, auto part) {
            *total = Op::step(*total, get(from + row[i] + at, part, Op::neutral));
          },
          {to});
      if (!partial)
        for (int64_t c = 0; c < columns; ++c) out[kept.out + (column + c) * last.out] = result[c];
    }
  });
  if (!partial) return;
  for (int64_t outer = 0; outer < outputs / last.size; ++outer) {
    Reduction one = r;
    one.out = out + offsets_of(r.kept, r.kept_axes - 1, outer).out;
    one.kept_axes = 1;
    one.kept[0] = last;
    join_partials<Op>(one, partial + outer * blocks * last.size, last.size, blocks, 1, last.size);
  }
}

template <class Op>
static void reduce_all(const Reduction& r) {
  int64_t outputs = volume(r.kept, r.kept_axes), length = volume(r.reduced, r.reduced_axes);
  if (outputs == 0) return;
  if (length == 0) {
    for (int64_t o = 0; o < outputs; ++o) ((float*)r.out)[offsets_of(r.kept, r.kept_axes, o).out] = Op::init;
    return;
  }
  Scratch hold(length > kBlock ? outputs * ((length + kBlock - 1) / kBlock) : 0);
  float* partial = length > kBlock ? hold.data() : nullptr;
  bool columns = r.kept_axes && r.kept[r.kept_axes - 1].stride == 1 && r.kept[r.kept_axes - 1].size >= kWidth;
  if (columns)
    by_columns<Op>(r, outputs, length, partial);
  else
    by_rows<Op>(r, outputs, length, partial);
}

// `f(out, length, x)` for each output, where x(i), for ascending i, is element i.
template <class F>
static ES_FN void each_of_doubles(const Reduction& r, F f) {
  int64_t outputs = volume(r.kept, r.kept_axes), length = volume(r.reduced, r.reduced_axes);
  parallel_for(outputs, 1 + 4096 / (length + 1), [&](int64_t begin, int64_t end) {
    double block[kBlock];
    for (int64_t o = begin; o < end; ++o) {
      Offsets kept = offsets_of(r.kept, r.kept_axes, o);
      const double* in = (const double*)r.in + kept.in;
      f(((double*)r.out)[kept.out], length, [&](int64_t i) {
        if (i % kBlock == 0) gather(in, r, i, length - i < kBlock ? length : i + kBlock, block);
        return block[i % kBlock];
      });
    }
  });
}

static void sum_of_doubles(const Reduction& r) {
  each_of_doubles(r, [](double& out, int64_t length, auto x) {
    out = reduce<double>(length, [&](double total, int64_t i) { return total + x(i); });
  });
}

template <class Op>
static void extreme_of_doubles(const Reduction& r) {
  each_of_doubles(r, [](double& out, int64_t length, auto x) {
    out = Op::init;
    for (int64_t i = 0; i < length; ++i) out = Op::step(out, x(i));
  });
}

static void square_roots(float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = square_root(x[i]);
}

template <class Op>
static void running(const RunningLines& lines) {
  parallel_for(lines.outer * lines.inner, 1 + 16384 / (lines.length + 1), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      int64_t first = at / lines.inner * lines.length * lines.inner + at % lines.inner;
      Running<float> total(Op::init);
      for (int64_t l = 0; l < lines.length; ++l) {
        int64_t i = first + l * lines.inner;
        lines.out[i] = total.next(lines.in[i], Op::init, [](float a, float b) { return Op::combine(a, b); });
      }
    }
  });
}

static const Reduce kTable = {
    reduce_all<VectorSum>,
    reduce_all<VectorSumOfNumbers>,
    reduce_all<VectorSumOfMagnitudes>,
    reduce_all<VectorSumOfSquares>,
    reduce_all<VectorCountOfNonzeros>,
    reduce_all<VectorProduct>,
    reduce_all<VectorMaximum>,
    reduce_all<VectorMinimum>,
    reduce_all<VectorMaximumMagnitude>,
    reduce_all<VectorMinimumMagnitude>,
    sum_of_doubles,
    extreme_of_doubles<MaximumOfDoubles>,
    extreme_of_doubles<MinimumOfDoubles>,
    square_roots,
    running<Sum>,
    running<Product>,
};

}
ES_NAMESPACE_END

ES_TABLE_IS(Reduce, reduce_kernels, kTable)
