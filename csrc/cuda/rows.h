// What the threads of a block do together for a row: sums in the order of exact/order.h, and the largest element.
#pragma once

#include "../exact/reduction.h"
#include "lanes.h"

ES_NAMESPACE {

constexpr int kGroups = kThreads / (int)kLanes;
constexpr int64_t kTogether = 1024;  // blocks of a row that are joined in shared memory: an aligned part of the tree

// `kSums` sums over i < length, of which `step(totals, i)` adds element i to all. Every thread gets them. `place` is shared
// memory of kSums * kTogether floats.
template <int kSums, class Place, class Step>
static ES_DEVICE void sum_row(int64_t length, Place& place, Step step, float* out) {
  const int thread = (int)threadIdx.x, lane = thread % (int)kLanes, group = thread / (int)kLanes;
  PairwiseSum<float, 24> parts[kSums];
  for (int64_t first = 0; first * kBlock < length; first += kTogether) {
    const int64_t rest = (length - first * kBlock + kBlock - 1) / kBlock, blocks = rest < kTogether ? rest : kTogether;
    for (int64_t at = group; at < (blocks + kGroups - 1) / kGroups * kGroups; at += kGroups) {  // all, for the warp
      float totals[kSums] = {};
      const int64_t start = (first + at) * kBlock, end = start + kBlock < length ? start + kBlock : length;
      if (at < blocks)
        for (int64_t i = start + lane; i < end; i += kLanes) step(totals, i);
      for (int s = 0; s < kSums; ++s) {
        const float total = join_lanes<Sum>(totals[s]);
        if (lane == 0 && at < blocks) place[s * kTogether + at] = total;
      }
    }
    __syncthreads();
    for (int64_t n = blocks; n > 1; n = (n + 1) / 2) {
      constexpr int kEach = (int)(kTogether / 2 / kThreads);
      float joined[kSums][kEach];
      for (int e = 0; e < kEach; ++e) {
        const int64_t i = thread + e * kThreads;
        for (int s = 0; s < kSums; ++s) {
          joined[s][e] = 0;
          if (2 * i < n) joined[s][e] = place[s * kTogether + 2 * i];
          if (2 * i + 1 < n) joined[s][e] = joined[s][e] + place[s * kTogether + 2 * i + 1];
        }
      }
      __syncthreads();
      for (int e = 0; e < kEach; ++e) {
        const int64_t i = thread + e * kThreads;
        for (int s = 0; s < kSums; ++s)
          if (2 * i < n) place[s * kTogether + i] = joined[s][e];
      }
      __syncthreads();
    }
    for (int s = 0; s < kSums; ++s) parts[s].add(place[s * kTogether]);
    __syncthreads();
  }
  for (int s = 0; s < kSums; ++s) out[s] = parts[s].result();
}

// The same for one thread, which has the row alone.
template <int kSums, class Step>
static ES_FN void sum_alone(int64_t length, Step step, float* out) {
  PairwiseSum<float, 32> blocks[kSums];
  for (int64_t start = 0; start < length; start += kBlock) {
    const int64_t end = start + kBlock < length ? start + kBlock : length;
    float lane[kLanes][kSums] = {};
    for (int64_t i = start; i < end; i += kLanes)
#pragma unroll
      for (int l = 0; l < (int)kLanes; ++l)
        if (i + l < end) step(lane[l], i + l);
    for (int s = 0; s < kSums; ++s) {
      float mine[kLanes];
#pragma unroll
      for (int l = 0; l < (int)kLanes; ++l) mine[l] = lane[l][s];
      blocks[s].add(sum_lanes(mine));
    }
  }
  for (int s = 0; s < kSums; ++s) out[s] = blocks[s].result();
}

// The largest x(i); NaN is passed over. Every thread gets it.
template <class Place, class X>
static ES_DEVICE float largest_of_row(int64_t length, Place& place, X x) {
  const int thread = (int)threadIdx.x;
  float most = -kInfinity;
  for (int64_t i = thread; i < length; i += kThreads) most = x(i) > most ? x(i) : most;
  place[thread] = most;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) place[thread] = place[thread + half] > place[thread] ? place[thread + half] : place[thread];
    __syncthreads();
  }
  most = place[0];
  __syncthreads();
  return most;
}

}
ES_NAMESPACE_END
