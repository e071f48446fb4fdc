// The pointwise operators: for each a kernel over elements of any type that lie in any way, and one over floats in a row.
#include "pointwise.h"

#include "device.h"
#include "elements.h"

ES_NAMESPACE {

#define ES_VALUE(name, inputs, value)                                      \
  struct Value_##name {                                                    \
    static constexpr int kInputs = inputs;                                 \
    static ES_FN float of(float x, float y, float z, const float* c) {     \
      (void)x, (void)y, (void)z, (void)c;                                  \
      return value;                                                        \
    }                                                                      \
  };
ES_POINTWISE(ES_VALUE)
#undef ES_VALUE

template <class Value>
ES_KERNEL void ES_THREADS(kThreads) shaped_kernel(PointJob job, Shaped s, int64_t count) {
  ES_EACH(i, count) {
    int64_t offset[Value::kInputs + 1] = {}, rest = i;
    for (int d = 0; d < s.dimensions; ++d) {
      const int64_t at = rest % s.sizes[d];
      rest /= s.sizes[d];
      for (int o = 0; o <= Value::kInputs; ++o) offset[o] += at * s.strides[o][d];
    }
    float in[3] = {};
    for (int o = 1; o <= Value::kInputs; ++o)
      in[o - 1] = s.data[o] ? load(job.types[o], s.data[o] + offset[o]) : s.constants[o];
    store(job.types[0], s.data[0] + offset[0], Value::of(in[0], in[1], in[2], job.numbers));
  }
}

constexpr int kTogether = 4;
struct alignas(4 * kTogether) Together {
  float each[kTogether];
};

// Floats one after the other, aligned for loads of four.
template <class Value>
ES_KERNEL void ES_THREADS(kThreads) row_kernel(PointJob job, Shaped s, int64_t count) {
  ES_EACH(i, count / kTogether) {
    Together in[3] = {}, out;
    for (int o = 1; o <= Value::kInputs; ++o) {
      if (s.data[o]) in[o - 1] = ((const Together*)s.data[o])[i];
      else
        for (int e = 0; e < kTogether; ++e) in[o - 1].each[e] = s.constants[o];
    }
    for (int e = 0; e < kTogether; ++e)
      out.each[e] = Value::of(in[0].each[e], in[1].each[e], in[2].each[e], job.numbers);
    ((Together*)s.data[0])[i] = out;
  }
}

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

static bool is_row(const PointJob& job, const Shaped& s, int inputs, int64_t count) {
  if (s.dimensions > 1 || count % kTogether) return false;
  for (int o = 0; o <= inputs; ++o) {
    if (!s.data[o]) continue;
    if (job.types[o] != Element::f32 || (uintptr_t)s.data[o] % sizeof(Together)) return false;
    if (s.dimensions && s.strides[o][0] != 4) return false;
  }
  return true;
}

template <class Value>
static void run(const PointJob& job, const Shaped& shaped) {
  int64_t count = 1;
  for (int d = 0; d < shaped.dimensions; ++d) count *= shaped.sizes[d];
  if (count == 0) return;
  if (is_row(job, shaped, Value::kInputs, count))
    ES_LAUNCH(blocks_for_threads(count / kTogether), kThreads, row_kernel<Value>, job, shaped, count);
  else
    ES_LAUNCH(blocks_for_threads(count), kThreads, shaped_kernel<Value>, job, shaped, count);
}

#define ES_RUN(name, inputs, value) run<Value_##name>,
#define ES_RUN_INPUTS(name, inputs, value) inputs,
static void (*const kRuns[])(const PointJob&, const Shaped&) = {ES_POINTWISE(ES_RUN)};
static const int kInputsOf[] = {ES_POINTWISE(ES_RUN_INPUTS)};
#undef ES_RUN
#undef ES_RUN_INPUTS

static void shaped(const PointJob& job, const Shaped& shaped) { kRuns[(int)job.point](job, shaped); }

static void strided(const PointJob& job, char* const* data, const int64_t* strides, int64_t count) {
  Shaped all{1, {count}, {}, {}, {}};
  for (int o = 0; o <= kInputsOf[(int)job.point]; ++o) all.data[o] = data[o], all.strides[o][0] = strides[o];
  shaped(job, all);
}

static void contiguous(Point point, float* out, const float* const* inputs, int64_t count, const float* numbers) {
  PointJob job{point, {}, {}};
  if (numbers) memcpy(job.numbers, numbers, sizeof(job.numbers));
  Shaped all{1, {count}, {{4}, {4}, {4}, {4}}, {(char*)out}, {}};
  for (int o = 0; o < kInputsOf[(int)point]; ++o) all.data[o + 1] = (char*)inputs[o];
  shaped(job, all);
}

static int inputs_of(Point point) { return kInputsOf[(int)point]; }

static const Pointwise kTable = {strided, contiguous, inputs_of};

}
ES_NAMESPACE_END

ES_TABLE_IS(Pointwise, pointwise, kTable)

namespace es {

void pointwise_shaped(const PointJob& job, const Shaped& all) { shaped(job, all); }

}
#endif
