#include "gemm.h"

#include "../exact/half.h"
#include "../exact/order.h"
#include "../exact/product.h"
#include "parallel.h"

ES_NAMESPACE {

template <class T>
static void typed(const Product& p) {
  parallel_for(p.batch * p.m * p.n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      int64_t x = at / (p.m * p.n), i = at / p.n % p.m, j = at % p.n;
      const T *a = (const T*)p.a.data + x * p.a.batch + i * p.a.row, *b = (const T*)p.b.data + x * p.b.batch + j * p.b.column;
      float sum = contract(
          p.k, [&](int64_t k) { return widen(a[k * p.a.column]); }, [&](int64_t k) { return widen(b[k * p.b.row]); });
      float c = p.beta == 0 ? 0 : widen(((const T*)p.c.data)[x * p.c.batch + i * p.c.row + j * p.c.column]);
      ((T*)p.out.data)[x * p.out.batch + i * p.out.row + j * p.out.column] =
          narrow<T>(scale_and_add(sum, p.alpha, p.beta, c));
    }
  });
}

static void product(const Product& p) {
  switch (p.element) {
    case Element::f32:
      return typed<float>(p);
    case Element::bf16:
      return typed<bf16>(p);
    case Element::fp16:
      return typed<fp16>(p);
  }
}

static const Gemm kTable = {product};

}
ES_NAMESPACE_END

ES_TABLE_IS(Gemm, gemm, kTable)
