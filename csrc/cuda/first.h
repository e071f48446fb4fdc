// What the host has to know of data on the device before it goes on: the first element that is not as it should be.
#pragma once

#include "device.h"

ES_NAMESPACE {

constexpr int64_t kMostFirsts = 256;  // as many blocks look, and each says what it has found

template <class Test>
ES_KERNEL void ES_THREADS(kThreads) first_kernel(int64_t count, Test test, int64_t* firsts) {
  ES_SHARED(int64_t, place, kThreads);
  const int thread = (int)threadIdx.x;
  const int64_t apart = (int64_t)gridDim.x * kThreads;
  int64_t i = (int64_t)blockIdx.x * kThreads + thread;
  while (i < count && !test(i)) i += apart;
  place[thread] = i < count ? i : count;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half && place[thread + half] < place[thread]) place[thread] = place[thread + half];
    __syncthreads();
  }
  if (thread == 0) firsts[blockIdx.x] = place[0];
}

#if ES_HOST

// The least i < count for which `test(i)` holds; `count`: there is none. Waits for the device.
template <class Test>
static int64_t first_where(int64_t count, Test test) {
  if (count <= 0) return count;
  int64_t blocks = blocks_for_threads(count), found[kMostFirsts], first = count;
  if (blocks > kMostFirsts) blocks = kMostFirsts;
  Memory firsts((size_t)blocks * sizeof(int64_t));
  ES_LAUNCH(blocks, kThreads, first_kernel<Test>, count, test, firsts.as<int64_t>());
  fetch(found, firsts.as<int64_t>(), (size_t)blocks * sizeof(int64_t));
  for (int64_t b = 0; b < blocks; ++b)
    if (found[b] < first) first = found[b];
  return first;
}

#endif

}
ES_NAMESPACE_END
