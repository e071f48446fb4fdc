#include "gpu.h"

#include <dlfcn.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "../cuda/launch.h"

namespace {

// ---- Memory that both sides see

constexpr size_t kPool = size_t{1} << 28, kHeader = 64;

// Blocks of powers of two; what is given back is given out again. Before each lies its size.
std::mutex mutex;
char* pool;
size_t used;
void* unused[64];

bool in_pool(void* data) { return pool && (char*)data >= pool && (char*)data < pool + kPool; }

void* from_pool(size_t bytes) {
  const std::lock_guard guard(mutex);
  const int size = std::bit_width(bytes + kHeader - 1 > kHeader ? bytes + kHeader - 1 : kHeader);
  if (void* data = unused[size]) {
    unused[size] = *(void**)data;
    return data;
  }
  if (kPool - used < size_t{1} << size) throw std::bad_alloc();
  char* block = pool + used;
  used += size_t{1} << size;
  *(int*)block = size;
  return block + kHeader;
}

void to_pool(void* data) {
  const std::lock_guard guard(mutex);
  const int size = *(int*)((char*)data - kHeader);
  *(void**)data = unused[size];
  unused[size] = data;
}

// ---- The driver's functions that are called here

using Address = unsigned long long;

struct Driver {
  int (*cuGetErrorName)(int error, const char** text);
  int (*cuDeviceGet)(int* device, int number);
  int (*cuDevicePrimaryCtxRetain)(void** context, int device);
  int (*cuCtxSetCurrent)(void* context);
  int (*cuCtxSynchronize)();
  int (*cuMemHostAlloc)(void** data, size_t bytes, unsigned flags);
  int (*cuMemAlloc_v2)(Address* data, size_t bytes);
  int (*cuMemFree_v2)(Address data);
} driver;

template <class F>
void find(void* library, const char* name, F*& function) {
  function = (F*)dlsym(library, name);
  if (!function) throw std::runtime_error(std::string("CUDA: the driver has no ") + name);
}

void check(int result, const char* doing) {
  if (result == 0) return;
  const char* name = nullptr;
  driver.cuGetErrorName(result, &name);
  throw std::runtime_error(std::string("CUDA: ") + doing + ": " + (name ? name : std::to_string(result)));
}

void find_driver() {
  const char* path = "libcuda.so.1";
  es::start_driver(path);
  void* library = dlopen(path, RTLD_NOW);
  find(library, "cuGetErrorName", driver.cuGetErrorName);
  find(library, "cuDeviceGet", driver.cuDeviceGet);
  find(library, "cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain);
  find(library, "cuCtxSetCurrent", driver.cuCtxSetCurrent);
  find(library, "cuCtxSynchronize", driver.cuCtxSynchronize);
  find(library, "cuMemHostAlloc", driver.cuMemHostAlloc);
  find(library, "cuMemAlloc_v2", driver.cuMemAlloc_v2);
  find(library, "cuMemFree_v2", driver.cuMemFree_v2);
}

void load(const char* manifest) {
  std::ifstream lines(manifest);
  std::map<std::string, std::string> paths;
  std::map<std::string, std::vector<es::Lowered>> names;
  std::string file, path, name, symbol;
  while (std::getline(lines, file, '\t') && std::getline(lines, path, '\t') && std::getline(lines, name, '\t') &&
         std::getline(lines, symbol)) {
    paths[file] = path;
    names[file].push_back({name, symbol});
  }
  for (const auto& one : paths) {
    std::ifstream cubin(one.second, std::ios::binary);
    if (!cubin) throw std::runtime_error("CUDA: " + one.second + " cannot be read");
    es::load_kernels(one.first, {std::istreambuf_iterator<char>(cubin), {}}, names[one.first]);
  }
}

}

void* operator new(size_t bytes) {
  if (pool) return from_pool(bytes);
  void* data = std::malloc(bytes ? bytes : 1);
  if (!data) throw std::bad_alloc();
  return data;
}
void operator delete(void* data) noexcept {
  if (in_pool(data)) to_pool(data);
  else std::free(data);
}
void operator delete(void* data, size_t) noexcept { operator delete(data); }

namespace es::probe {

void use_gpu(const char* manifest) {
  find_driver();
  load(manifest);
  int device = 0;
  void *context = nullptr, *shared = nullptr;
  check(driver.cuDeviceGet(&device, 0), "asking for the device");
  check(driver.cuDevicePrimaryCtxRetain(&context, device), "asking for the device's context");
  check(driver.cuCtxSetCurrent(context), "choosing the device's context");
  check(driver.cuMemHostAlloc(&shared, kPool, 0), "allocating memory of the host");
  owner = {
      [](size_t bytes) {
        Address data = 0;
        check(driver.cuMemAlloc_v2(&data, bytes), "allocating memory");
        return (void*)(uintptr_t)data;
      },
      [](void* data, size_t) { driver.cuMemFree_v2((Address)(uintptr_t)data); },
      []() -> void* { return nullptr; },
      [] { return 0; },
      [] { check(driver.cuCtxSynchronize(), "running kernels"); },
  };
  pool = (char*)shared;
}

}
