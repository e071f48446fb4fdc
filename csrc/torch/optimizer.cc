// The fused optimizers, in the place of ATen's: lists of parameters, gradients and states, a kernel for each parameter.
#include "../cpu/optimizer.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>

#include "registry.h"

namespace es::glue {
namespace {

using List = at::TensorList;
using Maybe = const std::optional<at::Tensor>&;

// A parameter, its gradient and its state, of one type, in the parameter's layout: what has another is copied, there and
// back.
class Tensors {
 public:
  Tensors(const char* what, const at::Tensor& param, std::initializer_list<at::Tensor> others) : param_(param) {
    type_ = element_or_refuse(param.scalar_type(), what);
    if (!param.is_non_overlapping_and_dense()) refuse(what, "the parameter's memory has holes; use fused=False");
    for (auto& other : others) {
      bool there = other.defined() && other.numel() == param.numel();
      if (there && other.scalar_type() != param.scalar_type())
        refuse(what, "the gradient's or a state's type is not the parameter's; use fused=False");
      bool copied = there && other.strides() != param.strides();
      given_.push_back(other);
      used_.push_back(copied ? at::empty_like(param).copy_(other) : other);
      data_.push_back(there ? used_.back().mutable_data_ptr() : nullptr);
    }
  }

  // f(type, parameter, the others as they were given, count).
  template <class F>
  void run(F&& f) {
    f(type_, param_.mutable_data_ptr(), data_.data(), param_.numel());
    for (size_t i = 0; i < used_.size(); ++i)
      if (!used_[i].is_same(given_[i])) given_[i].copy_(used_[i]);
  }

 private:
  at::Tensor param_;
  c10::SmallVector<at::Tensor, 4> given_, used_;
  c10::SmallVector<void*, 4> data_;
  Element type_;
};

// What a GradScaler says: whether the step is to be left out, and what gradients are still multiplied by.
bool left_out(Maybe found_inf) { return found_inf && found_inf->defined() && found_inf->item<float>() == 1; }
float scale_of(Maybe grad_scale) { return grad_scale && grad_scale->defined() ? grad_scale->item<float>() : 1.0f; }

void check_sizes(size_t size, std::initializer_list<List> lists) {
  for (List list : lists)
    TORCH_CHECK(list.size() == size, "lists of ", size, " parameters and ", list.size(), " gradients or states");
}

// At once, wherever they lie: one copy to the host for all.
std::vector<double> numbers(List steps) {
  if (steps.empty()) return {};
  at::Tensor all = at::stack(steps).to(at::kCPU, at::kDouble).contiguous();
  const double* data = all.const_data_ptr<double>();
  return {data, data + all.numel()};
}

template <bool decoupled>
void adam(List params, List grads, List means, List squares, List largest, List steps, double lr, double beta1,
          double beta2, double weight_decay, double eps, bool amsgrad, bool maximize, Maybe grad_scale,
          Maybe found_inf) {
  if (left_out(found_inf)) return;
  check_sizes(params.size(), {grads, means, squares, steps});
  check_sizes(amsgrad ? params.size() : 0, {largest});
  Gradient gradient{scale_of(grad_scale), maximize, decoupled ? 0 : (float)weight_decay};
  std::vector<double> counts = numbers(steps);
  for (size_t i = 0; i < params.size(); ++i) {
    int64_t count = (int64_t)counts[i];
    double correction1 = 1 - integer_power(beta1, count), correction2 = 1 - integer_power(beta2, count);
    es::Adam a{gradient,
               decoupled && weight_decay != 0 ? (float)(1 - lr * weight_decay) : 1.0f,
               (float)(1 - beta1),
               (float)beta2,
               (float)(1 - beta2),
               (float)__builtin_sqrt(correction2),
               (float)eps,
               (float)-(lr / correction1),
               amsgrad};
    Tensors tensors("fused Adam", params[i], {grads[i], means[i], squares[i], amsgrad ? largest[i] : at::Tensor()});
    tensors.run([&](Element type, void* p, void** others, int64_t n) {
      optimizer().adam(type, a, p, others[0], others[1], others[2], others[3], n);
    });
  }
}

void sgd(List params, List grads, List buffers, double weight_decay, double momentum, double lr, double dampening,
         bool nesterov, bool maximize, bool first, Maybe grad_scale, Maybe found_inf) {
  if (left_out(found_inf)) return;
  check_sizes(params.size(), {grads});
  check_sizes(momentum != 0 ? params.size() : 0, {buffers});
  es::Sgd s{{scale_of(grad_scale), maximize, (float)weight_decay}, (float)momentum, (float)(1 - dampening),
            (float)-lr, nesterov, first};
  for (size_t i = 0; i < params.size(); ++i) {
    Tensors tensors("fused SGD", params[i], {grads[i], momentum != 0 ? buffers[i] : at::Tensor()});
    tensors.run([&](Element type, void* p, void** others, int64_t n) {
      optimizer().sgd(type, s, p, others[0], others[1], n);
    });
  }
}

void adagrad(List params, List grads, List sums, List steps, double lr, double lr_decay, double weight_decay,
             double eps, bool maximize, Maybe grad_scale, Maybe found_inf) {
  if (left_out(found_inf)) return;
  check_sizes(params.size(), {grads, sums, steps});
  Gradient gradient{scale_of(grad_scale), maximize, (float)weight_decay};
  std::vector<double> counts = numbers(steps);
  for (size_t i = 0; i < params.size(); ++i) {
    double rate = lr / (1 + (counts[i] - 1) * lr_decay);
    es::Adagrad a{gradient, (float)eps, (float)-rate};
    Tensors tensors("fused Adagrad", params[i], {grads[i], sums[i]});
    tensors.run([&](Element type, void* p, void** others, int64_t n) {
      optimizer().adagrad(type, a, p, others[0], others[1], n);
    });
  }
}

// The same with a rate that is a tensor.
template <bool decoupled>
void adam_by_tensor(List params, List grads, List means, List squares, List largest, List steps, const at::Tensor& lr,
                    double beta1, double beta2, double weight_decay, double eps, bool amsgrad, bool maximize,
                    Maybe grad_scale, Maybe found_inf) {
  adam<decoupled>(params, grads, means, squares, largest, steps, lr.item<double>(), beta1, beta2, weight_decay, eps,
                  amsgrad, maximize, grad_scale, found_inf);
}
void sgd_by_tensor(List params, List grads, List buffers, double weight_decay, double momentum, const at::Tensor& lr,
                   double dampening, bool nesterov, bool maximize, bool first, Maybe grad_scale, Maybe found_inf) {
  sgd(params, grads, buffers, weight_decay, momentum, lr.item<double>(), dampening, nesterov, maximize, first,
      grad_scale, found_inf);
}
void adagrad_by_tensor(List params, List grads, List sums, List steps, const at::Tensor& lr, double lr_decay,
                       double weight_decay, double eps, bool maximize, Maybe grad_scale, Maybe found_inf) {
  adagrad(params, grads, sums, steps, lr.item<double>(), lr_decay, weight_decay, eps, maximize, grad_scale, found_inf);
}

}

ES_OPERATORS(optimizer, ops) {
  ops.impl("_fused_adam_", adam<false>);
  ops.impl("_fused_adam_.tensor_lr", adam_by_tensor<false>);
  ops.impl("_fused_adamw_", adam<true>);
  ops.impl("_fused_adamw_.tensor_lr", adam_by_tensor<true>);
  ops.impl("_fused_sgd_", sgd);
  ops.impl("_fused_sgd_.tensor_lr", sgd_by_tensor);
  ops.impl("_fused_adagrad_", adagrad);
  ops.impl("_fused_adagrad_.tensor_lr", adagrad_by_tensor);
}

}
