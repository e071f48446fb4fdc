// Group norm, through ATen's stubs. Whatever the layout, elements are counted as (channel, position).
#include <ATen/native/group_norm.h>

#include "../cpu/norm.h"
#include "norm.h"
#include "registry.h"

namespace es::glue {
namespace {

using at::Tensor;

void group_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t batch, int64_t channels,
                int64_t positions, int64_t groups, double epsilon, Tensor& y, Tensor& mean, Tensor& inverse) {
  check_types("native_group_norm", {x, weight, bias});
  Input in(x);
  Affine affine(weight, bias, channels);
  Output out(&y), means(&mean), inverses(&inverse);
  norm_kernels().group_norm({batch, channels, positions, groups, in.data, affine.weight.data, affine.bias.data,
                             (float)epsilon, out.data, means.data, inverses.data});
}
ES_STUB(GroupNormKernel, &group_norm);

void group_norm_backward(const Tensor& gradient, const Tensor& x, const Tensor& mean, const Tensor& inverse,
                         const Tensor& weight, int64_t batch, int64_t channels, int64_t positions, int64_t groups,
                         Tensor& dx, Tensor& dweight, Tensor& dbias) {
  check_types("native_group_norm_backward", {gradient, x, weight});
  Input g(gradient), in(x), means(mean), inverses(inverse), weights(weight);
  Output to(&dx), to_weight(&dweight), to_bias(&dbias);
  norm_kernels().group_norm_backward({batch, channels, positions, groups, g.data, in.data, weights.data, means.data,
                                      inverses.data, to.data, to_weight.data, to_bias.data});
}
ES_STUB(GroupNormBackwardKernel, &group_norm_backward);

}
}
