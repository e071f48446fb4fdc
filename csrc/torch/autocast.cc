// Autocast casts the same operators to the same types on devices as on a CPU. PyTorch's lists for the two differ: on a GPU
// softmax, norms and sums are among what is computed in binary32, so that a model would not give the same bits.
#include <ATen/autocast_mode.h>

#include <memory>

#include "registry.h"

namespace es::glue {
namespace {

using at::Tensor;
namespace autocast = at::autocast;

// To autocast's own type, to binary32, or to the widest that is among the arguments.
enum class Cast { narrow, wide, widest };

class Casting final : public c10::OperatorKernel {
 public:
  explicit Casting(Cast cast) : cast_(cast) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::Autocast);
    const size_t count = op.schema().arguments().size();
    const at::ScalarType type = type_for(torch::jit::last(*stack, count));
    for (size_t i = stack->size() - count; i < stack->size(); ++i) (*stack)[i] = cast((*stack)[i], type);
    op.callBoxed(stack);
  }

 private:
  at::ScalarType type_for(at::ArrayRef<c10::IValue> arguments) const {
    at::ScalarType type = cast_ == Cast::wide ? at::kFloat : autocast::get_autocast_dtype(at::kCUDA);
    if (cast_ == Cast::widest)
      for (const c10::IValue& argument : arguments) {
        if (argument.isTensor()) type = autocast::prioritize(type, argument.toTensor(), at::kCUDA);
        if (argument.isTensorList()) type = autocast::prioritize(type, argument.toTensorVector(), at::kCUDA);
      }
    return type;
  }
  // With the cache for weights that autocast has: it decides what gradients are added in.
  static c10::IValue cast(const c10::IValue& argument, at::ScalarType type) {
    if (argument.isTensor()) return autocast::cached_cast(type, argument.toTensor(), at::kCUDA);
    if (argument.isTensorList()) return autocast::cached_cast(type, argument.toTensorVector(), at::kCUDA);
    return argument;
  }

  Cast cast_;
};

std::unique_ptr<torch::Library> casts;

// Operators by their full names; `as_they_are`: those that only devices cast.
void take_casts(const std::vector<std::string>& narrow, const std::vector<std::string>& wide,
                const std::vector<std::string>& widest, const std::vector<std::string>& as_they_are) {
  if (casts) return;
  casts = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::Autocast, kHere, 1);
  auto put = [](const std::vector<std::string>& names, Cast cast) {
    for (const auto& name : names)
      casts->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Casting>(cast)));
  };
  put(narrow, Cast::narrow);
  put(wide, Cast::wide);
  put(widest, Cast::widest);
  for (const auto& name : as_they_are) casts->impl(name.c_str(), torch::CppFunction::makeFallthrough());
}

void leave_casts() { casts.reset(); }

TORCH_LIBRARY_FRAGMENT(easyscale, m) {
  m.def("take_casts(str[] narrow, str[] wide, str[] widest, str[] as_they_are) -> ()", &take_casts);
  m.def("leave_casts() -> ()", &leave_casts);
}

}
}
