// How kernels take the place of PyTorch's, and give it back.
//
// Two ways. *Stubs* are the pointers through which ATen's operators reach the kernel of the device: replacing one covers
// every variant of an operator (functional, in-place, out, foreach) and leaves shapes, broadcasting, types and
// overlap to ATen. Prefer them. *Operators* whose work is not behind a stub (matrix products, convolutions, batch norm)
// are registered with the dispatcher, each variant by itself.
//
// Both are declared where the kernel is, by static objects; nothing happens until `enable`. PyTorch 2.13's layout of
// DispatchStub is relied on: a version in which it differs does not compile.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/DispatchStub.h>
#include <torch/library.h>

#include "../cpu/element.h"
#include "where.h"

namespace es::glue {

// Where our kernels say that they come from, wherever they were compiled: `strict.py` knows them by it.
constexpr const char* kHere = "easyscale/csrc";

// Replaces every stub and operator; again: nothing.
void enable();
// PyTorch's own again.
void disable();
bool enabled();

// Refuses what this mode cannot do to the bit: a c10::Error whose text starts with `kRefused`, from which the Python
// side makes its error. `what`: the operator; `why`: what about it, and what to do instead.
constexpr const char* kRefused = "easyscale: not exact: ";
[[noreturn]] void refuse(const std::string& what, const std::string& why);
// In the place of a kernel: exact mode has none.
void boxed_refusal(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*);

// By its full name, as `aten::mm.out`.
c10::OperatorHandle operator_named(const std::string& name);

struct Stub {
  at::native::DispatchStubImpl* impl;
  void* ours;
  void* (*theirs)();
  void** original;
  void** original_on_cuda;
};
void add_stub(Stub stub);

template <class S>
struct Saved {
  static inline void *original = nullptr, *original_on_cuda = nullptr;
};

// The kernel that PyTorch had there, for types that need none of ours (integers).
template <class S>
typename S::FnPtr original(S&) {
  void* found = on_device() ? Saved<S>::original_on_cuda : Saved<S>::original;
  TORCH_CHECK(found, "PyTorch has no kernel of its own here");
  return reinterpret_cast<typename S::FnPtr>(found);
}

template <class S, class F = typename S::FnPtr>
struct Entered;
template <class S, class Result, class... Arguments>
struct Entered<S, Result (*)(Arguments...)> {
  static inline Result (*ours)(Arguments...);
  static Result call(Arguments... arguments) {
    Where where(arguments...);
    return ours(std::forward<Arguments>(arguments)...);
  }
};

template <class S>
struct Replaced {
  Replaced(S& stub, typename S::FnPtr ours) {
    auto* impl = reinterpret_cast<at::native::DispatchStubImpl*>(&stub);
    static S* which;
    which = &stub;
    Entered<S>::ours = ours;
    add_stub({impl, reinterpret_cast<void*>(&Entered<S>::call),
              [] {
                auto found = reinterpret_cast<at::native::DispatchStubImpl*>(which)->try_get_call_ptr(
                    c10::DeviceType::CPU, reinterpret_cast<void*>(S::DEFAULT)
#ifdef HAVE_AVX512_CPU_DEFINITION
                                              , reinterpret_cast<void*>(S::AVX512)
#endif
#ifdef HAVE_AVX2_CPU_DEFINITION
                                              , reinterpret_cast<void*>(S::AVX2)
#endif
                );
                auto* pointer = std::get_if<void*>(&found);
                return pointer ? *pointer : nullptr;  // some have a kernel for devices only
              },
              &Saved<S>::original, &Saved<S>::original_on_cuda});
  }
};

#define ES_CAT_(a, b) a##b
#define ES_CAT(a, b) ES_CAT_(a, b)

// ES_STUB(exp_stub, exp_kernel): a function of the stub's own type.
#define ES_STUB(stub, kernel) \
  static es::glue::Replaced<std::remove_reference_t<decltype(at::native::stub)>> ES_CAT(replaced_, stub)(at::native::stub, kernel)

// Operators of one file: ES_OPERATORS(gemm, ops) { ops.impl("mm", mm); ops.impl("mm.out", mm_out); }
class Operators {
 public:
  Operators(torch::Library& library, c10::DispatchKey key) : library_(library), key_(key) {}
  template <class Result, class... Arguments>
  void impl(const char* name, Result (*kernel)(Arguments...)) {
    remember(name);
    library_.impl(name, [kernel](Arguments... arguments) -> Result {
      Where where(arguments...);
      return kernel(std::forward<Arguments>(arguments)...);
    });
  }

 private:
  void remember(const char* name) const;
  torch::Library& library_;
  c10::DispatchKey key_;
};
using Declare = void (*)(Operators&);
struct Declared {
  explicit Declared(Declare declare);
};
#define ES_OPERATORS(name, ops)                               \
  static void ES_CAT(declare_, name)(es::glue::Operators&);   \
  static es::glue::Declared ES_CAT(declared_, name)(&ES_CAT(declare_, name)); \
  static void ES_CAT(declare_, name)(es::glue::Operators& ops)

// The same for operators that are made of others: on devices only. `impl`: with autograd in mind or not; `above`: only with.
class Composites {
 public:
  Composites(torch::Library& cuda, torch::Library& autograd) : cuda_(cuda), autograd_(autograd) {}
  template <class F>
  void impl(const char* name, F* kernel) {
    cuda_.impl(name, kernel);
    autograd_.impl(name, kernel);
  }
  template <class F>
  void above(const char* name, F* kernel) {
    autograd_.impl(name, kernel);
  }

 private:
  torch::Library &cuda_, &autograd_;
};
struct DeclaredComposites {
  explicit DeclaredComposites(void (*declare)(Composites&));
};
#define ES_COMPOSITES(name, ops)                                                        \
  static void ES_CAT(declare_, name)(es::glue::Composites&);                            \
  static es::glue::DeclaredComposites ES_CAT(declared_, name)(&ES_CAT(declare_, name)); \
  static void ES_CAT(declare_, name)(es::glue::Composites& ops)

// What PyTorch does for this operator on its device, for types that need none of ours: `call_original("mm", stack)`.
void call_original(const char* name, torch::jit::Stack& stack);

template <class Result, class... Arguments>
Result original_result(const char* name, Arguments&&... arguments) {
  torch::jit::Stack stack;
  torch::jit::push(stack, std::forward<Arguments>(arguments)...);
  call_original(name, stack);
  return torch::jit::pop(stack).to<Result>();
}

// float, bf16 and fp16 are ours.
inline bool is_ours(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

// True for integers and bool, whose arithmetic is exact in any order; false for float, bf16 and fp16. Everything else
// (float64, complex, quantized) is refused.
bool is_integral_or_refuse(at::ScalarType type, const char* what);

// One of ours; everything else is refused.
Element element_or_refuse(at::ScalarType type, const char* what);

}
