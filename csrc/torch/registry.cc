#include "registry.h"

#include <c10/util/Exception.h>
#include <torch/csrc/stable/c/shim.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "../cpu/isa.h"
#include "../cpu/parallel.h"

namespace es::glue {
namespace {

std::vector<Stub>& stubs() {
  static std::vector<Stub> all;
  return all;
}
std::vector<Declare>& declarations() {
  static std::vector<Declare> all;
  return all;
}
std::vector<void (*)(Composites&)>& composites() {
  static std::vector<void (*)(Composites&)> all;
  return all;
}
using Kernels = std::map<std::string, c10::SafeKernelFunction>;
Kernels& originals(c10::DispatchKey key) {
  static Kernels cpu, cuda;
  return key == c10::DispatchKey::CUDA ? cuda : cpu;
}
std::vector<std::unique_ptr<torch::Library>> libraries;

// Whose operators are ours.
std::vector<c10::DispatchKey> keys() {
  if (has_devices()) return {c10::DispatchKey::CPU, c10::DispatchKey::CUDA};
  return {c10::DispatchKey::CPU};
}

// Registering an operator a second time warns once, which is what is meant to happen here.
struct Silent : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Exact for integers in any order, unspecified for floats: to the kernel that was there before.
Kernels& of_integers(c10::DispatchKey key) {
  static Kernels cpu, cuda;
  return key == c10::DispatchKey::CUDA ? cuda : cpu;
}

void boxed_integers_only(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto name = c10::toString(op.operator_name());
  auto look = [&](const at::Tensor& tensor) {
    if (tensor.defined() && !c10::isIntegralType(tensor.scalar_type(), true))
      refuse(name, c10::str("it is specified for integers only, and was given ", tensor.scalar_type()));
  };
  for (auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (value.isTensor()) look(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) look(tensor);
    if (value.isDouble()) refuse(name, "it is specified for integers only, and was given a float");
  }
  auto key = keys.has(c10::DispatchKey::CUDA) ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  of_integers(key).at(name).callBoxed(op, keys, stack);
}

// Not only aten: whatever has been registered by anybody else. By namespace and dispatch key.
std::map<std::string, std::unique_ptr<torch::Library>> refused;

void put(const std::vector<std::string>& names, const std::string& key, const std::function<torch::CppFunction()>& kernel) {
  Silent silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  for (const auto& name : names) {
    auto space = name.substr(0, name.find("::"));
    auto& library = refused[space + "/" + key];
    if (!library)
      library = std::make_unique<torch::Library>(torch::Library::IMPL, space, c10::parseDispatchKey(key), kHere, 1);
    library->impl(name.c_str(), kernel());
  }
}

void refuse_all(const std::vector<std::string>& names, const std::string& key) {
  put(names, key, [] { return torch::CppFunction::makeFromBoxedFunction<&boxed_refusal>(); });
}

void integers_only(const std::vector<std::string>& names, const std::string& where) {
  auto key = c10::parseDispatchKey(where);
  for (const auto& name : names) {
    if (of_integers(key).count(name)) continue;
    of_integers(key).emplace(name, operator_named(name).getComputedKernelForDispatchKey(key));
  }
  put(names, where, [] { return torch::CppFunction::makeFromBoxedFunction<&boxed_integers_only>(); });
}

void allow_all() { refused.clear(); }

std::string describe() { return isa_name(); }

void use_isa_or_throw(std::string name) {
  TORCH_CHECK(use_isa(name.c_str()), "this processor has no instruction set '", name, "', or it was not built");
}

std::vector<std::string> operators() {
  std::vector<std::string> names;
  for (auto& [name, kernel] : originals(c10::DispatchKey::CPU)) names.push_back(name);
  return names;
}

}

void add_stub(Stub stub) { stubs().push_back(stub); }

DeclaredComposites::DeclaredComposites(void (*declare)(Composites&)) { composites().push_back(declare); }

Declared::Declared(Declare declare) { declarations().push_back(declare); }

void Operators::remember(const char* name) const {
  if (originals(key_).count(name)) return;
  auto handle = operator_named(std::string("aten::") + name);
  if (handle.hasComputedKernelForDispatchKey(key_))
    originals(key_).emplace(name, handle.getComputedKernelForDispatchKey(key_));
}

void call_original(const char* name, torch::jit::Stack& stack) {
  auto key = on_device() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  auto found = originals(key).find(name);
  TORCH_CHECK(found != originals(key).end(), "PyTorch has no ", name, " of its own for this device");
  auto& kernel = found->second;
  kernel.callBoxed(kernel.opHandle(), c10::DispatchKeySet(key), &stack);
}

void enable() {
  if (enabled()) return;
  Silent silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  parallel = [](int64_t items, int64_t grain, Body body, void* context) {
    if (on_device()) return body(0, items, context);
    // The one that is in the library: at::parallel_for is a template that would want OpenMP here too.
    TORCH_CHECK(torch_parallel_for(0, items, grain, body, context) == AOTI_TORCH_SUCCESS, "a kernel failed");
  };
  parallel_width = [] { return at::in_parallel_region() ? 1 : at::get_num_threads(); };
  for (auto& stub : stubs()) {
    if (!*stub.original) *stub.original = stub.theirs();
    stub.impl->cpu_dispatch_ptr.store(stub.ours);
    *stub.original_on_cuda = stub.impl->cuda_dispatch_ptr;
    if (has_devices()) stub.impl->cuda_dispatch_ptr = stub.ours;
  }
  for (auto key : keys()) {
    libraries.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, kHere, 1));
    Operators operators(*libraries.back(), key);
    for (auto declare : declarations()) declare(operators);
  }
  if (!has_devices()) return;
  for (auto key : {c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCUDA})
    libraries.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, kHere, 1));
  Composites both(**(libraries.end() - 2), *libraries.back());
  for (auto declare : composites()) declare(both);
}

void disable() {
  if (!enabled()) return;
  libraries.clear();
  for (auto& stub : stubs()) {
    stub.impl->cpu_dispatch_ptr.store(*stub.original);
    stub.impl->cuda_dispatch_ptr = *stub.original_on_cuda;
  }
}

bool enabled() { return !libraries.empty(); }

void refuse(const std::string& what, const std::string& why) { TORCH_CHECK(false, kRefused, what, ": ", why); }

void boxed_refusal(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  refuse(c10::toString(op.operator_name()), "exact mode has no kernel for it");
}

c10::OperatorHandle operator_named(const std::string& name) {
  auto dot = name.find('.');
  auto base = name.substr(0, dot), overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(base.c_str(), overload.c_str());
}

bool is_integral_or_refuse(at::ScalarType type, const char* what) {
  if (c10::isIntegralType(type, /*includeBool=*/true)) return true;
  element_or_refuse(type, what);
  return false;
}

Element element_or_refuse(at::ScalarType type, const char* what) {
  switch (type) {
    case at::kFloat:
      return Element::f32;
    case at::kBFloat16:
      return Element::bf16;
    case at::kHalf:
      return Element::fp16;
    default:
      refuse(what, c10::str("it is not specified for ", type, "; use float32, bfloat16 or float16"));
  }
}

TORCH_LIBRARY(easyscale, m) {
  m.def("enable() -> ()", &enable);
  m.def("disable() -> ()", &disable);
  m.def("enabled() -> bool", &enabled);
  m.def("has_devices() -> bool", &has_devices);
  m.def("isa() -> str", &describe);
  m.def("use_isa(str name) -> ()", &use_isa_or_throw);
  m.def("refuse(str[] names, str key) -> ()", &refuse_all);
  m.def("integers_only(str[] names, str key) -> ()", &integers_only);
  m.def("allow() -> ()", &allow_all);
  m.def("operators() -> str[]", &operators);
}

}
