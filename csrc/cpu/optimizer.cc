#include "optimizer.h"

#include "parallel.h"

ES_NAMESPACE {

constexpr int64_t kGrain = 16384;  // elements

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

// `step(pointers to a part of each tensor, its length)` for parts. A pointer may be null.
template <int kTensors, class Step>
static void in_parts(Element type, void* const (&tensors)[kTensors], int64_t count, Step step) {
  const int64_t size = type == Element::f32 ? 4 : 2;
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    void* part[kTensors];
    for (int t = 0; t < kTensors; ++t) part[t] = tensors[t] ? (char*)tensors[t] + begin * size : nullptr;
    step(part, end - begin);
  });
}

static void adam_run(Element type, const Adam& a, void* p, void* g, void* m, void* s, void* l, int64_t count) {
  auto of = type == Element::f32 ? adam_of<float> : type == Element::bf16 ? adam_of<bf16> : adam_of<fp16>;
  in_parts(type, {p, g, m, s, l}, count,
           [&](void** t, int64_t length) { of(a, t[0], t[1], t[2], t[3], t[4], length); });
}

static void sgd_run(Element type, const Sgd& s, void* p, void* g, void* b, int64_t count) {
  auto of = type == Element::f32 ? sgd_of<float> : type == Element::bf16 ? sgd_of<bf16> : sgd_of<fp16>;
  in_parts(type, {p, g, b}, count, [&](void** t, int64_t length) { of(s, t[0], t[1], t[2], length); });
}

static void adagrad_run(Element type, const Adagrad& a, void* p, void* g, void* s, int64_t count) {
  auto of = type == Element::f32 ? adagrad_of<float> : type == Element::bf16 ? adagrad_of<bf16> : adagrad_of<fp16>;
  in_parts(type, {p, g, s}, count, [&](void** t, int64_t length) { of(a, t[0], t[1], t[2], length); });
}

static const Optimizer kTable = {adam_run, sgd_run, adagrad_run};

}
ES_NAMESPACE_END

ES_TABLE_IS(Optimizer, optimizer, kTable)
