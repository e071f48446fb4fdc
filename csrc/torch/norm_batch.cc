// Batch norm: every operator through which it is reached. Statistics are floats whatever the type of the input.
#include "../cpu/norm_batch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "norm.h"
#include "registry.h"

namespace es::glue {
namespace {

using at::Tensor;
using Maybe = const std::optional<Tensor>&;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Tensor or_none(Maybe x) { return x ? *x : Tensor(); }

bool is(const Tensor& x) { return x.defined(); }

// How the input lies: what is neither contiguous nor channels-last is copied.
struct Laid {
  at::MemoryFormat format;
  Images images;

  explicit Laid(const char* name, const Tensor& x) {
    TORCH_CHECK(!is_integral_or_refuse(x.scalar_type(), name), name, " is not for integers");
    TORCH_CHECK(x.dim() >= 2, name, ": expected at least 2 dimensions, got ", x.sizes());
    format = x.suggest_memory_format();
    int64_t positions = 1;
    for (int64_t d = 2; d < x.dim(); ++d) positions *= x.size(d);
    bool last = positions == 1 || format != at::MemoryFormat::Contiguous;
    images = {x.size(0), x.size(1), positions, last};
  }
};

Tensor floats(int64_t size, const Tensor& like) { return at::empty({size}, like.options().dtype(at::kFloat)); }

// The variance's inverse deviation.
Tensor inverse_of(const Tensor& variance, double epsilon) {
  Input in(variance);
  Tensor out = at::empty_like(in.tensor);
  batch_norm_kernels().inverse_deviations(in.data, (float)epsilon, out.mutable_data_ptr<float>(), out.numel());
  return out;
}

void check_size(const char* what, const Tensor& x, int64_t channels) {
  if (is(x)) TORCH_CHECK(x.numel() == channels, what, " should contain ", channels, " elements not ", x.numel());
}

// A running statistic as a float: itself, or a copy that is written back.
struct Running {
  explicit Running(const Tensor& x) : to(x) {
    if (is(x)) value = x.to(at::kFloat).contiguous();
  }
  float* data() { return is(value) ? value.mutable_data_ptr<float>() : nullptr; }
  void write() {
    if (is(value) && !value.is_same(to)) to.copy_(value);
  }
  Tensor to, value;
};

// Outputs, mean and inverse deviation; the latter two are empty where running statistics are used.
Three forward(const char* name, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
              const Tensor& running_var, bool training, double momentum, double epsilon, const Tensor* into = nullptr) {
  Laid laid(name, x);
  int64_t channels = laid.images.channels;
  check_size("weight", weight, channels);
  check_size("bias", bias, channels);
  check_size("running_mean", running_mean, channels);
  check_size("running_var", running_var, channels);
  TORCH_CHECK(training || (is(running_mean) && is(running_var)), name,
              ": running statistics must be defined in evaluation");
  Input in(x, laid.format);
  Tensor mean, inverse;
  if (training) {
    mean = floats(channels, x);
    inverse = floats(channels, x);
    Running means(running_mean), variances(running_var);
    batch_norm_kernels().statistics({laid.images, in.data, (float)epsilon, (float)momentum, (float)(1 - momentum),
                                     mean.mutable_data_ptr<float>(), inverse.mutable_data_ptr<float>(), means.data(),
                                     variances.data()});
    means.write();
    variances.write();
  } else {
    mean = running_mean;
    inverse = inverse_of(running_var, epsilon);
  }
  Affine affine(weight, bias, channels);
  Tensor y = into ? *into : at::empty_like(x, laid.format);
  if (into) y.resize_(x.sizes());
  {
    Input means(mean);
    Output out(&y, laid.format);
    batch_norm_kernels().forward({laid.images, in.data, affine.weight.data, affine.bias.data, out.data, means.data,
                                  inverse.const_data_ptr<float>()});
  }
  if (!training) return {y, floats(0, x), floats(0, x)};
  return {y, mean, inverse};
}

Three backward(const char* name, const Tensor& gradient, const Tensor& x, const Tensor& weight,
               const Tensor& running_mean, const Tensor& running_var, const Tensor& save_mean,
               const Tensor& save_inverse, bool training, double epsilon, std::array<bool, 3> wanted) {
  Laid laid(name, x);
  int64_t channels = laid.images.channels;
  Input g(gradient, laid.format), in(x, laid.format), weights(weight);
  Input mean(training ? save_mean : running_mean), inverse(training ? save_inverse : inverse_of(running_var, epsilon));
  Tensor dx = wanted[0] ? at::empty_like(x, laid.format) : Tensor();
  Tensor dweight = floats(channels, x), dbias = floats(channels, x);
  {
    Output out(&dx, laid.format);
    batch_norm_kernels().backward({laid.images, g.data, in.data, weights.data, mean.data, inverse.data, training,
                                   out.data, dweight.mutable_data_ptr<float>(), dbias.mutable_data_ptr<float>()});
  }
  auto type = is(weight) ? weight.scalar_type() : x.scalar_type();
  return {dx, wanted[1] ? dweight.to(type) : Tensor(), wanted[2] ? dbias.to(type) : Tensor()};
}

constexpr char kNative[] = "native_batch_norm", kLegit[] = "_native_batch_norm_legit";
constexpr char kUpdate[] = "_batch_norm_with_update";

Three native(const Tensor& x, Maybe weight, Maybe bias, Maybe mean, Maybe var, bool training, double momentum,
             double epsilon) {
  return forward(kNative, x, or_none(weight), or_none(bias), or_none(mean), or_none(var), training, momentum, epsilon);
}
Three legit(const Tensor& x, Maybe weight, Maybe bias, Tensor& mean, Tensor& var, bool training, double momentum,
            double epsilon) {
  return forward(kLegit, x, or_none(weight), or_none(bias), mean, var, training, momentum, epsilon);
}
Three no_stats(const Tensor& x, Maybe weight, Maybe bias, bool training, double momentum, double epsilon) {
  return forward(kLegit, x, or_none(weight), or_none(bias), {}, {}, training, momentum, epsilon);
}
Four with_update(const Tensor& x, Maybe weight, Maybe bias, Tensor& mean, Tensor& var, double momentum,
                 double epsilon) {
  auto [y, save_mean, save_inverse] =
      forward(kUpdate, x, or_none(weight), or_none(bias), mean, var, true, momentum, epsilon);
  return {y, save_mean, save_inverse, at::empty({0}, x.options().dtype(at::kByte))};
}

using ThreeOut = std::tuple<Tensor&, Tensor&, Tensor&>;
ThreeOut put(const Three& results, Tensor& y, Tensor& mean, Tensor& inverse) {
  for (auto [from, to] : {std::pair(&std::get<1>(results), &mean), std::pair(&std::get<2>(results), &inverse)}) {
    to->resize_(from->sizes());
    to->copy_(*from);
  }
  return {y, mean, inverse};
}
ThreeOut native_out(const Tensor& x, Maybe weight, Maybe bias, Maybe mean, Maybe var, bool training, double momentum,
                    double epsilon, Tensor& y, Tensor& save_mean, Tensor& save_inverse) {
  return put(forward(kNative, x, or_none(weight), or_none(bias), or_none(mean), or_none(var), training, momentum,
                     epsilon, &y),
             y, save_mean, save_inverse);
}
ThreeOut legit_out(const Tensor& x, Maybe weight, Maybe bias, Tensor& mean, Tensor& var, bool training, double momentum,
                   double epsilon, Tensor& y, Tensor& save_mean, Tensor& save_inverse) {
  return put(forward(kLegit, x, or_none(weight), or_none(bias), mean, var, training, momentum, epsilon, &y), y,
             save_mean, save_inverse);
}
ThreeOut no_stats_out(const Tensor& x, Maybe weight, Maybe bias, bool training, double momentum, double epsilon,
                      Tensor& y, Tensor& save_mean, Tensor& save_inverse) {
  return put(forward(kLegit, x, or_none(weight), or_none(bias), {}, {}, training, momentum, epsilon, &y), y, save_mean,
             save_inverse);
}
std::tuple<Tensor&, Tensor&, Tensor&, Tensor&> with_update_out(const Tensor& x, Maybe weight, Maybe bias, Tensor& mean,
                                                               Tensor& var, double momentum, double epsilon, Tensor& y,
                                                               Tensor& save_mean, Tensor& save_inverse,
                                                               Tensor& reserve) {
  put(forward(kUpdate, x, or_none(weight), or_none(bias), mean, var, true, momentum, epsilon, &y), y, save_mean,
      save_inverse);
  reserve.resize_({0});
  return {y, save_mean, save_inverse, reserve};
}

Three native_backward(const Tensor& gradient, const Tensor& x, Maybe weight, Maybe mean, Maybe var, Maybe save_mean,
                      Maybe save_inverse, bool training, double epsilon, std::array<bool, 3> wanted) {
  return backward("native_batch_norm_backward", gradient, x, or_none(weight), or_none(mean), or_none(var),
                  or_none(save_mean), or_none(save_inverse), training, epsilon, wanted);
}
Three new_backward(const Tensor& gradient, const Tensor& x, const Tensor& weight, Maybe mean, Maybe var,
                   Maybe save_mean, Maybe save_inverse, bool update, double epsilon, std::array<bool, 3> wanted,
                   const Tensor&) {
  return backward("batch_norm_backward", gradient, x, weight, or_none(mean), or_none(var), or_none(save_mean),
                  or_none(save_inverse), update, epsilon, wanted);
}

}

ES_OPERATORS(batch_norm, ops) {
  ops.impl("native_batch_norm", native);
  ops.impl("native_batch_norm.out", native_out);
  ops.impl("_native_batch_norm_legit", legit);
  ops.impl("_native_batch_norm_legit.out", legit_out);
  ops.impl("_native_batch_norm_legit.no_stats", no_stats);
  ops.impl("_native_batch_norm_legit.no_stats_out", no_stats_out);
  ops.impl("_batch_norm_with_update", with_update);
  ops.impl("_batch_norm_with_update.out", with_update_out);
  ops.impl("native_batch_norm_backward", native_backward);
  ops.impl("batch_norm_backward", new_backward);
}

}
