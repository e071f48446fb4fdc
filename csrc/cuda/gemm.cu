// Matrix products.
#include "../cpu/gemm.h"

#include "../exact/half.h"
#include "../exact/product.h"
#include "contraction.h"

ES_NAMESPACE {

template <class T>
struct MatrixProduct {
  int64_t batch, m, n, k;
  Product p;

  explicit MatrixProduct(const Product& p) : batch(p.batch), m(p.m), n(p.n), k(p.k), p(p) {}

  ES_FN bool left_along_k() const { return p.a.column == 1; }
  ES_FN bool right_along_k() const { return p.b.row == 1 && p.b.column != 1; }
  static ES_FN float at(const Matrix& x, int64_t number, int64_t i, int64_t j) {
    return widen(((const T*)x.data)[number * x.batch + i * x.row + j * x.column]);
  }
  ES_FN float left(int64_t number, int64_t i, int64_t k) const { return at(p.a, number, i, k); }
  ES_FN float right(int64_t number, int64_t k, int64_t j) const { return at(p.b, number, k, j); }
  ES_FN void store(int64_t number, int64_t i, int64_t j, float sum) const {
    float addend = p.beta == 0 ? 0.0f : at(p.c, number, i, j);
    T* out = (T*)p.out.data + number * p.out.batch + i * p.out.row + j * p.out.column;
    *out = narrow<T>(scale_and_add(sum, p.alpha, p.beta, addend));
  }
};

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

static void product(const Product& p) {
  if (p.element == Element::f32) return contract_all(MatrixProduct<float>(p));
  if (p.element == Element::bf16) return contract_all(MatrixProduct<bf16>(p));
  contract_all(MatrixProduct<fp16>(p));
}

static const Gemm kTable = {product};

}
ES_NAMESPACE_END

ES_TABLE_IS(Gemm, gemm, kTable)
#endif
