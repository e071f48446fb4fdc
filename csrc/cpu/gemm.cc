#include "gemm.h"

#include "../exact/order.h"
#include "parallel.h"

ES_NAMESPACE {

static void product(const Product& p) {
  parallel_for(p.m * p.n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      int64_t i = at / p.n, j = at % p.n;
      float sum = contract(
          p.k, [&](int64_t k) { return p.a.data[i * p.a.row + k * p.a.column]; },
          [&](int64_t k) { return p.b.data[k * p.b.row + j * p.b.column]; });
      float scaled = p.alpha * sum;
      float result = p.beta == 0 ? scaled : fma(p.beta, p.c.data[i * p.c.row + j * p.c.column], scaled);
      p.out[i * p.row + j * p.column] = result;
    }
  });
}

static const Gemm kTable = {product};

}
ES_NAMESPACE_END

ES_TABLE_IS(Gemm, gemm, kTable)
