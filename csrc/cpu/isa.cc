// Which instruction set is in use. Compiled once, for the baseline.
#include "gemm.h"
#include "isa.h"

#include <cstdlib>

namespace es {
namespace {

bool has(Isa one) {
  if (one == Isa::cuda) return gemm_cuda;  // the last in the list: nobody has it without asking
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  switch (one) {
    case Isa::baseline:
      return true;
    case Isa::avx2:
      return avx2;
    case Isa::avx512:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    default:
      return false;
  }
#else
  return one == Isa::neon;
#endif
}

constexpr struct {
  const char* name;
  Isa isa;
} kAll[] = {{"avx512", Isa::avx512},
            {"avx2", Isa::avx2},
            {"neon", Isa::neon},
            {"baseline", Isa::baseline},
            {"cuda", Isa::cuda}};

Isa best() {
  for (auto& one : kAll)
    if (has(one.isa)) return one.isa;
  return Isa::baseline;
}

Isa& chosen() {
  static Isa isa = best();
  return isa;
}

}

constinit thread_local bool on_cuda = false;
Isa isa() { return on_cuda ? Isa::cuda : chosen(); }

bool use_isa(const char* name) {
  if (!*name) {
    chosen() = best();
    return true;
  }
  for (auto& one : kAll)
    if (!strcmp(one.name, name) && has(one.isa)) {
      chosen() = one.isa;
      return true;
    }
  return false;
}

const char* isa_name() {
  for (auto& one : kAll)
    if (one.isa == isa()) return one.name;
  return "";
}

}
