// Random numbers. A call draws one key of 64 bits from the CPU generator that it is given (or the default one), so that
// torch.manual_seed, get_state and torch.Generator keep their meaning; a call for no elements draws none.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/empty.h>

#include "../cpu/random.h"
#include "../exact/half.h"
#include "registry.h"

namespace es::glue {
namespace {

using MaybeGenerator = std::optional<at::Generator>;

uint64_t draw_key(const MaybeGenerator& generator) {
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
  draw(self, generator, "uniform_", [&](const Draw& d) {
    float first = rounded(self.scalar_type(), from), end = rounded(self.scalar_type(), to);
    random_numbers().uniform(d, first, end - first, first < end ? below(self.scalar_type(), end) : first);
  });
}
ES_STUB(uniform_stub, &uniform);

// Zeros and ones may be of any type.
at::ScalarType drawn_type(at::ScalarType type) { return is_ours(type) || type == at::kBool ? type : at::kByte; }

void bernoulli_scalar(const at::TensorBase& self, double p, MaybeGenerator generator) {
  at::ScalarType type = drawn_type(self.scalar_type());
  fill(self, type, [&](void* out) {
    random_numbers().bernoulli({draw_key(generator), self.numel(), out, kind_of(type)}, (uint64_t)std::ceil(p * 0x1p32));
  });
}
ES_STUB(bernoulli_scalar_stub, &bernoulli_scalar);

void bernoulli_tensor(const at::TensorBase& self, const at::TensorBase& p, MaybeGenerator generator) {
  at::ScalarType type = drawn_type(self.scalar_type());
  at::Tensor each = at::Tensor(p).expand(self.sizes()).to(at::kDouble).contiguous();
  const double* probability = each.const_data_ptr<double>();
  for (int64_t i = 0; i < each.numel(); ++i)
    TORCH_CHECK(probability[i] >= 0 && probability[i] <= 1, "Expected p_in >= 0 && p_in <= 1");
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

}
}
