// Random numbers. A call draws one key of 64 bits from the CPU generator that it is given (or the default one), so that
// torch.manual_seed, get_state and torch.Generator keep their meaning; a call for no elements draws none.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randperm.h>

#include "../cpu/random.h"
#include "../exact/half.h"
#include "registry.h"

namespace es::glue {
namespace {

using MaybeGenerator = std::optional<at::Generator>;

uint64_t draw_key(const MaybeGenerator& generator) {
  if (generator && generator->defined() && !generator->device().is_cpu())
    refuse("a generator of " + generator->device().str(),
           "random numbers are the same on every device, and come from the CPU's: use torch.Generator() without a device");
  auto* source =
      at::get_generator_or_default<at::CPUGeneratorImpl>(generator, at::detail::getDefaultCPUGenerator());
  std::lock_guard<std::mutex> lock(source->mutex_);
  return source->random64();
}

void expect_ours(at::ScalarType type, const char* what) {
  if (!is_ours(type)) refuse(what, c10::str("it is not specified for ", type, "; use float32, bfloat16 or float16"));
}

// Elements are counted in row-major order: what is laid out in another way is filled through a copy.
template <class Fill>
void fill(const at::TensorBase& self, at::ScalarType type, Fill write) {
  if (self.numel() == 0) return;
  if (self.is_contiguous() && self.scalar_type() == type) return write(self.data_ptr());
  at::Tensor filled = at::empty(self.sizes(), self.options().dtype(type).memory_format(at::MemoryFormat::Contiguous));
  write(filled.data_ptr());
  at::Tensor(self).copy_(filled);
}

Kind kind_of(at::ScalarType type) {
  return type == at::kFloat      ? Kind::f32
         : type == at::kBFloat16 ? Kind::bf16
         : type == at::kHalf     ? Kind::f16
                                 : Kind::u8;
}

// `write(a Draw for all elements of self)`, which is float, bf16 or fp16.
template <class Write>
void draw(const at::TensorBase& self, const MaybeGenerator& generator, const char* what, Write write) {
  expect_ours(self.scalar_type(), what);
  fill(self, self.scalar_type(), [&](void* out) {
    write(Draw{draw_key(generator), self.numel(), out, kind_of(self.scalar_type())});
  });
}

// x as the type holds it, and the largest value of the type below it.
float rounded(at::ScalarType type, double x) {
  float single = (float)x;
  return type == at::kBFloat16 ? widen(narrow<bf16>(single)) : type == at::kHalf ? widen(narrow<fp16>(single)) : single;
}

float below(at::ScalarType type, float x) {
  if (type == at::kFloat) return std::nextafter(x, -std::numeric_limits<float>::infinity());
  uint16_t word = type == at::kBFloat16 ? narrow<bf16>(x).word : narrow<fp16>(x).word;
  word = (word & 0x7fff) == 0 ? 0x8001 : word & 0x8000 ? word + 1 : word - 1;
  return type == at::kBFloat16 ? widen(bf16{word}) : widen(fp16{word});
}

void uniform(at::TensorIteratorBase& iter, double from, double to, MaybeGenerator generator) {
  const auto& self = iter.tensor_base(0);
  if (self.scalar_type() == at::kDouble)
    return fill(self, at::kDouble, [&](void* out) {
      random_numbers().uniform64(draw_key(generator), self.numel(), (double*)out, from, to);
    });
  draw(self, generator, "uniform_", [&](const Draw& d) {
    float first = rounded(self.scalar_type(), from), end = rounded(self.scalar_type(), to);
    random_numbers().uniform(d, first, end - first, first < end ? below(self.scalar_type(), end) : first);
  });
}
ES_STUB(uniform_stub, &uniform);

void normal(const at::TensorBase& self, double mean, double deviation, MaybeGenerator generator) {
  draw(self, generator, "normal_",
       [&](const Draw& d) { random_numbers().normal(d, (float)mean, (float)deviation); });
}
ES_STUB(normal_stub, &normal);

void log_normal(at::TensorIteratorBase& iter, double mean, double deviation, MaybeGenerator generator) {
  draw(iter.tensor_base(0), generator, "log_normal_",
       [&](const Draw& d) { random_numbers().log_normal(d, (float)mean, (float)deviation); });
}
ES_STUB(log_normal_stub, &log_normal);

// float64, which samplers with weights use, gets the numbers of float32.
void exponential(at::TensorIteratorBase& iter, double rate, MaybeGenerator generator) {
  const auto& self = iter.tensor_base(0);
  at::ScalarType type = self.scalar_type() == at::kDouble ? at::kFloat : self.scalar_type();
  expect_ours(type, "exponential_");
  fill(self, type, [&](void* out) {
    random_numbers().exponential({draw_key(generator), self.numel(), out, kind_of(type)}, (float)rate);
  });
}
ES_STUB(exponential_stub, &exponential);

void cauchy(at::TensorIteratorBase& iter, double median, double sigma, MaybeGenerator generator) {
  draw(iter.tensor_base(0), generator, "cauchy_",
       [&](const Draw& d) { random_numbers().cauchy(d, (float)median, (float)sigma); });
}
ES_STUB(cauchy_stub, &cauchy);

// Of any real type; an integer is at most the largest that both float32 and the type have.
void geometric(at::TensorIteratorBase& iter, double p, MaybeGenerator generator) {
  const auto& self = iter.tensor_base(0);
  at::ScalarType type = is_ours(self.scalar_type()) ? self.scalar_type() : at::kFloat;
  float last = std::numeric_limits<float>::infinity();
  switch (self.scalar_type()) {
    case at::kByte: last = 0xff; break;
    case at::kChar: last = 0x7f; break;
    case at::kShort: last = 0x7fff; break;
    case at::kInt: last = 0x1.fffffep30f; break;
    case at::kLong: last = 0x1.fffffep62f; break;
    default: expect_ours(self.scalar_type(), "geometric_");
  }
  fill(self, type, [&](void* out) {
    random_numbers().geometric({draw_key(generator), self.numel(), out, kind_of(type)}, (float)p, last);
  });
}
ES_STUB(geometric_stub, &geometric);

// Zeros and ones may be of any type.
at::ScalarType drawn_type(at::ScalarType type) { return is_ours(type) || type == at::kBool ? type : at::kByte; }

void bernoulli_scalar(const at::TensorBase& self, double p, MaybeGenerator generator) {
  at::ScalarType type = drawn_type(self.scalar_type());
  fill(self, type, [&](void* out) {
    random_numbers().bernoulli({draw_key(generator), self.numel(), out, kind_of(type)},
                               (uint64_t)std::ceil(p * 0x1p32));
  });
}
ES_STUB(bernoulli_scalar_stub, &bernoulli_scalar);

void bernoulli_tensor(const at::TensorBase& self, const at::TensorBase& p, MaybeGenerator generator) {
  at::ScalarType type = drawn_type(self.scalar_type());
  at::Tensor each = at::Tensor(p).expand(self.sizes()).to(self.device(), at::kDouble).contiguous();
  const double* probability = each.const_data_ptr<double>();
  TORCH_CHECK(random_numbers().probabilities(each.numel(), probability), "Expected p_in >= 0 && p_in <= 1");
  fill(self, type, [&](void* out) {
    random_numbers().bernoulli_each({draw_key(generator), self.numel(), out, kind_of(type)}, probability);
  });
}
ES_STUB(bernoulli_tensor_stub, &bernoulli_tensor);

void integers(const at::TensorBase& self, uint64_t range, int64_t base, const MaybeGenerator& generator) {
  fill(self, at::kLong, [&](void* out) {
    random_numbers().integers(draw_key(generator), self.numel(), (int64_t*)out, range, base);
  });
}

void random_from_to(at::TensorIteratorBase& iter, uint64_t range, int64_t base, MaybeGenerator generator) {
  integers(iter.tensor_base(0), range, base, generator);
}
ES_STUB(random_from_to_stub, &random_from_to);

void random_full(at::TensorIteratorBase& iter, MaybeGenerator generator) {
  integers(iter.tensor_base(0), 0, 0, generator);
}
ES_STUB(random_full_64_bits_range_stub, &random_full);

// With replacement; without, ATen divides by exponential numbers and takes the largest.
void multinomial(at::Tensor& result, const at::Tensor& self, int64_t samples, MaybeGenerator generator) {
  at::ScalarType type = self.scalar_type();
  if (type != at::kDouble) expect_ours(type, "multinomial");
  if (result.numel() == 0) return;
  int64_t width = self.size(-1), rows = self.numel() / width;
  at::Tensor sums = self.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  Weights found = random_numbers().sum_weights(rows, width, sums.mutable_data_ptr<double>());
  TORCH_CHECK(found != Weights::impossible,
              "invalid multinomial distribution (encountering probability entry < 0, or infinity or NaN)");
  TORCH_CHECK(found != Weights::zero, "invalid multinomial distribution (sum of probabilities <= 0)");
  fill(result, at::kLong, [&](void* out) {
    random_numbers().choose(draw_key(generator), rows, width, sums.const_data_ptr<double>(), samples, (int64_t*)out);
  });
}
ES_STUB(multinomial_with_replacement_stub, &multinomial);

// 0 .. the largest integer up to which the type has all of them.
void random(at::TensorIteratorBase& iter, MaybeGenerator generator) {
  const auto& self = iter.tensor_base(0);
  uint64_t range = 0;
  switch (self.scalar_type()) {
    case at::kBool: range = 2; break;
    case at::kByte: range = 1u << 8; break;
    case at::kChar: range = 1u << 7; break;
    case at::kShort: range = 1u << 15; break;
    case at::kInt: range = 1u << 31; break;
    case at::kLong: range = 1ull << 63; break;
    case at::kBFloat16: range = (1u << 8) + 1; break;
    case at::kHalf: range = (1u << 11) + 1; break;
    case at::kFloat: range = (1u << 24) + 1; break;
    case at::kDouble: range = (1ull << 53) + 1; break;
    default: refuse("random_", c10::str("it is not specified for ", self.scalar_type()));
  }
  integers(self, range, 0, generator);
}
ES_STUB(random_stub, &random);

// PyTorch's own shuffle, on the host: its words are those of the CPU generator, one after the other.
at::Tensor& randperm(int64_t n, MaybeGenerator generator, at::Tensor& out) {
  if (out.is_cpu()) return original_result<at::Tensor>("randperm.generator_out", n, generator, out), out;
  return out.resize_({n}).copy_(at::randperm(n, generator, out.options().device(at::kCPU)));
}

// `out`, which was made for a contiguous twin of `like`, in the layout of `like`.
at::Tensor laid_out(const at::Tensor& out, const at::Tensor& like) {
  return like.is_contiguous() ? out : at::empty_like(like, out.options()).copy_(out);
}

// One pass: out = x * scale where a number below 1 - p was drawn, x * 0 elsewhere.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  expect_ours(input.scalar_type(), "native_dropout");
  at::Tensor x = input.contiguous(), out = at::empty_like(x), mask = at::empty(x.sizes(), x.options().dtype(at::kBool));
  if (!train.value_or(true)) return {out.copy_(x), mask.fill_(true)};
  if (x.numel() == 0) return {out, mask};
  double keep = 1 - p;
  random_numbers().dropout({draw_key(std::nullopt), x.numel(), out.mutable_data_ptr(), kind_of(x.scalar_type())},
                           x.const_data_ptr(), (uint8_t*)mask.mutable_data_ptr(), (uint64_t)std::ceil(keep * 0x1p32),
                           keep == 0 ? 0 : (float)(1 / keep));
  return {laid_out(out, input), laid_out(mask, input)};
}

at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  expect_ours(grad.scalar_type(), "native_dropout_backward");
  at::Tensor x = grad.contiguous(), kept = mask.contiguous(), out = at::empty_like(x);
  TORCH_CHECK(kept.scalar_type() == at::kBool && kept.sizes() == x.sizes(), "mask must be of bool and grad's shape");
  random_numbers().masked_scale(x.numel(), out.mutable_data_ptr(), x.const_data_ptr(), kind_of(x.scalar_type()),
                                (const uint8_t*)kept.const_data_ptr(), (float)scale);
  return laid_out(out, grad);
}

}

ES_OPERATORS(random, ops) {
  ops.impl("randperm.generator_out", randperm);
  ops.impl("native_dropout", native_dropout);
  ops.impl("native_dropout_backward", native_dropout_backward);
}

}
