// Matrix products: mm, addmm, bmm, baddbmm, addmv, mv, dot, vdot, addr, and all that ATen makes of them (matmul,
// linear, einsum, addbmm, bilinear). Shapes, types and messages are those of ATen's own shape functions.
#include "../cpu/gemm.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/native/LinearAlgebra.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_addmm_activation_meta.h>
#include <ATen/ops/addmm_meta.h>
#include <ATen/ops/addmv_meta.h>
#include <ATen/ops/baddbmm_meta.h>
#include <ATen/ops/bmm_meta.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm_meta.h>
#include <ATen/ops/relu.h>

#include "registry.h"

namespace es::glue {
namespace {

using at::Scalar;
using at::Tensor;

// With the last two dimensions as they are said to be; a missing batch dimension has a stride of 0.
Matrix matrix(const Tensor& x, int row, int column) {
  auto strides = x.strides();
  return {x.const_data_ptr(), row > 0 && column > 0 ? strides[0] : 0, row < 0 ? 0 : strides[row],
          column < 0 ? 0 : strides[column]};
}

// The output of an operator, new or given, as ATen's shape function `Meta` of the operator asks for it.
template <class Meta>
struct Output final : Meta {
  enum Kind { fresh, given, in_place };
  Kind kind = fresh;
  Tensor tensor;

  Output() = default;
  Output(const Tensor& tensor, Kind kind) : kind(kind), tensor(tensor) {}

  const Tensor& maybe_get_output(int64_t) override { return tensor; }
  void set_output_strided(int64_t, at::IntArrayRef sizes, at::IntArrayRef, at::TensorOptions options) override {
    set(sizes, options);
  }
  void set_output_raw_strided(int64_t, at::IntArrayRef sizes, at::IntArrayRef, at::TensorOptions options) override {
    set(sizes, options);
  }

 private:
  void set(at::IntArrayRef sizes, at::TensorOptions options) {
    if (kind == fresh) {
      tensor = at::empty(sizes, options);
      return;
    }
    TORCH_CHECK(options.dtype() == tensor.dtype(), "Expected out tensor to have dtype ", options.dtype(), ", but got ",
                tensor.dtype(), " instead");
    if (kind == given)
      at::native::resize_output(tensor, sizes);
    else
      TORCH_CHECK(tensor.sizes() == sizes, "Bad in-place call: input tensor size ", tensor.sizes(),
                  " and output tensor size ", sizes, " should match");
    at::assert_no_internal_overlap(tensor);
  }
};

bool shares_memory(const Tensor& out, const Tensor& in) {
  return out.is_alias_of(in) && at::get_overlap_status(out, in) != at::MemOverlapStatus::No;
}

bool same_place(const Tensor& out, const Tensor& in) {
  return out.const_data_ptr() == in.const_data_ptr() && out.strides() == in.strides() && out.sizes() == in.sizes();
}

// out = beta * c + alpha * a @ b, for `out` (batch,) m, n; `c` has its shape, or is undefined where beta is 0.
void multiply(const Tensor& out, const Tensor& c, const Tensor& a, const Tensor& b, float beta, float alpha,
              bool fresh = false) {
  auto type = out.scalar_type();
  TORCH_CHECK(a.scalar_type() == type && b.scalar_type() == type && (beta == 0 || c.scalar_type() == type),
              "expected matrices of the same dtype, but got ", a.dtype(), ", ", b.dtype(), " and ", out.dtype());
  if (out.numel() == 0) return;
  if (!fresh && (shares_memory(out, a) || shares_memory(out, b) ||
                 (beta != 0 && shares_memory(out, c) && !same_place(out, c)))) {
    Tensor apart = at::empty(out.sizes(), out.options());
    multiply(apart, c, a, b, beta, alpha, true);
    out.copy_(apart);
    return;
  }
  auto d = (int)out.dim(), m = d - 2, n = d - 1;
  gemm().product({element_or_refuse(type, "product"), d == 3 ? out.size(0) : 1, out.size(m), out.size(n), a.size(n),
                  matrix(a, m, n), matrix(b, m, n), beta == 0 ? Matrix{} : matrix(c, m, n), alpha, beta, matrix(out, m, n)});
}

// Operators. `compute` is given the output and the arguments; the types of the first argument decide whose it is.

template <class MetaOfIt>
struct Plain {
  using Meta = MetaOfIt;
  static void compute(Output<Meta>& result, const Tensor& a, const Tensor& b) {
    result.meta(a, b);
    multiply(result.tensor, {}, a, b, 0, 1, result.kind == result.fresh);
  }
};
struct Mm : Plain<at::meta::structured_mm> {
  static constexpr const char *name = "mm", *out_name = "mm.out";
};
struct Bmm : Plain<at::meta::structured_bmm> {
  static constexpr const char *name = "bmm", *out_name = "bmm.out";
};

template <class MetaOfIt>
struct Added {
  using Meta = MetaOfIt;
  template <class... More>
  static void compute(Output<Meta>& result, const Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta,
                      const Scalar& alpha, More... more) {
    result.meta(c, a, b, beta, alpha, more...);
    float scale = beta.to<float>();
    multiply(result.tensor, scale == 0 ? Tensor() : c.expand(result.tensor.sizes()), a, b, scale, alpha.to<float>(),
             result.kind == result.fresh);
  }
};
struct Addmm : Added<at::meta::structured_addmm> {
  static constexpr const char *name = "addmm", *in_place_name = "addmm_", *out_name = "addmm.out";
};
struct Baddbmm : Added<at::meta::structured_baddbmm> {
  static constexpr const char *name = "baddbmm", *in_place_name = "baddbmm_", *out_name = "baddbmm.out";
};

// addmm, rounded to the type, and then the operator of that name.
struct AddmmActivation : Added<at::meta::structured__addmm_activation> {
  static constexpr const char *name = "_addmm_activation", *out_name = "_addmm_activation.out";
  static void compute(Output<Meta>& result, const Tensor& c, const Tensor& a, const Tensor& b, const Scalar& beta,
                      const Scalar& alpha, bool use_gelu) {
    Added::compute(result, c, a, b, beta, alpha, use_gelu);
    if (use_gelu)
      at::gelu_(result.tensor);
    else
      at::relu_(result.tensor);
  }
};

struct Addmv {
  using Meta = at::meta::structured_addmv;
  static constexpr const char *name = "addmv", *in_place_name = "addmv_", *out_name = "addmv.out";
  static void compute(Output<Meta>& result, const Tensor& c, const Tensor& a, const Tensor& x, const Scalar& beta,
                      const Scalar& alpha) {
    result.meta(c, a, x, beta, alpha);
    float scale = beta.to<float>();
    multiply(result.tensor.unsqueeze(1), scale == 0 ? Tensor() : c.expand(result.tensor.sizes()).unsqueeze(1), a,
             x.unsqueeze(1), scale, alpha.to<float>(), result.kind == result.fresh);
  }
};

// The variants of an operator. Integers are PyTorch's: they are exact in any order.
template <class Op, class First, class... Rest>
struct Variants {
  using Result = Output<typename Op::Meta>;

  static Tensor functional(First first, Rest... rest) {
    if (is_integral_or_refuse(first.scalar_type(), Op::name)) return original_result<Tensor>(Op::name, first, rest...);
    Result result;
    Op::compute(result, first, rest...);
    return std::move(result.tensor);
  }

  static Tensor& out(First first, Rest... rest, Tensor& out) {
    if (is_integral_or_refuse(first.scalar_type(), Op::name)) {
      original_result<Tensor>(Op::out_name, first, rest..., out);
      return out;
    }
    Result result(out, Result::given);
    Op::compute(result, first, rest...);
    return out;
  }

  static Tensor& in_place(Tensor& self, Rest... rest) {
    if (is_integral_or_refuse(self.scalar_type(), Op::name)) {
      original_result<Tensor>(Op::in_place_name, self, rest...);
      return self;
    }
    Result result(self, Result::in_place);
    Op::compute(result, self, rest...);
    return self;
  }
};

template <class Op>
using OfTwo = Variants<Op, const Tensor&, const Tensor&>;
template <class Op, class... More>
using OfThree = Variants<Op, const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&, More...>;

Tensor inner(const Tensor& x, const Tensor& y, const char* name) {
  if (is_integral_or_refuse(x.scalar_type(), name)) return original_result<Tensor>(name, x, y);
  TORCH_CHECK(x.dim() == 1 && y.dim() == 1, "1D tensors expected, but got ", x.dim(), "D and ", y.dim(), "D tensors");
  TORCH_CHECK(x.scalar_type() == y.scalar_type(), "dot : expected both vectors to have same dtype, but found ",
              x.scalar_type(), " and ", y.scalar_type());
  TORCH_CHECK(x.numel() == y.numel(), "inconsistent tensor size, expected tensor [", x.numel(), "] and src [",
              y.numel(), "] to have the same number of elements");
  Tensor out = at::empty({}, x.options());
  gemm().product({element_or_refuse(x.scalar_type(), "dot"), 1, 1, 1, x.numel(), matrix(x, -1, 0), matrix(y, 0, -1), {},
                  1, 0, matrix(out, -1, -1)});
  return out;
}

Tensor dot(const Tensor& x, const Tensor& y) { return inner(x, y, "dot"); }
Tensor vdot(const Tensor& x, const Tensor& y) { return inner(x, y, "vdot"); }

// addr: products of length 1. The vectors come expanded to the output.
void addr_kernel(at::TensorIterator& iter, const Scalar& beta, const Scalar& alpha) {
  auto type = iter.common_dtype();
  if (is_integral_or_refuse(type, "addr")) return original(at::native::addr_stub)(iter, beta, alpha);
  float scale = beta.to<float>(), factor = alpha.to<float>();
  int64_t size = c10::elementSize(type);
  iter.for_each([&](char** data, const int64_t* strides, int64_t n) {
    auto at = [&](int i) { return Matrix{data[i], strides[i] / size, 0, 0}; };
    gemm().product({element_or_refuse(type, "product"), n, 1, 1, 1, at(2), at(3), at(1), factor, scale, at(0)});
  });
}
ES_STUB(addr_stub, &addr_kernel);

}

ES_OPERATORS(gemm, ops) {
  ops.impl("mm", OfTwo<Mm>::functional);
  ops.impl("mm.out", OfTwo<Mm>::out);
  ops.impl("bmm", OfTwo<Bmm>::functional);
  ops.impl("bmm.out", OfTwo<Bmm>::out);
  ops.impl("addmm", OfThree<Addmm>::functional);
  ops.impl("addmm_", OfThree<Addmm>::in_place);
  ops.impl("addmm.out", OfThree<Addmm>::out);
  ops.impl("baddbmm", OfThree<Baddbmm>::functional);
  ops.impl("baddbmm_", OfThree<Baddbmm>::in_place);
  ops.impl("baddbmm.out", OfThree<Baddbmm>::out);
  ops.impl("_addmm_activation", OfThree<AddmmActivation, bool>::functional);
  ops.impl("_addmm_activation.out", OfThree<AddmmActivation, bool>::out);
  ops.impl("addmv", OfThree<Addmv>::functional);
  ops.impl("addmv_", OfThree<Addmv>::in_place);
  ops.impl("addmv.out", OfThree<Addmv>::out);
  ops.impl("dot", dot);
  ops.impl("vdot", vdot);
}

}
