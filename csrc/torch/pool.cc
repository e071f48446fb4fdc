// Pools, nearest upsampling and padding. PyTorch's float32 kernels are loops without products, which add in the order
// of docs/numerics.md (tests/numerics/test_pools.py holds them to it); so only the other types need something: bf16 and
// fp16 are widened, computed in float32 and rounded once; float64 is refused.
#include <ATen/native/AdaptivePooling.h>
#include <ATen/native/Padding.h>
#include <ATen/native/Pool.h>
#include <ATen/native/UpSample.h>

#include "registry.h"

namespace es::glue {
namespace {

// A kernel of PyTorch, for what is_ours.
template <class S, class Function = typename S::FnPtr>
struct Widened;

template <class S, class Out, class In, class... Rest>
struct Widened<S, void (*)(Out, In, Rest...)> {
  static void call(Out out, In in, Rest... rest) {
    auto stock = reinterpret_cast<typename S::FnPtr>(Saved<S>::original);
    if (is_integral_or_refuse(out.scalar_type(), "a pool, upsampling or padding") || out.scalar_type() == at::kFloat)
      return stock(out, in, rest...);
    at::Tensor wide = out.to(at::kFloat), from = in.to(at::kFloat);
    stock(wide, from, rest...);
    at::Tensor(out).copy_(wide);
  }
};

#define ES_WIDENED(stub) ES_STUB(stub, &Widened<std::remove_reference_t<decltype(at::native::stub)>>::call)

ES_WIDENED(avg_pool2d_kernel);
ES_WIDENED(avg_pool2d_backward_kernel);
ES_WIDENED(max_pool2d_backward_kernel);
ES_WIDENED(max_pool3d_backward_kernel);
ES_WIDENED(adaptive_avg_pool2d_kernel);
ES_WIDENED(adaptive_avg_pool2d_backward_kernel);
ES_WIDENED(adaptive_max_pool2d_backward_kernel);
ES_WIDENED(upsample_nearest1d_backward_kernel);
ES_WIDENED(upsample_nearest2d_backward_kernel);
ES_WIDENED(upsample_nearest3d_backward_kernel);
ES_WIDENED(_upsample_nearest_exact1d_backward_kernel);
ES_WIDENED(_upsample_nearest_exact2d_backward_kernel);
ES_WIDENED(_upsample_nearest_exact3d_backward_kernel);
ES_WIDENED(reflection_pad1d_backward_kernel);
ES_WIDENED(reflection_pad2d_backward_kernel);
ES_WIDENED(reflection_pad3d_backward_kernel);
ES_WIDENED(replication_pad1d_backward_kernel);
ES_WIDENED(replication_pad2d_backward_kernel);
ES_WIDENED(replication_pad3d_backward_kernel);

// The same for operators that have no stub.
at::Tensor widened(const at::Tensor& x) { return is_ours(x.scalar_type()) ? x.to(at::kFloat) : x; }
template <class T>
const T& widened(const T& x) {
  return x;
}

template <class... Rest>
at::Tensor run(const char* name, const at::Tensor& x, const Rest&... rest) {
  is_integral_or_refuse(x.scalar_type(), name);
  return original_result<at::Tensor>(name, widened(x), widened(rest)...).to(x.scalar_type());
}

constexpr const char* kNames[] = {"avg_pool3d", "avg_pool3d_backward", "_adaptive_avg_pool3d",
                                  "_adaptive_avg_pool3d_backward", "adaptive_max_pool3d_backward", "col2im"};

template <int which, class... Rest>
at::Tensor pooled(const at::Tensor& x, Rest... rest) {
  return run(kNames[which], x, rest...);
}

template <int which, class... Rest>
at::Tensor& pooled_out(const at::Tensor& x, Rest... rest) {  // the last of which is the output
  auto all = std::tie(rest...);
  constexpr size_t kLast = sizeof...(Rest) - 1;
  at::Tensor result = [&]<size_t... i>(std::index_sequence<i...>) {
    return run(kNames[which], x, std::get<i>(all)...);
  }(std::make_index_sequence<kLast>());
  return std::get<kLast>(all).resize_(result.sizes()).copy_(result);
}

}

ES_OPERATORS(pool, ops) {
  using T = const at::Tensor&;
  using O = at::Tensor&;
  using Sizes = at::IntArrayRef;
  using Divisor = std::optional<int64_t>;
  ops.impl("avg_pool3d", &pooled<0, Sizes, Sizes, Sizes, bool, bool, Divisor>);
  ops.impl("avg_pool3d.out", &pooled_out<0, Sizes, Sizes, Sizes, bool, bool, Divisor, O>);
  ops.impl("avg_pool3d_backward", &pooled<1, T, Sizes, Sizes, Sizes, bool, bool, Divisor>);
  ops.impl("avg_pool3d_backward.grad_input", &pooled_out<1, T, Sizes, Sizes, Sizes, bool, bool, Divisor, O>);
  ops.impl("_adaptive_avg_pool3d", &pooled<2, Sizes>);
  ops.impl("adaptive_avg_pool3d.out", &pooled_out<2, Sizes, O>);
  ops.impl("_adaptive_avg_pool3d_backward", &pooled<3, T>);
  ops.impl("adaptive_avg_pool3d_backward.grad_input", &pooled_out<3, T, O>);
  ops.impl("adaptive_max_pool3d_backward", &pooled<4, T, T>);
  ops.impl("adaptive_max_pool3d_backward.grad_input", &pooled_out<4, T, T, O>);
  ops.impl("col2im", &pooled<5, Sizes, Sizes, Sizes, Sizes, Sizes>);
  ops.impl("col2im.out", &pooled_out<5, Sizes, Sizes, Sizes, Sizes, Sizes, O>);
}

}
