// How kernels are started: on a GPU, by the CUDA driver, or, until there is one, by the shim.
//
// A kernel is a C++ function here and machine code there. What names it on both sides is how it would be written, with
// its template arguments (`es::cuda::rows_kernel<true>`): the compiler says it for a function, NVRTC takes it. Every kernel
// that a file can start is known as soon as the library is loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shim.h"

namespace es {

// One kernel of a file, for as long as the program runs.
struct Kernel {
  std::string file, name;
  std::vector<size_t> parameters;  // bytes of each

  Kernel(const char* file, const char* pretty, std::vector<size_t> parameters);
  // File, name and bytes of each parameter, between tabs.
  std::string line() const;
  // By the driver. Throws std::runtime_error.
  void launch(int64_t blocks, int threads, void** arguments) const;
};
const std::vector<const Kernel*>& kernels();

// Until it is called kernels are run by the shim, on the memory of the host. From then on by this driver; again: nothing.
// Throws std::runtime_error: it cannot be loaded.
void start_driver(const char* library = "libcuda.so.1");
bool has_driver();

// The machine code of a file, for the device of this process, and what its kernels are called there. Throws
// std::runtime_error: a kernel of the file has no name.
struct Lowered {
  std::string name, symbol;
};
void load_kernels(const std::string& file, std::string cubin, const std::vector<Lowered>& names);

// Whose memory and streams a driver is to use. Set by whoever owns the device.
struct Owner {
  void* (*allocate)(size_t bytes);
  void (*release)(void* data, size_t bytes);
  void* (*stream)();  // a CUstream of the calling thread
  int (*device)();    // its number
  void (*launched)() = nullptr;  // is called after each kernel, if anybody wants to wait for it
};
extern Owner owner;

}

// What the compiler calls `kernel`. In no namespace, so that it leaves none out.
template <auto kernel>
const char* es_pretty() {
  return __PRETTY_FUNCTION__;
}

namespace es {

template <auto kernel>
struct Launch;
template <class... Parameters, void (*kernel)(Parameters...)>
struct Launch<kernel> {
  static inline const Kernel known{__BASE_FILE__, es_pretty<kernel>(), {sizeof(Parameters)...}};

  static void run(int64_t blocks, int threads, Parameters... parameters) {
    if (has_driver()) {
      void* all[] = {&parameters...};
      known.launch(blocks, threads, all);
    } else {
      shim::launch(blocks, threads, [&] { kernel(parameters...); });
    }
  }
};

}

// `kernel` in brackets if there is a comma in it.
#define ES_LAUNCH(blocks, threads, kernel, ...) es::Launch<kernel>::run(blocks, threads, __VA_ARGS__)
