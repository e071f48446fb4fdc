// Reductions: blocks of the reduced elements (exact/order.h) are summed side by side, and then joined pairwise. Where
// rows are reduced, 16 threads have the 16 lanes of a block; where columns are, a thread has all lanes of one.
#include "../cpu/reduce.h"

#include "../exact/reduction.h"
#include "each.h"
#include "lanes.h"

ES_NAMESPACE {

constexpr int kFew = 32;

// What is left to do: `outputs` results of `blocks` blocks each. `partial` is where those of a block go, if there are
// several: (output, block).
template <class T>
struct Work {
  int64_t outputs, length, blocks;
  T* partial;
};

template <class T>
static ES_FN void give(const Reduction& r, const Work<T>& work, int64_t output, int64_t block, T x) {
  if (work.partial)
    work.partial[output * work.blocks + block] = x;
  else
    ((T*)r.out)[offsets_of(r.kept, r.kept_axes, output).out] = x;
}

template <class T, class Op>
ES_KERNEL void ES_THREADS(kThreads) rows_kernel(Reduction r, Work<T> work) {
  const int lane = (int)threadIdx.x % (int)kLanes, halves = kThreads / (int)kLanes;
  const int64_t tasks = work.outputs * work.blocks;
  for (int64_t first = (int64_t)blockIdx.x * halves; first < tasks; first += (int64_t)gridDim.x * halves) {
    const int64_t task = first + threadIdx.x / (int)kLanes, output = task / work.blocks, block = task % work.blocks;
    T total = (T)Op::init;
    if (task < tasks) {
      const T* in = (const T*)r.in + offsets_of(r.kept, r.kept_axes, output).in;
      const int64_t start = block * kBlock, end = start + kBlock < work.length ? start + kBlock : work.length;
      if (r.reduced_axes == 1)
        for (int64_t i = start + lane; i < end; i += kLanes) total = Op::step(total, in[i * r.reduced[0].stride]);
      else
        for (int64_t i = start + lane; i < end; i += kLanes)
          total = Op::step(total, in[offsets_of(r.reduced, r.reduced_axes, i).in]);
    }
    total = join_lanes<Op>(total);
    if (lane == 0 && task < tasks) give(r, work, output, block, total);
  }
}

template <class T, class Op>
ES_KERNEL void ES_THREADS(kThreads) columns_kernel(Reduction r, Work<T> work) {
  const int64_t tasks = work.outputs * work.blocks;
  ES_EACH(task, tasks) {
    const int64_t output = task % work.outputs, block = task / work.outputs;  // neighbours read neighbours
    const T* in = (const T*)r.in + offsets_of(r.kept, r.kept_axes, output).in;
    const int64_t start = block * kBlock, end = start + kBlock < work.length ? start + kBlock : work.length;
    T lane[kLanes];
#pragma unroll
    for (int l = 0; l < (int)kLanes; ++l) lane[l] = (T)Op::init;
    for (int64_t i = start; i < end; i += kLanes)
#pragma unroll
      for (int l = 0; l < (int)kLanes; ++l)
        if (i + l < end) lane[l] = Op::step(lane[l], in[offsets_of(r.reduced, r.reduced_axes, i + l).in]);
#pragma unroll
    for (int half = (int)kLanes / 2; half > 0; half /= 2)
#pragma unroll
      for (int l = 0; l < half; ++l) lane[l] = Op::combine(lane[l], lane[l + half]);
    give(r, work, output, block, lane[0]);
  }
}

// Few blocks: a thread joins them.
template <class T, class Op>
ES_KERNEL void ES_THREADS(kThreads) join_few_kernel(Reduction r, Work<T> work) {
  ES_EACH(o, work.outputs) {
    T* x = work.partial + o * work.blocks;
    for (int64_t n = work.blocks; n > 1; n = (n + 1) / 2)
      for (int64_t i = 0; i < (n + 1) / 2; ++i) x[i] = 2 * i + 1 < n ? Op::combine(x[2 * i], x[2 * i + 1]) : x[2 * i];
    ((T*)r.out)[offsets_of(r.kept, r.kept_axes, o).out] = x[0];
  }
}

// Many: all threads of a block join them, a level at a time, to and fro between two places.
template <class T, class Op>
ES_KERNEL void ES_THREADS(kThreads) join_many_kernel(Reduction r, Work<T> work, T* other) {
  for (int64_t o = blockIdx.x; o < work.outputs; o += gridDim.x) {
    T *from = work.partial + o * work.blocks, *to = other + o * work.blocks;
    for (int64_t n = work.blocks; n > 1; n = (n + 1) / 2) {
      for (int64_t i = threadIdx.x; i < (n + 1) / 2; i += blockDim.x)
        to[i] = 2 * i + 1 < n ? Op::combine(from[2 * i], from[2 * i + 1]) : from[2 * i];
      __syncthreads();
      T* last = from;
      from = to, to = last;
    }
    if (threadIdx.x == 0) ((T*)r.out)[offsets_of(r.kept, r.kept_axes, o).out] = from[0];
  }
}

struct SquareRootOf {
  float* x;
  ES_FN void operator()(int64_t i) const { x[i] = square_root(x[i]); }
};

// A block of a line: `first` is where the line begins, its elements start .. end are `inner` apart.
struct LineBlock {
  int64_t first, start, end;
};
static ES_FN LineBlock line_block(const RunningLines& lines, int64_t blocks, int64_t task) {
  const int64_t start = task / lines.inner % blocks * kBlock, end = start + kBlock;
  return {task / lines.inner / blocks * lines.length * lines.inner + task % lines.inner, start,
          end < lines.length ? end : lines.length};
}

// Running totals, in three goes: the total of each block; the chain of those that came before each; every element.
template <class Op>
ES_KERNEL void ES_THREADS(kThreads) totals_kernel(RunningLines lines, int64_t blocks, float* totals) {
  const int64_t all = lines.outer * lines.inner * blocks;
  ES_EACH(task, all) {
    const LineBlock block = line_block(lines, blocks, task);
    float chain = Op::init;
    for (int64_t l = block.start; l < block.end; ++l)
      chain = Op::combine(chain, lines.in[block.first + l * lines.inner]);
    totals[task] = chain;
  }
}

template <class Op>
ES_KERNEL void ES_THREADS(kThreads) before_kernel(RunningLines lines, int64_t blocks, float* totals) {
  ES_EACH(at, lines.outer * lines.inner) {
    float before = Op::init;
    for (int64_t block = 0; block < blocks; ++block) {
      float* total = totals + (at / lines.inner * blocks + block) * lines.inner + at % lines.inner;
      float mine = *total;
      *total = before;
      before = Op::combine(before, mine);
    }
  }
}

template <class Op>
ES_KERNEL void ES_THREADS(kThreads) running_kernel(RunningLines lines, int64_t blocks, const float* before) {
  const int64_t all = lines.outer * lines.inner * blocks;
  ES_EACH(task, all) {
    const LineBlock block = line_block(lines, blocks, task);
    float chain = Op::init;
    for (int64_t l = block.start; l < block.end; ++l) {
      const int64_t at = block.first + l * lines.inner;
      chain = Op::combine(chain, lines.in[at]);
      lines.out[at] = Op::combine(before[task], chain);
    }
  }
}

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

template <class T, class Op>
static void reduce_all(const Reduction& r) {
  Work<T> work{volume(r.kept, r.kept_axes), volume(r.reduced, r.reduced_axes), 1, nullptr};
  if (work.outputs == 0) return;
  work.blocks = work.length > kBlock ? (work.length + kBlock - 1) / kBlock : 1;
  const size_t partials = work.blocks > 1 ? (size_t)(work.outputs * work.blocks) * sizeof(T) : 0;
  Memory partial(partials), other(work.blocks > kFew ? partials : 0);
  work.partial = partial.as<T>();
  const int64_t tasks = work.outputs * work.blocks;
  const bool columns = r.kept_axes && r.kept[r.kept_axes - 1].stride == 1 && work.outputs >= kWarp &&
                       !(r.reduced_axes && r.reduced[r.reduced_axes - 1].stride == 1);
  if (columns)
    ES_LAUNCH(blocks_for_threads(tasks), kThreads, (columns_kernel<T, Op>), r, work);
  else
    ES_LAUNCH(blocks_for_threads(tasks * kLanes), kThreads, (rows_kernel<T, Op>), r, work);
  if (work.blocks > kFew)
    ES_LAUNCH(blocks_for(work.outputs), kThreads, (join_many_kernel<T, Op>), r, work, other.as<T>());
  else if (work.blocks > 1)
    ES_LAUNCH(blocks_for_threads(work.outputs), kThreads, (join_few_kernel<T, Op>), r, work);
}

static void square_roots(float* x, int64_t count) { for_each(count, SquareRootOf{x}); }

template <class Op>
static void running(const RunningLines& lines) {
  const int64_t blocks = (lines.length + kBlock - 1) / kBlock, each = lines.outer * lines.inner, all = each * blocks;
  if (all == 0) return;
  Memory totals((size_t)all * sizeof(float));
  ES_LAUNCH(blocks_for_threads(all), kThreads, totals_kernel<Op>, lines, blocks, totals.as<float>());
  ES_LAUNCH(blocks_for_threads(each), kThreads, before_kernel<Op>, lines, blocks, totals.as<float>());
  ES_LAUNCH(blocks_for_threads(all), kThreads, running_kernel<Op>, lines, blocks, totals.as<float>());
}

static const Reduce kTable = {
    reduce_all<float, Sum>,
    reduce_all<float, SumOfNumbers>,
    reduce_all<float, SumOfMagnitudes>,
    reduce_all<float, SumOfSquares>,
    reduce_all<float, CountOfNonzeros>,
    reduce_all<float, Product>,
    reduce_all<float, Maximum>,
    reduce_all<float, Minimum>,
    reduce_all<float, MaximumMagnitude>,
    reduce_all<float, MinimumMagnitude>,
    reduce_all<double, Sum>,
    reduce_all<double, MaximumOfDoubles>,
    reduce_all<double, MinimumOfDoubles>,
    square_roots,
    running<Sum>,
    running<Product>,
};

}
ES_NAMESPACE_END

ES_TABLE_IS(Reduce, reduce_kernels, kTable)
#endif
