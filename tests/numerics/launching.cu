// A program that starts kernels by a driver: test_cuda_launch.py. launching DRIVER [NAME=SYMBOL...]
#include "../../csrc/cuda/device.h"

ES_NAMESPACE {

struct Pair {
  const float* data;
  int32_t number;
};

template <bool kOne, class T>
ES_KERNEL void some_kernel(T first, int64_t second, Pair pair, uint8_t last) {
  if (threadIdx.x == 0 && kOne) ((T*)pair.data)[second] = first + (T)last;
}

ES_KERNEL void never_kernel(double x) { (void)x; }

}
ES_NAMESPACE_END

#if ES_HOST

#include <cstdio>
#include <exception>

int main(int count, char** arguments) {
  for (const auto* kernel : es::kernels()) std::puts(kernel->line().c_str());
  if (count < 2) return 0;
  if (count < 0) ES_LAUNCH(1, 32, es::never_kernel, 0);  // known though it never comes to this
  try {
    es::start_driver(arguments[1]);
    std::vector<es::Lowered> names;
    for (int i = 2; i < count; ++i) {
      std::string text = arguments[i];
      names.push_back({text.substr(0, text.find('=')), text.substr(text.find('=') + 1)});
    }
    es::owner = {
        [](size_t bytes) -> void* {
          std::printf("memory of %zu\n", bytes);
          return (void*)0x1000;
        },
        [](void* data, size_t bytes) { std::printf("released %p %zu\n", data, bytes); },
        []() -> void* { return (void*)0xabc; },
        [] { return 3; },
    };
    es::load_kernels("launching.cu", "CUBIN", names);
    es::Memory memory(24);
    // Numbers of other types than the kernel's become what it takes.
    for (int i = 0; i < 2; ++i)
      ES_LAUNCH(7, 64, (es::some_kernel<true, float>), 1, 2, (es::Pair{memory.as<float>(), -1}), 255);
    uint32_t there = 77, here = 0;
    es::fetch(&here, &there, sizeof(here));
    std::printf("fetched %u\n", here);
  } catch (const std::exception& error) {
    std::puts(error.what());
    return 1;
  }
}

#endif
