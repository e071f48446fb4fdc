#include "optimizer.h"

ES_NAMESPACE {

template <class T>
static void unscale(T* grad, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) grad[i] = narrow<T>(divide(widen(grad[i]), scale));
}

// What does not change within a step is a constant of the loop, so that it has no branches.
template <class T, bool kAmsgrad>
static void adam_loop(Adam a, T* param, const T* grad, T* mean, T* square, T* largest, int64_t count) {
  a.amsgrad = kAmsgrad;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    float p = widen(param[i]), m = widen(mean[i]), s = widen(square[i]), l = kAmsgrad ? widen(largest[i]) : 0.0f;
    adam<T>(a, widen(grad[i]), p, m, s, l);
    param[i] = narrow<T>(p);
    mean[i] = narrow<T>(m);
    square[i] = narrow<T>(s);
    if (kAmsgrad) largest[i] = narrow<T>(l);
  }
}

template <class T>
static void adam_of(const Adam& a, void* param, void* grad, void* mean, void* square, void* largest, int64_t count) {
  if (a.gradient.scale != 1) unscale((T*)grad, a.gradient.scale, count);
  auto loop = a.amsgrad ? adam_loop<T, true> : adam_loop<T, false>;
  loop(a, (T*)param, (const T*)grad, (T*)mean, (T*)square, (T*)largest, count);
}

template <class T, bool kMomentum>
static void sgd_loop(Sgd s, T* param, const T* grad, T* buffer, int64_t count) {
  if (!kMomentum) s.momentum = 0;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    float p = widen(param[i]), b = kMomentum ? widen(buffer[i]) : 0.0f;
    sgd<T>(s, widen(grad[i]), p, b);
    param[i] = narrow<T>(p);
    if (kMomentum) buffer[i] = narrow<T>(b);
  }
}

template <class T>
static void sgd_of(const Sgd& s, void* param, void* grad, void* buffer, int64_t count) {
  if (s.gradient.scale != 1) unscale((T*)grad, s.gradient.scale, count);
  auto loop = s.momentum != 0 ? sgd_loop<T, true> : sgd_loop<T, false>;
  loop(s, (T*)param, (const T*)grad, (T*)buffer, count);
}

template <class T>
static void adagrad_loop(Adagrad a, T* param, const T* grad, T* sum, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    float p = widen(param[i]), s = widen(sum[i]);
    adagrad<T>(a, widen(grad[i]), p, s);
    param[i] = narrow<T>(p);
    sum[i] = narrow<T>(s);
  }
}

template <class T>
static void adagrad_of(const Adagrad& a, void* param, void* grad, void* sum, int64_t count) {
  if (a.gradient.scale != 1) unscale((T*)grad, a.gradient.scale, count);
  adagrad_loop<T>(a, (T*)param, (const T*)grad, (T*)sum, count);
}

static void adam_run(Element type, const Adam& a, void* p, void* g, void* m, void* s, void* l, int64_t count) {
  if (type == Element::f32) return adam_of<float>(a, p, g, m, s, l, count);
  if (type == Element::bf16) return adam_of<bf16>(a, p, g, m, s, l, count);
  adam_of<fp16>(a, p, g, m, s, l, count);
}

static void sgd_run(Element type, const Sgd& s, void* p, void* g, void* b, int64_t count) {
  if (type == Element::f32) return sgd_of<float>(s, p, g, b, count);
  if (type == Element::bf16) return sgd_of<bf16>(s, p, g, b, count);
  sgd_of<fp16>(s, p, g, b, count);
}

static void adagrad_run(Element type, const Adagrad& a, void* p, void* g, void* s, int64_t count) {
  if (type == Element::f32) return adagrad_of<float>(a, p, g, s, count);
  if (type == Element::bf16) return adagrad_of<bf16>(a, p, g, s, count);
  adagrad_of<fp16>(a, p, g, s, count);
}

static const Optimizer kTable = {adam_run, sgd_run, adagrad_run};

}
ES_NAMESPACE_END

ES_TABLE_IS(Optimizer, optimizer, kTable)
