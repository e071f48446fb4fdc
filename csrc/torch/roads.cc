// Operators of ours on a device go the CPU's road through ATen: the same checks, the same composition, down to the stubs
// and operators that are ours and that look at the device. So what a GPU computes cannot differ from the CPU by being
// composed in another way, and of PyTorch's own CUDA kernels only those are used whose results have one value.
#include <map>
#include <memory>
#include <set>

#include "registry.h"

namespace es::glue {
namespace {

using c10::DispatchKey;

// A backend that registers nothing: its kernels are those that allocate by the inputs' device and call the `out` variant.
constexpr DispatchKey kNobody = DispatchKey::IPU;

bool computes_with_floats(const torch::jit::Stack& stack, size_t count) {
  auto is_float = [](const at::Tensor& x) { return x.defined() && c10::isFloatingType(x.scalar_type()); };
  for (auto& value : torch::jit::last(stack, count)) {
    if (value.isTensor() && is_float(value.toTensor())) return true;
    if (value.isTensorList())
      for (const at::Tensor& x : value.toTensorVector())
        if (is_float(x)) return true;
    if (value.isDouble()) return true;
  }
  return false;
}

class Road final : public c10::OperatorKernel {
 public:
  Road(c10::SafeKernelFunction cpu, std::optional<c10::SafeKernelFunction> theirs)
      : cpu_(std::move(cpu)), theirs_(std::move(theirs)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    bool ours = !theirs_ || computes_with_floats(*stack, op.schema().arguments().size());
    (ours ? cpu_ : *theirs_).callBoxed(op, keys, stack);
  }

 private:
  c10::SafeKernelFunction cpu_;
  std::optional<c10::SafeKernelFunction> theirs_;  // integers stay with PyTorch's
};

std::unique_ptr<torch::Library> roads, above_autograd;

// Operators, by their full names, that have a kernel for CPUs or for anything. `always`: also with integers alone, since
// what they give is not determined by what they are.
void take_roads(const std::vector<std::string>& names, const std::vector<std::string>& always) {
  if (roads) return;
  std::set<std::string> ours_alone(always.begin(), always.end());
  roads = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", DispatchKey::CUDA, kHere, 1);
  above_autograd = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", DispatchKey::AutogradCUDA, kHere, 1);
  for (const auto& full : names) {
    auto op = operator_named(full);
    bool cpus = op.hasKernelForDispatchKey(DispatchKey::CPU);
    bool made = op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional) || !cpus;
    std::optional<c10::SafeKernelFunction> theirs;
    if (!ours_alone.count(full) && op.hasComputedKernelForDispatchKey(DispatchKey::CUDA))
      theirs = op.getComputedKernelForDispatchKey(DispatchKey::CUDA);
    auto from = made ? kNobody : DispatchKey::CPU;
    if (!op.hasComputedKernelForDispatchKey(from)) {  // what there is on devices only, as products of another type
      roads->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed_refusal>());
      continue;
    }
    auto kernel = op.getComputedKernelForDispatchKey(from);
    auto put = [&](torch::Library& library) {
      library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Road>(kernel, theirs)));
    };
    put(*roads);
    // Composed of others for whoever has no kernel for it.
    if (!cpus && op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) put(*above_autograd);
  }
}

void leave_roads() {
  above_autograd.reset();
  roads.reset();
}

TORCH_LIBRARY_FRAGMENT(easyscale, m) {
  m.def("take_roads(str[] names, str[] always) -> ()", &take_roads);
  m.def("leave_roads() -> ()", &leave_roads);
}

}
}
