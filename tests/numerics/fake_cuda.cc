// A CUDA driver that runs nothing: it says on standard output what it was asked for, and fails where FAKE_CUDA names a
// function and an error.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Function {
  std::string symbol;
};
int context_of_the_thread = 0;

int fails(const char* name) {
  const char* asked = std::getenv("FAKE_CUDA");
  const size_t length = std::strlen(name);
  return asked && !std::strncmp(asked, name, length) && asked[length] == '=' ? std::atoi(asked + length + 1) : 0;
}

// Bytes of each parameter, from the environment: the machine code that it is given is text.
std::vector<size_t> sizes() {
  std::vector<size_t> all;
  for (const char* at = std::getenv("FAKE_SIZES"); at && *at;) {
    char* end;
    all.push_back(std::strtoul(at, &end, 10));
    at = *end ? end + 1 : end;
  }
  return all;
}

}

#define CU extern "C" int
CU cuInit(unsigned) { return fails("cuInit"); }
CU cuGetErrorName(int error, const char** text) {
  *text = error == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : nullptr;
  return *text ? 0 : 1;
}
CU cuGetErrorString(int error, const char** text) {
  *text = error == 209 ? "no kernel image is available for execution on the device" : nullptr;
  return *text ? 0 : 1;
}
CU cuDeviceGet(int* device, int number) {
  *device = 100 + number;
  return fails("cuDeviceGet");
}
CU cuDevicePrimaryCtxRetain(void** context, int device) {
  std::printf("context of device %d\n", device);
  *context = &context_of_the_thread;
  return 0;
}
CU cuCtxGetCurrent(void** context) {
  *context = context_of_the_thread ? &context_of_the_thread : nullptr;
  return 0;
}
CU cuCtxSynchronize() {
  std::printf("wait for all\n");
  return fails("cuCtxSynchronize");
}
CU cuMemHostAlloc(void** data, size_t bytes, unsigned) {
  *data = std::aligned_alloc(4096, bytes);
  return *data ? fails("cuMemHostAlloc") : 2;
}
CU cuMemAlloc_v2(unsigned long long* data, size_t bytes) {
  *data = (unsigned long long)std::calloc(bytes, 1);
  return fails("cuMemAlloc_v2");
}
CU cuMemFree_v2(unsigned long long data) {
  std::free((void*)data);
  return 0;
}
CU cuCtxSetCurrent(void* context) {
  context_of_the_thread = context == &context_of_the_thread;
  return 0;
}
CU cuModuleLoadData(void** module, const void* image) {
  std::printf("module %s\n", (const char*)image);
  *module = (void*)image;
  return fails("cuModuleLoadData");
}
CU cuModuleGetFunction(void** function, void*, const char* symbol) {
  std::printf("function %s\n", symbol);
  *function = new Function{symbol};
  return fails("cuModuleGetFunction");
}
CU cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                  unsigned threads_z, unsigned shared, void* stream, void** parameters, void** extra) {
  std::printf("launch %s %ux%ux%u %ux%ux%u %u %p %s", ((Function*)function)->symbol.c_str(), x, y, z, threads_x, threads_y,
              threads_z, shared, stream, extra ? "extra" : "");
  for (size_t i = 0; i < sizes().size(); ++i) {
    std::printf(" ");
    for (size_t b = 0; b < sizes()[i]; ++b) std::printf("%02x", ((unsigned char*)parameters[i])[b]);
  }
  std::printf("\n");
  return fails("cuLaunchKernel");
}
CU cuMemcpyDtoHAsync_v2(void* host, unsigned long long device, size_t bytes, void* stream) {
  std::printf("copy %zu %p\n", bytes, stream);
  std::memcpy(host, (const void*)device, bytes);
  return fails("cuMemcpyDtoHAsync_v2");
}
CU cuStreamSynchronize(void* stream) {
  std::printf("wait %p\n", stream);
  return fails("cuStreamSynchronize");
}
