// GPUs as PyTorch has them: its memory and its streams for kernels, and what `cuda.py` tells of their machine code.
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <fstream>
#include <iterator>

#include "../cuda/launch.h"

namespace es::glue {
namespace {

std::vector<std::string> cuda_kernels() {
  std::vector<std::string> lines;
  for (const Kernel* kernel : kernels()) lines.push_back(kernel->line());
  return lines;
}

void cuda_load(const std::string& file, const std::string& path, const std::vector<std::string>& names,
               const std::vector<std::string>& symbols) {
  std::ifstream stream(path, std::ios::binary);
  TORCH_CHECK(stream, "CUDA: ", path, " cannot be read");
  TORCH_CHECK(names.size() == symbols.size());
  std::vector<Lowered> all;
  for (size_t i = 0; i < names.size(); ++i) all.push_back({names[i], symbols[i]});
  load_kernels(file, {std::istreambuf_iterator<char>(stream), {}}, all);
}

const c10::impl::VirtualGuardImpl& device() {
  static const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  return cuda;
}

// Memory belongs to the stream that is current where it was asked for; kernels are put there, too. So PyTorch may give
// it away as soon as it is released: whoever gets it is behind them.
void cuda_start(const std::string& driver) {
  start_driver(driver.c_str());
  owner = {
      [](size_t bytes) { return c10::GetAllocator(c10::DeviceType::CUDA)->raw_allocate(bytes); },
      [](void* data, size_t) { c10::GetAllocator(c10::DeviceType::CUDA)->raw_deallocate(data); },
      [] { return device().getStream(device().getDevice()).native_handle(); },
      [] { return (int)device().getDevice().index(); },
  };
}

}

TORCH_LIBRARY_FRAGMENT(easyscale, m) {
  m.def("cuda_kernels() -> str[]", &cuda_kernels);
  m.def("cuda_load(str file, str cubin, str[] names, str[] symbols) -> ()", &cuda_load);
  m.def("cuda_start(str driver) -> ()", &cuda_start);
}

}
