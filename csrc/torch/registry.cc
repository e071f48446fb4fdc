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
std::map<std::string, c10::SafeKernelFunction>& originals() {
  static std::map<std::string, c10::SafeKernelFunction> all;
  return all;
}
std::unique_ptr<torch::Library> library;

// Registering an operator a second time warns once, which is what is meant to happen here.
struct Silent : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void boxed_refusal(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  refuse(c10::toString(op.operator_name()), "exact mode has no kernel for it");
}

// Exact for integers in any order, unspecified for floats: to the kernel that was there before.
std::map<std::string, c10::SafeKernelFunction>& of_integers() {
  static std::map<std::string, c10::SafeKernelFunction> all;
  return all;
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
  of_integers().at(name).callBoxed(op, keys, stack);
}

// Where our kernels say that they come from, wherever they were compiled: `strict.py` knows them by it.
constexpr const char* kHere = "easyscale/csrc";

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

void integers_only(const std::vector<std::string>& names) {
  for (const auto& name : names) {
    if (of_integers().count(name)) continue;
    auto dot = name.find('.');
    auto base = name.substr(0, dot), overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(base.c_str(), overload.c_str());
    of_integers().emplace(name, handle.getComputedKernelForDispatchKey(c10::DispatchKey::CPU));
  }
  put(names, "CPU", [] { return torch::CppFunction::makeFromBoxedFunction<&boxed_integers_only>(); });
}

void allow_all() { refused.clear(); }

std::string describe() { return isa_name(); }

void use_isa_or_throw(std::string name) {
  TORCH_CHECK(use_isa(name.c_str()), "this processor has no instruction set '", name, "', or it was not built");
}

std::vector<std::string> operators() {
  std::vector<std::string> names;
  for (auto& [name, kernel] : originals()) names.push_back(name);
  return names;
}

}

void add_stub(Stub stub) { stubs().push_back(stub); }

Declared::Declared(Declare declare) { declarations().push_back(declare); }

void Operators::remember(const char* name) {
  if (originals().count(name)) return;
  std::string full = std::string("aten::") + name;
  auto dot = full.find('.');
  auto base = full.substr(0, dot), overload = dot == std::string::npos ? "" : full.substr(dot + 1);
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(base.c_str(), overload.c_str());
  originals().emplace(name, handle.getComputedKernelForDispatchKey(c10::DispatchKey::CPU));
}

void call_original(const char* name, torch::jit::Stack& stack) {
  auto& kernel = originals().at(name);
  kernel.callBoxed(kernel.opHandle(), c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

void enable() {
  if (library) return;
  Silent silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  parallel = [](int64_t items, int64_t grain, Body body, void* context) {
    // The one that is in the library: at::parallel_for is a template that would want OpenMP here too.
    TORCH_CHECK(torch_parallel_for(0, items, grain, body, context) == AOTI_TORCH_SUCCESS, "a kernel failed");
  };
  parallel_width = [] { return at::in_parallel_region() ? 1 : at::get_num_threads(); };
  for (auto& stub : stubs()) {
    if (!*stub.original) *stub.original = stub.theirs();
    stub.impl->cpu_dispatch_ptr.store(stub.ours);
  }
  library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, kHere, 1);
  Operators operators(*library);
  for (auto declare : declarations()) declare(operators);
}

void disable() {
  if (!library) return;
  library.reset();
  for (auto& stub : stubs()) stub.impl->cpu_dispatch_ptr.store(*stub.original);
}

bool enabled() { return library != nullptr; }

void refuse(const std::string& what, const std::string& why) { TORCH_CHECK(false, kRefused, what, ": ", why); }

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
  m.def("isa() -> str", &describe);
  m.def("use_isa(str name) -> ()", &use_isa_or_throw);
  m.def("refuse(str[] names, str key) -> ()", &refuse_all);
  m.def("integers_only(str[] names) -> ()", &integers_only);
  m.def("allow() -> ()", &allow_all);
  m.def("operators() -> str[]", &operators);
}

}
