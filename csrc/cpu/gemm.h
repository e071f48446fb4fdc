// Matrix products in the order of exact/order.h.
#pragma once

#include "isa.h"

namespace es {

// A matrix of floats: element (i, j) is at data[i * row + j * column]. Any strides, 0 included.
struct Matrix {
  const float* data;
  int64_t row, column;
};

// out(m, n) = epilogue(sum over k of a(m, k) * b(k, n)), see `contract`.
// The epilogue: t = alpha * sum; beta == 0: t, else fma(beta, c(m, n), t).
struct Product {
  int64_t m, n, k;
  Matrix a, b, c;
  float alpha, beta;
  float* out;
  int64_t row, column;  // of out
};

struct Gemm {
  // Threads inside. `out` may be c.data with the same strides, and overlaps nothing else.
  void (*product)(const Product&);
};

}
ES_TABLE(Gemm, gemm)
