// CUDA for a C++ compiler: every thread of a block is a fiber, and blocks run one after the other. It ends the program
// when threads of a block do not meet at a barrier and when shared memory is indexed out of bounds; shared memory begins as
// NaN in every block. With ES_SHIM_ORDER=1 threads and blocks run backwards: what depends on that is a race.
//
// It cannot show races that need threads at once, nor what a GPU computes otherwise than IEEE-754 says.
#pragma once

#include <cstdint>
#include <functional>

namespace es::shim {

struct Index {
  unsigned x;
};
extern Index thread_index, block_index, block_size, grid_size;  // of the thread that runs

void launch(int64_t blocks, int threads, const std::function<void()>& kernel);
void wait_for_block();
uint64_t exchange(uint64_t word, int lane);
[[noreturn]] void fail(const char* what);

// Memory that is NaN whenever a block begins.
void registered(void* data, size_t bytes);

template <class T, int64_t kCount>
struct Shared {
  T data[kCount];
  Shared() { registered(data, sizeof(data)); }
  T& operator[](int64_t at) {
    if (at < 0 || at >= kCount) fail("shared memory is indexed out of bounds");
    return data[at];
  }
};

}

#define threadIdx es::shim::thread_index
#define blockIdx es::shim::block_index
#define blockDim es::shim::block_size
#define gridDim es::shim::grid_size
#define __syncthreads es::shim::wait_for_block

#define ES_KERNEL static
#define ES_DEVICE inline
#define ES_THREADS(count)
#define ES_SHARED(type, name, count) static es::shim::Shared<type, count> name

namespace es {

template <class T>
T from_lane(T x, int lane) {
  uint64_t word = 0;
  __builtin_memcpy(&word, &x, sizeof(x));
  word = shim::exchange(word, lane);
  __builtin_memcpy(&x, &word, sizeof(x));
  return x;
}

template <class Floats>
void load_four(float* to, Floats& shared, int at) {
  if (at % 4) shim::fail("four numbers of shared memory are not aligned");
  for (int i = 0; i < 4; ++i) to[i] = shared[at + i];
}

}
