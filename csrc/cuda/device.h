// What kernels for NVIDIA GPUs are written in: CUDA, in the few words below. Two compilers read each file. NVRTC makes
// machine code of its kernels. The C++ compiler makes what starts them (`#if ES_HOST`, at the end of a file), and with
// shim.h the kernels once more, every thread of a block as a fiber: so their bits are compared with the CPU's kernels on
// any machine.
//
// A kernel loops over its tasks (`for (task = blockIdx.x; task < tasks; task += gridDim.x)`), so that the number of its
// blocks is nobody's business; what a task is may depend on `settings`, the bits never do.
#pragma once

#include "../exact/base.h"

#ifdef __CUDACC__

#define ES_HOST 0
#define ES_KERNEL __global__  // not static: NVRTC finds them by their names
#define ES_DEVICE __device__ __forceinline__  // what threads do together, and so no function of the host's
#define ES_THREADS(count) __launch_bounds__(count)
#define ES_SHARED(type, name, count) __shared__ __align__(16) type name[count]

namespace es {

// The value that another lane of the warp has. All 32 must ask.
template <class T>
__device__ __forceinline__ T from_lane(T x, int lane) {
  return __shfl_sync(0xffffffffu, x, lane);
}

// Four neighbours, aligned to 16 bytes.
__device__ __forceinline__ void load_four(float* to, const float* shared, int at) {
  float4 four = *(const float4*)(shared + at);
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

}

#else

#define ES_HOST 1
#include "launch.h"
#include "shim.h"

#endif

namespace es {

constexpr int kWarp = 32;
constexpr int kThreads = 256;  // of a block, where nothing asks for another number

// For each i < count, shared by all threads of all blocks.
#define ES_EACH(i, count)                                                        \
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (count);  \
       i += (int64_t)gridDim.x * blockDim.x)

#if ES_HOST

// How work is cut. 0: as seems best. Tests take others, and nothing may change but the time.
struct Settings {
  int tile;         // of products: 1 is the largest
  int segment;      // of products: how many chunks of a sum a block goes through
  int64_t blocks;   // at most so many of a kernel
};
Settings& settings();

// How many blocks to start for so many tasks of a block, or of a thread.
int64_t blocks_for(int64_t tasks);
static inline int64_t blocks_for_threads(int64_t tasks) { return blocks_for((tasks + kThreads - 1) / kThreads); }

// Working memory on the device for the kernels that are launched while it lives.
class Memory {
 public:
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <class T>
  T* as() {
    return (T*)data_;
  }

 private:
  void* data_;
  size_t bytes_;
};

// What is there once all kernels before have run. It waits for them.
void fetch(void* host, const void* device, size_t bytes);

#endif

}
