// Fused optimizer steps: a thread has an element. (A list of small tensors takes a launch each; those of one size could
// share one.)
#include "../cpu/optimizer.h"

#include "each.h"

ES_NAMESPACE {

template <class T>
struct Tensors {
  T *param, *grad, *first, *second, *third;  // the states, as each optimizer names them
};

template <class T>
static ES_FN float unscaled(T* grad, int64_t i, float scale) {
  if (scale != 1) grad[i] = narrow<T>(divide(widen(grad[i]), scale));
  return widen(grad[i]);
}

template <class T>
static ES_FN void step(const Adam& a, const Tensors<T>& t, int64_t i) {
  float g = unscaled(t.grad, i, a.gradient.scale), p = widen(t.param[i]), m = widen(t.first[i]);
  float s = widen(t.second[i]), l = a.amsgrad ? widen(t.third[i]) : 0.0f;
  adam<T>(a, g, p, m, s, l);
  t.param[i] = narrow<T>(p), t.first[i] = narrow<T>(m), t.second[i] = narrow<T>(s);
  if (a.amsgrad) t.third[i] = narrow<T>(l);
}

template <class T>
static ES_FN void step(const Sgd& s, const Tensors<T>& t, int64_t i) {
  float g = unscaled(t.grad, i, s.gradient.scale), p = widen(t.param[i]);
  float b = s.momentum != 0 ? widen(t.first[i]) : 0.0f;
  sgd<T>(s, g, p, b);
  t.param[i] = narrow<T>(p);
  if (s.momentum != 0) t.first[i] = narrow<T>(b);
}

template <class T>
static ES_FN void step(const Adagrad& a, const Tensors<T>& t, int64_t i) {
  float g = unscaled(t.grad, i, a.gradient.scale), p = widen(t.param[i]), s = widen(t.first[i]);
  adagrad<T>(a, g, p, s);
  t.param[i] = narrow<T>(p), t.first[i] = narrow<T>(s);
}

template <class T, class Step>
struct StepOf {
  Step parameters;
  Tensors<T> tensors;
  ES_FN void operator()(int64_t i) const { step(parameters, tensors, i); }
};

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

template <class T, class Step>
static void run_of(const Step& step, void* p, void* g, void* a, void* b, void* c, int64_t count) {
  for_each(count, StepOf<T, Step>{step, {(T*)p, (T*)g, (T*)a, (T*)b, (T*)c}});
}

template <class Step>
static void run(Element type, const Step& step, void* p, void* g, void* a, void* b, void* c, int64_t count) {
  if (type == Element::f32) return run_of<float>(step, p, g, a, b, c, count);
  if (type == Element::bf16) return run_of<bf16>(step, p, g, a, b, c, count);
  run_of<fp16>(step, p, g, a, b, c, count);
}

static void adam_run(Element type, const Adam& a, void* p, void* g, void* m, void* s, void* l, int64_t count) {
  run(type, a, p, g, m, s, l, count);
}
static void sgd_run(Element type, const Sgd& s, void* p, void* g, void* b, int64_t count) {
  run(type, s, p, g, b, nullptr, nullptr, count);
}
static void adagrad_run(Element type, const Adagrad& a, void* p, void* g, void* s, int64_t count) {
  run(type, a, p, g, s, nullptr, nullptr, count);
}

static const Optimizer kTable = {adam_run, sgd_run, adagrad_run};

}
ES_NAMESPACE_END

ES_TABLE_IS(Optimizer, optimizer, kTable)
#endif
