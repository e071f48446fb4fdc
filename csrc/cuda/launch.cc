// The CUDA driver, by the dozen of its functions that are needed: found when a process starts, so nothing is linked.
#include "launch.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>

#include "device.h"

namespace es {
namespace {

std::vector<const Kernel*>& all() {
  static std::vector<const Kernel*> kernels;
  return kernels;
}

// "... [with auto kernel = es::cuda::rows_kernel<true>]", or "[kernel = &es::cuda::rows_kernel<true>]".
std::string name_in(const std::string& pretty) {
  const std::string before = "kernel = ";
  const size_t begin = pretty.find(before) + before.size(), end = pretty.find_first_of(";]", begin);
  const std::string name = pretty.substr(begin, end - begin);
  return name.substr(name.find_first_not_of("(& "));
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// As cuda.h has them.
using Result = int;
using Device = int;
using Context = struct ContextOf*;
using Module = struct ModuleOf*;
using Function = struct FunctionOf*;
using Stream = struct StreamOf*;

struct Driver {
  Result (*cuInit)(unsigned flags);
  Result (*cuGetErrorName)(Result error, const char** text);
  Result (*cuGetErrorString)(Result error, const char** text);
  Result (*cuDeviceGet)(Device* device, int number);
  Result (*cuDevicePrimaryCtxRetain)(Context* context, Device device);
  Result (*cuCtxGetCurrent)(Context* context);
  Result (*cuCtxSetCurrent)(Context context);
  Result (*cuModuleLoadData)(Module* module, const void* image);
  Result (*cuModuleGetFunction)(Function* function, Module module, const char* symbol);
  Result (*cuLaunchKernel)(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                           unsigned block_y, unsigned block_z, unsigned shared, Stream stream, void** parameters,
                           void** extra);
  Result (*cuMemcpyDtoHAsync_v2)(void* host, unsigned long long device, size_t bytes, Stream stream);
  Result (*cuStreamSynchronize)(Stream stream);
};

const Driver* driver = nullptr;

template <class F>
void find(void* library, const char* path, const char* name, F*& function) {
  function = (F*)dlsym(library, name);
  if (!function) throw std::runtime_error(std::string("CUDA: ") + path + " has no " + name + ": a newer driver is needed");
}

void check(Result result, const std::string& doing) {
  if (result == 0) return;
  const char *name = nullptr, *text = nullptr;
  driver->cuGetErrorName(result, &name);
  driver->cuGetErrorString(result, &text);
  throw std::runtime_error("CUDA: " + doing + ": " + (text ? text : "unknown error") + " (" +
                           (name ? name : std::to_string(result)) + ")");
}

// The machine code of a file, and its functions in each context, that is on each device, where it was loaded.
struct Image {
  std::string cubin;
  std::map<std::string, std::string> symbols;
  std::map<Context, Module> modules;
};

std::mutex mutex;
std::map<std::string, Image> images;
std::map<std::pair<const Kernel*, Context>, Function> functions;

// A thread that has not used the device yet has none: then it gets that of the runtime, and so of PyTorch.
Context context() {
  Context found = nullptr;
  check(driver->cuCtxGetCurrent(&found), "asking for the current context");
  if (found) return found;
  Device device = 0;
  check(driver->cuDeviceGet(&device, owner.device()), "asking for the device");
  check(driver->cuDevicePrimaryCtxRetain(&found, device), "asking for the device's context");
  check(driver->cuCtxSetCurrent(found), "choosing the device's context");
  return found;
}

Function function_of(const Kernel& kernel) {
  const Context here = context();
  std::lock_guard guard(mutex);
  Function& function = functions[{&kernel, here}];
  if (function) return function;
  auto found = images.find(kernel.file);
  if (found == images.end()) throw std::runtime_error("CUDA: nobody has loaded the machine code of " + kernel.file);
  Image& image = found->second;
  Module& module = image.modules[here];
  if (!module) check(driver->cuModuleLoadData(&module, image.cubin.data()), "loading " + kernel.file);
  check(driver->cuModuleGetFunction(&function, module, image.symbols.at(kernel.name).c_str()),
        "looking for " + kernel.name + " in " + kernel.file);
  return function;
}

}

Kernel::Kernel(const char* file, const char* pretty, std::vector<size_t> parameters)
    : file(last_part(file)), name(name_in(pretty)), parameters(std::move(parameters)) {
  all().push_back(this);
}

std::string Kernel::line() const {
  std::string all = file + "\t" + name;
  for (size_t bytes : parameters) all += "\t" + std::to_string(bytes);
  return all;
}

const std::vector<const Kernel*>& kernels() { return all(); }

Owner owner = {
    [](size_t bytes) {
      void* data = std::malloc(bytes);
      if (!data) std::abort();
      return std::memset(data, 0xff, bytes);  // NaN: nobody may read what nobody has written
    },
    [](void* data, size_t) { std::free(data); },
    []() -> void* { return nullptr; },
    [] { return 0; },
};

bool has_driver() { return driver != nullptr; }

void start_driver(const char* path) {
  std::lock_guard guard(mutex);
  if (driver) return;
  void* library = dlopen(path, RTLD_NOW);
  if (!library) throw std::runtime_error(std::string("CUDA: the driver cannot be loaded: ") + dlerror());
  static Driver found;
  find(library, path, "cuInit", found.cuInit);
  find(library, path, "cuGetErrorName", found.cuGetErrorName);
  find(library, path, "cuGetErrorString", found.cuGetErrorString);
  find(library, path, "cuDeviceGet", found.cuDeviceGet);
  find(library, path, "cuDevicePrimaryCtxRetain", found.cuDevicePrimaryCtxRetain);
  find(library, path, "cuCtxGetCurrent", found.cuCtxGetCurrent);
  find(library, path, "cuCtxSetCurrent", found.cuCtxSetCurrent);
  find(library, path, "cuModuleLoadData", found.cuModuleLoadData);
  find(library, path, "cuModuleGetFunction", found.cuModuleGetFunction);
  find(library, path, "cuLaunchKernel", found.cuLaunchKernel);
  find(library, path, "cuMemcpyDtoHAsync_v2", found.cuMemcpyDtoHAsync_v2);
  find(library, path, "cuStreamSynchronize", found.cuStreamSynchronize);
  driver = &found;
  try {
    check(driver->cuInit(0), "starting the driver");
  } catch (...) {
    driver = nullptr;
    throw;
  }
}

void load_kernels(const std::string& file, std::string cubin, const std::vector<Lowered>& names) {
  Image image{std::move(cubin), {}, {}};
  for (const auto& one : names) image.symbols[one.name] = one.symbol;
  for (const Kernel* kernel : all())
    if (kernel->file == file && !image.symbols.count(kernel->name))
      throw std::runtime_error("CUDA: the machine code of " + file + " lacks " + kernel->name);
  std::lock_guard guard(mutex);
  images.try_emplace(file, std::move(image));
}

void Kernel::launch(int64_t blocks, int threads, void** arguments) const {
  const Function function = function_of(*this);
  check(driver->cuLaunchKernel(function, (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1, 0, (Stream)owner.stream(),
                               arguments, nullptr),
        "starting " + name + " of " + file);
  if (owner.launched) owner.launched();
}

void fetch(void* host, const void* device, size_t bytes) {
  if (!driver) {
    std::memcpy(host, device, bytes);
    return;
  }
  if (!bytes) return;
  context();
  const Stream stream = (Stream)owner.stream();
  check(driver->cuMemcpyDtoHAsync_v2(host, (unsigned long long)(uintptr_t)device, bytes, stream), "fetching a result");
  check(driver->cuStreamSynchronize(stream), "waiting for kernels");
}

}
