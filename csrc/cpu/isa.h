// Instruction sets, and the tables of kernels that are compiled once for each of them.
//
// A family of kernels (`gemm`, `reduce`) declares in its header a struct of function pointers and ES_TABLE(struct, name);
// its .cc file, compiled for every instruction set, ends with ES_TABLE_IS(struct, name, its own); callers say `name()`.
// All of a family's code is in ES_NAMESPACE (see base.h) and uses nothing of the standard library that is not a macro
// or constant: its inline functions would be shared between instruction sets.
#pragma once

#include "../exact/base.h"

#define ES_JOIN_(a, b) a##b
#define ES_JOIN(a, b) ES_JOIN_(a, b)

namespace es {

enum class Isa { baseline, avx2, avx512, neon, cuda };

// The one in use: the best that this processor has, or what `use_isa` was told.
Isa isa();

// Use this one from now on: "baseline", "avx2", "avx512", "neon", "cuda" (whose kernels the shim runs, or a GPU); "" is
// the processor's best. False: this processor lacks it, or it was not built.
bool use_isa(const char* name);
const char* isa_name();

}

// The kernels of csrc/cuda are one more set, which a program need not have: the one in use by a thread while what it works
// on is on such a device.
#ifndef __CUDACC__
namespace es {

extern constinit thread_local bool on_cuda;

}
#endif
#define ES_CUDA_TABLE(Table, name) __attribute__((weak)) const Table& ES_JOIN(name, _cuda)();
#define ES_CUDA_CASE(name) \
  case Isa::cuda:          \
    return ES_JOIN(name, _cuda)();

#if defined(__x86_64__)
#define ES_TABLE(Table, name)                \
  namespace es {                             \
  const Table& ES_JOIN(name, _baseline)();   \
  const Table& ES_JOIN(name, _avx2)();       \
  const Table& ES_JOIN(name, _avx512)();     \
  ES_CUDA_TABLE(Table, name)                 \
  static inline const Table& name() {        \
    switch (isa()) {                         \
      case Isa::avx512:                      \
        return ES_JOIN(name, _avx512)();     \
      case Isa::avx2:                        \
        return ES_JOIN(name, _avx2)();       \
        ES_CUDA_CASE(name)                   \
      default:                               \
        return ES_JOIN(name, _baseline)();   \
    }                                        \
  }                                          \
  }
#else
#define ES_TABLE(Table, name)                                        \
  namespace es {                                                     \
  const Table& ES_JOIN(name, _neon)();                               \
  ES_CUDA_TABLE(Table, name)                                         \
  static inline const Table& name() {                                \
    switch (isa()) {                                                 \
      ES_CUDA_CASE(name)                                             \
      default:                                                       \
        return ES_JOIN(name, _neon)();                               \
    }                                                                \
  }                                                                  \
  }
#endif

#define ES_TABLE_IS(Table, name, table) \
  const es::Table& es::ES_JOIN(name, ES_JOIN(_, ES_ISA))() { return table; }
