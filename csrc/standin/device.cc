// A stand-in for a GPU, for tests where there is none: a device `cuda:0` of a PyTorch that was built without CUDA. Its memory
// is this process's, closed to the host but while kernels and copies run: whoever touches it otherwise ends the process.
// Our kernels run through the shim; what would be PyTorch's own CUDA kernels is its CPU kernels, on the same memory.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Copy.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/native/TensorCompare.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>

#include "memory.h"

namespace es::standin {
namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

const Device kDevice(c10::kCUDA, 0);

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = standin::allocate(bytes);
    return {data, data, &standin::release, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &standin::release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    Open open;
    default_copy_data(to, from, bytes);
  }
};
Memory memory;

// What streams other than the first are to bring to the host, which they do at the last moment: when somebody waits.
void catch_up();

// One device, whose work is done when it has been asked for, but for that.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static inline thread_local c10::StreamId stream = 0;
  c10::DeviceType type() const override { return c10::kCUDA; }
  Device exchangeDevice(Device) const override { return kDevice; }
  Device getDevice() const override { return kDevice; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return Stream(Stream::UNSAFE, kDevice, stream); }
  Stream getDefaultStream(Device) const override { return Stream(Stream::DEFAULT, kDevice); }
  Stream getNewStream(Device, int) const override {
    static std::atomic<c10::StreamId> last{0};
    return Stream(Stream::UNSAFE, kDevice, ++last);
  }
  Stream getStreamFromGlobalPool(Device, bool) const override { return getNewStream(kDevice, 0); }
  Stream exchangeStream(Stream to) const override {
    Stream before = getStream(kDevice);
    stream = to.id();
    return before;
  }
  void* getStreamNativeHandle(const Stream) const override { return nullptr; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = const_cast<Guard*>(this);
  }
  void block(void*, const Stream&) const override { catch_up(); }
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void synchronizeEvent(void*) const override { catch_up(); }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override { catch_up(); }
  void synchronizeDevice(const DeviceIndex) const override { catch_up(); }
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};
Guard guard;
c10::impl::DeviceGuardImplRegistrar guard_registered(c10::kCUDA, &guard);

// A generator of the device's, to be refused: exact mode draws from the CPU's.
struct Generator final : at::CPUGeneratorImpl {
  Generator() { device_ = kDevice; }
};

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  int getNumGPUs() const override { return 1; }
  at::Generator getNewGenerator(DeviceIndex) const override { return at::make_generator<Generator>(); }
  Device getDeviceFromPtr(void*) const override { return kDevice; }
  void deviceSynchronize(DeviceIndex) const override { catch_up(); }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  at::Allocator* getCUDADeviceAllocator() const override { return &memory; }
};

// ---- PyTorch's own kernels

bool is_here(const Tensor& x) { return x.defined() && x.is_cuda(); }

// The same memory as a tensor of the CPU's.
Tensor on_cpu(const Tensor& x) {
  if (!is_here(x)) return x;
  c10::Storage storage(c10::Storage::use_byte_size_t{}, x.storage().nbytes(),
                       c10::DataPtr(const_cast<void*>(x.storage().data()), Device(c10::kCPU)), nullptr, false);
  Tensor same = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         x.dtype());
  same.unsafeGetTensorImpl()->set_sizes_and_strides(x.sizes(), x.strides(), x.storage_offset());
  if (x.is_conj()) same._set_conj(true);
  if (x.is_neg()) same._set_neg(true);
  return same;
}

Tensor over(const Tensor& original, const Tensor& view) {
  Tensor same = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(original.storage()),
                                                         original.key_set(), view.dtype());
  same.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
  return same;
}

Tensor brought_here(const Tensor& x) {
  Tensor to = at::empty_strided(x.sizes(), x.strides(), x.options().device(kDevice));
  Open open;
  on_cpu(to).copy_(x);
  return to;
}

class Aliases {
 public:
  Tensor alias(const Tensor& x, bool written) {
    if (!is_here(x)) return x;
    // An output that will be made as large as it must be.
    bool fresh = written && x.dim() == 1 && x.numel() == 0;
    Tensor cpu = fresh ? at::empty({0}, x.options().device(c10::kCPU)) : on_cpu(x);
    pairs_.push_back({x, cpu, fresh});
    return cpu;
  }
  c10::IValue alias(const c10::IValue& value, bool written) {
    if (value.isTensor()) return alias(value.toTensor(), written);
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& x : value.toTensorVector()) list.push_back(alias(x, written));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& x : value.toOptionalTensorVector())
        list.push_back(x ? std::optional<Tensor>(alias(*x, written)) : std::nullopt);
      return list;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) return Device(c10::kCPU);
    return value;
  }
  void finish() {
    for (auto& [here, cpu, fresh] : pairs_)
      if (fresh) {
        at::native::resize_(here, cpu.sizes());
        Open open;
        on_cpu(here).copy_(cpu);
      }
  }
  Tensor original(const Tensor& x) {
    if (!x.defined()) return x;
    for (auto& [here, cpu, fresh] : pairs_) {
      if (cpu.is_same(x)) return here;
      if (x.has_storage() && cpu.has_storage() && cpu.storage().unsafeGetStorageImpl() == x.storage().unsafeGetStorageImpl()) return over(here, x);
    }
    return brought_here(x);
  }

 private:
  struct Pair {
    Tensor here, cpu;
    bool fresh;
  };
  std::vector<Pair> pairs_;
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  auto arguments = torch::jit::last(*stack, schema.arguments().size()).vec();
  Aliases aliases;
  torch::jit::Stack inner;
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto* info = schema.arguments()[i].alias_info();
    inner.push_back(aliases.alias(arguments[i], info && info->isWrite()));
  }
  {
    Open open;
    op.callBoxed(&inner);
  }
  aliases.finish();
  torch::jit::drop(*stack, arguments.size());
  for (auto& value : inner) {
    if (value.isTensor()) {
      torch::jit::push(*stack, aliases.original(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& x : value.toTensorVector()) list.push_back(aliases.original(x));
      torch::jit::push(*stack, list);
    } else {
      torch::jit::push(*stack, value);
    }
  }
}

struct Pending {
  Tensor to, from;
};
std::mutex pending_lock;
std::vector<Pending> pending;

void copy(at::TensorIterator& iter, bool non_blocking) {
  const Tensor &to = iter.tensor(0), &from = iter.tensor(1);
  if (non_blocking && Guard::stream && !is_here(to)) {
    std::lock_guard lock(pending_lock);
    pending.push_back({to, from});
    return;
  }
  Open open;
  on_cpu(to).copy_(on_cpu(from));
}

void catch_up() {
  std::lock_guard lock(pending_lock);
  Open open;
  for (const Pending& one : pending) one.to.copy_(on_cpu(one.from));
  pending.clear();
}

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(type), format);
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>, std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(type));
}

// Kernels that ATen reaches by a stub: the CPU's.
template <class S, class F = typename S::FnPtr>
struct Own;
template <class S, class Result, class... Arguments>
struct Own<S, Result (*)(Arguments...)> {
  template <class T>
  static decltype(auto) same(T&& x) {
    if constexpr (std::is_same_v<std::decay_t<T>, Tensor>) return on_cpu(x);
    else return std::forward<T>(x);
  }
  static Result call(Arguments... arguments) {
    Open open;
    return S::DEFAULT(same(arguments)...);
  }
  explicit Own(S& stub) { stub.set_cuda_dispatch_ptr(&call); }
};

template <class S>
void own(S& stub) {
  Own<S>{stub};
}

struct Registered {
  Registered() {
    own(at::native::add_stub);
    own(at::native::div_true_stub);
    own(at::native::sqrt_stub);
    own(at::native::reciprocal_stub);
    own(at::native::max_stub);
    own(at::native::min_stub);
    c10::SetAllocator(c10::kCUDA, &memory);
    at::CUDAHooksRegistry()->Register(
        "CUDAHooks", +[](at::CUDAHooksArgs) -> std::unique_ptr<at::CUDAHooksInterface> { return std::make_unique<Hooks>(); });
    at::native::copy_stub.set_cuda_dispatch_ptr(&copy);
  }
} registered;

}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("resize_", at::native::resize_);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
}

}
