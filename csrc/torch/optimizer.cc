// The fused optimizers, in the place of ATen's.
#include "../cpu/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/native/FusedAdagrad.h>
#include <ATen/native/FusedAdam.h>
#include <ATen/native/FusedSGD.h>
#include <ATen/ops/empty_like.h>

#include "../cpu/parallel.h"
#include "registry.h"

namespace es::glue {
namespace {

constexpr int64_t kGrain = 16384;

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
      data_.push_back(there ? static_cast<char*>(used_.back().mutable_data_ptr()) : nullptr);
    }
  }

  // f(type, parameters, the others as they were given, count) for parts, in threads.
  template <class F>
  void run(F&& f) {
    int64_t size = param_.element_size();
    char* param = static_cast<char*>(param_.mutable_data_ptr());
    parallel_for(param_.numel(), kGrain, [&](int64_t begin, int64_t end) {
      void* others[4] = {};
      for (size_t i = 0; i < data_.size(); ++i) others[i] = data_[i] ? data_[i] + begin * size : nullptr;
      f(type_, param + begin * size, others, end - begin);
    });
    for (size_t i = 0; i < used_.size(); ++i)
      if (!used_[i].is_same(given_[i])) given_[i].copy_(used_[i]);
  }

 private:
  at::Tensor param_;
  c10::SmallVector<at::Tensor, 4> given_, used_;
  c10::SmallVector<char*, 4> data_;
  Element type_;
};

Gradient gradient(const float* scale, bool maximize, double weight_decay) {
  return {scale ? *scale : 1.0f, maximize, (float)weight_decay};
}

void adam(const at::Tensor& param, const at::Tensor& grad, const at::Tensor& mean, const at::Tensor& square,
          const at::Tensor& largest, const at::Tensor& step, const double lr, const double beta1, const double beta2,
          const double weight_decay, const double eps, const bool amsgrad, const bool maximize, const float* scale,
          const at::native::ADAM_MODE mode) {
  bool decoupled = mode == at::native::ADAM_MODE::ADAMW;
  int64_t count = step.item<int64_t>();
  double correction1 = 1 - integer_power(beta1, count), correction2 = 1 - integer_power(beta2, count);
  es::Adam a{gradient(scale, maximize, decoupled ? 0 : weight_decay),
             decoupled && weight_decay != 0 ? (float)(1 - lr * weight_decay) : 1.0f,
             (float)(1 - beta1),
             (float)beta2,
             (float)(1 - beta2),
             (float)__builtin_sqrt(correction2),
             (float)eps,
             (float)-(lr / correction1),
             amsgrad};
  Tensors tensors("fused Adam", param, {grad, mean, square, amsgrad ? largest : at::Tensor()});
  tensors.run([&](Element type, void* p, void** others, int64_t n) {
    optimizer().adam(type, a, p, others[0], others[1], others[2], others[3], n);
  });
}

void sgd(const at::Tensor& param, const at::Tensor& grad, const at::Tensor& buffer, const double weight_decay,
         const double momentum, const double lr, const double dampening, const bool nesterov, const bool maximize,
         const bool first, const float* scale) {
  es::Sgd s{gradient(scale, maximize, weight_decay), (float)momentum, (float)(1 - dampening), (float)-lr, nesterov, first};
  Tensors tensors("fused SGD", param, {grad, momentum != 0 ? buffer : at::Tensor()});
  tensors.run([&](Element type, void* p, void** others, int64_t n) {
    optimizer().sgd(type, s, p, others[0], others[1], n);
  });
}

void adagrad(const at::Tensor& param, const at::Tensor& grad, const at::Tensor& sum, const at::Tensor& step,
             const double lr, const double lr_decay, const double weight_decay, const double eps, const bool maximize,
             const float* scale) {
  double rate = lr / (1 + (step.item<double>() - 1) * lr_decay);
  es::Adagrad a{gradient(scale, maximize, weight_decay), (float)eps, (float)-rate};
  Tensors tensors("fused Adagrad", param, {grad, sum});
  tensors.run(
      [&](Element type, void* p, void** others, int64_t n) { optimizer().adagrad(type, a, p, others[0], others[1], n); });
}

ES_STUB(fused_adam_stub, &adam);
ES_STUB(fused_sgd_stub, &sgd);
ES_STUB(fused_adagrad_stub, &adagrad);

}
}
