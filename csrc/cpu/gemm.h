// Matrix products in the order of exact/order.h.
#pragma once

#include "element.h"
#include "isa.h"

namespace es {

// Matrices in memory: element (i, j) of number x is at data[x * batch + i * row + j * column]. Any strides, 0 included.
struct Matrix {
  const void* data;
  int64_t batch, row, column;
};

// out(m, n) = scale_and_add(sum over k of a(m, k) * b(k, n), alpha, beta, c(m, n)) for each of a batch. Whatever the
// type, all of it is computed in binary32 and rounded once.
struct Product {
  Element element;  // of all four
  int64_t batch, m, n, k;
  Matrix a, b, c;
  float alpha, beta;
  Matrix out;  // its data is written
};

struct Gemm {
  // Threads inside. `out` may be c with the same strides, and overlaps nothing else.
  void (*product)(const Product&);
};

}
ES_TABLE(Gemm, gemm)
