// Whose kernels an operator needs: those of the device that its arguments are on.
//
// Stubs and operators say it where they are entered (`Where`), so that what is below them asks for `gemm()` or
// `reduce_kernels()` and gets the kernels of that device.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <optional>
#include <type_traits>

#include "../cpu/gemm.h"

namespace es::glue {

// Whether this library has kernels for devices at all.
inline bool has_devices() { return gemm_cuda; }

inline bool on_device() { return on_cuda; }

// The device of a tensor that is on one, among the arguments.
using Device = std::optional<c10::Device>;

template <class T>
  requires(!std::is_base_of_v<at::TensorBase, T> && !std::is_base_of_v<at::TensorIteratorBase, T>)
Device gpu_of(const T&) {
  return {};
}

inline Device gpu_of(const at::TensorBase& x) { return x.defined() && x.is_cuda() ? Device(x.device()) : Device(); }
inline Device gpu_of(const std::optional<c10::Device>& x) { return x && x->is_cuda() ? x : Device(); }
inline Device gpu_of(const at::TensorIteratorBase& iter) {
  for (int i = 0; i < iter.ntensors(); ++i)
    if (iter.device(i).is_cuda()) return iter.device(i);
  return {};
}
template <class T>
Device gpu_of(const std::optional<T>& x) {
  return x ? gpu_of(*x) : Device();
}
template <class List>
Device gpu_in(const List& list) {
  for (const auto& x : list)
    if (Device found = gpu_of(x)) return found;
  return {};
}
inline Device gpu_of(at::ArrayRef<at::Tensor> list) { return gpu_in(list); }
inline Device gpu_of(const at::ITensorListRef& list) { return gpu_in(list); }
inline Device gpu_of(const c10::List<std::optional<at::Tensor>>& list) {
  for (size_t i = 0; i < list.size(); ++i)
    if (Device found = gpu_of(list.get(i))) return found;
  return {};
}
inline Device gpu_of(at::Tensor* x) { return x ? gpu_of(*x) : Device(); }

// A tensor that kernels of a device could not read. Numbers (0-dim) are ATen's business.
inline bool is_elsewhere(const at::TensorBase& x) { return x.defined() && !x.is_cuda() && x.dim() > 0; }
inline bool is_elsewhere(const std::optional<at::Tensor>& x) { return x && is_elsewhere(*x); }
template <class T>
  requires(!std::is_base_of_v<at::TensorBase, T> && !std::is_same_v<T, std::optional<at::Tensor>>)
bool is_elsewhere(const T&) {
  return false;
}

class Where {
 public:
  template <class... Arguments>
  explicit Where(const Arguments&... arguments) : before_(on_cuda) {
    Device device;
    (void)((device = gpu_of(arguments), device.has_value()) || ...);
    if (device)
      TORCH_CHECK(!(is_elsewhere(arguments) || ...), "Expected all tensors to be on the same device, but found at least "
                  "two devices, ", *device, " and cpu!");
    on_cuda = device.has_value();
    if (device) guard_.reset_device(*device);
  }
  ~Where() { on_cuda = before_; }
  Where(const Where&) = delete;

 private:
  bool before_;
  c10::OptionalDeviceGuard guard_;
};

}
