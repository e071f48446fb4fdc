// What device.h promises beside kernels. Compiled by nvcc, or with the shim.
#include "device.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace es {

static int64_t asked_for(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : 0;
}

Settings& settings() {
  static Settings all = {(int)asked_for("ES_TILE"), (int)asked_for("ES_SEGMENT"), asked_for("ES_BLOCKS")};
  return all;
}

int64_t blocks_for(int64_t tasks) {
  const int64_t most = settings().blocks ? settings().blocks : 1 << 16;
  return tasks < most ? tasks : most;
}

#ifdef __CUDACC__

cudaStream_t stream() { return cudaStreamPerThread; }

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status));
  std::abort();
}

void fetch(void* host, const void* device, size_t bytes) {
  check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream()));
  check(cudaStreamSynchronize(stream()));
}

Memory::Memory(size_t bytes) {
  if (bytes) check(cudaMallocAsync(&data_, bytes, stream()));
}
Memory::~Memory() {
  if (data_) check(cudaFreeAsync(data_, stream()));
}

#else

void fetch(void* host, const void* device, size_t bytes) { std::memcpy(host, device, bytes); }

Memory::Memory(size_t bytes) {
  if (bytes && !(data_ = std::malloc(bytes))) std::abort();
  if (bytes) std::memset(data_, 0xff, bytes);  // NaN: nobody may read what nobody has written
}
Memory::~Memory() { std::free(data_); }

#endif

}
