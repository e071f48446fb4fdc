// The pointwise operators: one kernel for each, over elements of any type and stride.
#include "../cpu/pointwise.h"

#include "device.h"
#include "elements.h"

ES_NAMESPACE {

struct Operands {
  char* data[4];
  int64_t strides[4];  // bytes
};

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
ES_KERNEL void ES_THREADS(kThreads) strided_kernel(PointJob job, Operands o, int64_t count) {
  ES_EACH(i, count) {
    float x = load(job.types[1], o.data[1] + i * o.strides[1]), y = 0, z = 0;
    if (Value::kInputs > 1) y = load(job.types[2], o.data[2] + i * o.strides[2]);
    if (Value::kInputs > 2) z = load(job.types[3], o.data[3] + i * o.strides[3]);
    store(job.types[0], o.data[0] + i * o.strides[0], Value::of(x, y, z, job.numbers));
  }
}

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

template <class Value>
static void run(const PointJob& job, const Operands& operands, int64_t count) {
  if (count) ES_LAUNCH(blocks_for_threads(count), kThreads, strided_kernel<Value>, job, operands, count);
}

#define ES_RUN(name, inputs, value) run<Value_##name>,
#define ES_RUN_INPUTS(name, inputs, value) inputs,
static void (*const kRuns[])(const PointJob&, const Operands&, int64_t) = {ES_POINTWISE(ES_RUN)};
static const int kInputsOf[] = {ES_POINTWISE(ES_RUN_INPUTS)};
#undef ES_RUN
#undef ES_RUN_INPUTS

static void strided(const PointJob& job, char* const* data, const int64_t* strides, int64_t count) {
  Operands all{};
  for (int o = 0; o <= kInputsOf[(int)job.point]; ++o) all.data[o] = data[o], all.strides[o] = strides[o];
  kRuns[(int)job.point](job, all, count);
}

static void contiguous(Point point, float* out, const float* const* inputs, int64_t count, const float* numbers) {
  PointJob job{point, {}, {}};
  if (numbers) memcpy(job.numbers, numbers, sizeof(job.numbers));
  Operands all{{(char*)out}, {4, 4, 4, 4}};
  for (int o = 0; o < kInputsOf[(int)point]; ++o) all.data[o + 1] = (char*)inputs[o];
  kRuns[(int)point](job, all, count);
}

static int inputs_of(Point point) { return kInputsOf[(int)point]; }

static const Pointwise kTable = {strided, contiguous, inputs_of};

}
ES_NAMESPACE_END

ES_TABLE_IS(Pointwise, pointwise, kTable)
#endif
