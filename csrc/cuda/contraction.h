// Contractions: every result is a chain of fma over a chunk of k and a tree over chunks, as exact/order.h says. A block
// computes a tile of results, each of its threads some of them, from tiles of both operands in shared memory, of which the
// next is loaded meanwhile. Where a block stops along k is free, since segments are aligned parts of that tree.
//
// What is contracted is an Operation: m x n results for each of a batch, and
//   float left(batch, i, k), float right(batch, k, j);  left_along_k(), right_along_k(): whether neighbours lie along k
//   void store(batch, i, j, sum)
#pragma once

#include "../exact/order.h"
#include "device.h"

ES_NAMESPACE {

constexpr int kDepth = 8;  // of the tiles in shared memory, along k
static_assert(kChunk % kDepth == 0);

// A tile of kM x kN results, kTm x kTn to a thread, which has them as groups of four rows and four columns.
template <int kM_, int kN_, int kTm_, int kTn_>
struct Tile {
  static constexpr int kM = kM_, kN = kN_, kTm = kTm_, kTn = kTn_;
  static constexpr int kAcross = kN / kTn, kThreads = kM / kTm * kAcross;
  static constexpr int kLoadsA = kM * kDepth / kThreads, kLoadsB = kN * kDepth / kThreads;
  // Rows in shared memory: four apart from a multiple of 32, so that neighbours along k are in other banks.
  static constexpr int kRowA = kM + 4, kRowB = kN + 4;
  static_assert(kM * kDepth % kThreads == 0 && kN * kDepth % kThreads == 0 && kTm % 4 == 0 && kTn % 4 == 0);

  static ES_FN int row(int thread, int i) { return (i / 4) * (kM / (kTm / 4)) + thread / kAcross * 4 + i % 4; }
  static ES_FN int column(int thread, int j) { return (j / 4) * (kN / (kTn / 4)) + thread % kAcross * 4 + j % 4; }
};

// How the work is cut: into tiles, and along k into segments of a power of two of chunks.
struct Cut {
  int64_t m_tiles, n_tiles, segments, length, tasks;
  float* partials;  // (batch, segment, m, n), where there are several segments
};

constexpr int kMostLevels = 6;  // chunks of a segment: up to 32

// One element of a tile that lies in memory along k or across it.
struct InTile {
  int k, across;
};
template <int kAcross, int kThreads>
static ES_FN InTile in_tile(int load, int thread, bool along_k) {
  int number = thread + load * kThreads;
  return along_k ? InTile{number % kDepth, number / kDepth} : InTile{number / kAcross, number % kAcross};
}

template <class Operation, class Of>
ES_KERNEL void ES_THREADS(Of::kThreads) contraction_kernel(Operation op, Cut cut) {
  ES_SHARED(float, tiles_a, 2 * kDepth * Of::kRowA);
  ES_SHARED(float, tiles_b, 2 * kDepth * Of::kRowB);
  const int thread = (int)threadIdx.x;
  const bool a_along_k = op.left_along_k(), b_along_k = op.right_along_k();

  for (int64_t task = blockIdx.x; task < cut.tasks; task += gridDim.x) {
    const int64_t column = task % cut.n_tiles * Of::kN, row = task / cut.n_tiles % cut.m_tiles * Of::kM;
    const int64_t part = task / cut.n_tiles / cut.m_tiles, segment = part % cut.segments, batch = part / cut.segments;
    const int64_t begin = segment * cut.length, end = begin + cut.length < op.k ? begin + cut.length : op.k;

    float next_a[Of::kLoadsA], next_b[Of::kLoadsB];
    auto load = [&](int64_t k) {
      for (int i = 0; i < Of::kLoadsA; ++i) {
        InTile at = in_tile<Of::kM, Of::kThreads>(i, thread, a_along_k);
        bool there = row + at.across < op.m && k + at.k < end;
        next_a[i] = there ? op.left(batch, row + at.across, k + at.k) : 0.0f;
      }
      for (int i = 0; i < Of::kLoadsB; ++i) {
        InTile at = in_tile<Of::kN, Of::kThreads>(i, thread, b_along_k);
        bool there = column + at.across < op.n && k + at.k < end;
        next_b[i] = there ? op.right(batch, k + at.k, column + at.across) : 0.0f;
      }
    };
    auto put = [&](int buffer) {
      for (int i = 0; i < Of::kLoadsA; ++i) {
        InTile at = in_tile<Of::kM, Of::kThreads>(i, thread, a_along_k);
        tiles_a[(buffer * kDepth + at.k) * Of::kRowA + at.across] = next_a[i];
      }
      for (int i = 0; i < Of::kLoadsB; ++i) {
        InTile at = in_tile<Of::kN, Of::kThreads>(i, thread, b_along_k);
        tiles_b[(buffer * kDepth + at.k) * Of::kRowB + at.across] = next_b[i];
      }
    };

    float sum[Of::kTm][Of::kTn] = {};
    float level[kMostLevels][Of::kTm][Of::kTn];  // as PairwiseSum, for all results of this thread
    int height = 0;
    uint32_t chunks = 0;
    int buffer = 0;
    if (begin < end) {
      load(begin);
      put(0);
    }
    __syncthreads();
    for (int64_t k = begin; k < end; k += kDepth) {
      const bool more = k + kDepth < end;
      if (more) load(k + kDepth);
      auto steps = [&](int depth) {
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
          if (d >= depth) break;  // a zero that is added would change -0
          float left[Of::kTm], right[Of::kTn];
          for (int i = 0; i < Of::kTm; i += 4)
            load_four(left + i, tiles_a, (buffer * kDepth + d) * Of::kRowA + Of::row(thread, i));
          for (int j = 0; j < Of::kTn; j += 4)
            load_four(right + j, tiles_b, (buffer * kDepth + d) * Of::kRowB + Of::column(thread, j));
          for (int i = 0; i < Of::kTm; ++i)
            for (int j = 0; j < Of::kTn; ++j) sum[i][j] = fma(left[i], right[j], sum[i][j]);
        }
      };
      if (k + kDepth <= end)
        steps(kDepth);
      else
        steps((int)(end - k));
      if ((k + kDepth) % kChunk == 0 && more) {  // a chunk is done, and another comes
        int keep = height;
        for (uint32_t rest = chunks++; rest & 1; rest >>= 1) {
          --keep;
          for (int i = 0; i < Of::kTm; ++i)
            for (int j = 0; j < Of::kTn; ++j) sum[i][j] = level[keep][i][j] + sum[i][j];
        }
        for (int i = 0; i < Of::kTm; ++i)
          for (int j = 0; j < Of::kTn; ++j) level[keep][i][j] = sum[i][j], sum[i][j] = 0;
        height = keep + 1;
      }
      if (more) put(buffer ^ 1);
      buffer ^= 1;
      __syncthreads();
    }
    for (int at = height - 1; at >= 0; --at)
      for (int i = 0; i < Of::kTm; ++i)
        for (int j = 0; j < Of::kTn; ++j) sum[i][j] = level[at][i][j] + sum[i][j];

    for (int i = 0; i < Of::kTm; ++i)
      for (int j = 0; j < Of::kTn; ++j) {
        int64_t y = row + Of::row(thread, i), x = column + Of::column(thread, j);
        if (y >= op.m || x >= op.n) continue;
        if (cut.segments == 1)
          op.store(batch, y, x, sum[i][j]);
        else
          cut.partials[(part * op.m + y) * op.n + x] = sum[i][j];
      }
  }
}

template <class Operation>
ES_KERNEL void ES_THREADS(kThreads) join_kernel(Operation op, Cut cut) {
  const int64_t each = op.m * op.n;
  ES_EACH(at, op.batch * each) {
    int64_t batch = at / each, element = at % each;
    PairwiseSum<float, 32> all;
    for (int64_t s = 0; s < cut.segments; ++s) all.add(cut.partials[(batch * cut.segments + s) * each + element]);
    op.store(batch, element / op.n, element % op.n, all.result());
  }
}

#if ES_HOST

template <class Of, class Operation>
static void contract_by(const Operation& op) {
  const int64_t chunks = (op.k + kChunk - 1) / kChunk;
  Cut cut{(op.m + Of::kM - 1) / Of::kM, (op.n + Of::kN - 1) / Of::kN, 1, 0, 0, nullptr};
  const int64_t tiles = cut.m_tiles * cut.n_tiles * op.batch;
  int64_t most = settings().segment ? settings().segment : 32;
  if (!settings().segment)  // few tiles: more blocks along k
    while (most > 1 && tiles * ((chunks + most - 1) / most) < 256) most /= 2;
  int64_t segment = 1;
  while (2 * segment <= most && segment < 32) segment *= 2;
  cut.segments = chunks > segment ? (chunks + segment - 1) / segment : 1;
  cut.length = segment * kChunk;
  cut.tasks = tiles * cut.segments;
  Memory partials(cut.segments > 1 ? (size_t)(op.batch * cut.segments * op.m * op.n) * sizeof(float) : 0);
  cut.partials = partials.as<float>();
  ES_LAUNCH(blocks_for(cut.tasks), Of::kThreads, (contraction_kernel<Operation, Of>), op, cut);
  if (cut.segments > 1)
    ES_LAUNCH(blocks_for_threads(op.batch * op.m * op.n), kThreads, join_kernel<Operation>, op, cut);
}

template <class Operation>
static void contract_all(const Operation& op) {
  if (op.batch == 0 || op.m == 0 || op.n == 0) return;
  int tile = settings().tile;
  if (!tile) tile = op.m >= 96 && op.n >= 96 ? 1 : (op.m >= 48 && op.n >= 48 ? 2 : 3);
  if (tile == 1) return contract_by<Tile<128, 128, 8, 8>>(op);
  if (tile == 2) return contract_by<Tile<64, 64, 8, 8>>(op);
  contract_by<Tile<32, 32, 4, 4>>(op);
}

#endif

}
ES_NAMESPACE_END
