#include "pointwise.h"

#include "../exact/half.h"
#include "simd.h"

ES_NAMESPACE {

using Run = void (*)(float* out, const float* const* in, int64_t count, const float* numbers);

// Elements do not depend on each other, even where the result takes an input's place.
#define ES_LOOP(value)                                                                  \
  float c[4];                                                                           \
  for (int i = 0; i < 4; ++i) c[i] = numbers[i];                                        \
  const float *a0 = in[0], *a1 = in[1], *a2 = in[2];                                    \
  _Pragma("GCC ivdep") for (int64_t i = 0; i < count; ++i) {                            \
    float x = a0[i], y = kInputs > 1 ? a1[i] : 0.0f, z = kInputs > 2 ? a2[i] : 0.0f;    \
    (void)x, (void)y, (void)z, (void)c;                                                       \
    out[i] = value;                                                                     \
  }

#define ES_RUN(name, inputs, value)                                                                      \
  static void run_##name(float* out, const float* const* in, int64_t count, const float* numbers) {     \
    constexpr int kInputs = inputs;                                                                      \
    ES_LOOP(value)                                                                                       \
  }
ES_POINTWISE(ES_RUN)

// Functions with a branch for huge arguments: all by the branch-free part, then the few again.
#define ES_RUN_SMALL(name, small, any)                                                                        \
  static void run_##name##_fast(float* out, const float* const* in, int64_t count, const float* numbers) {   \
    constexpr int kBatch = 256;                                                                               \
    float kept[kBatch];                                                                                       \
    for (int64_t start = 0; start < count; start += kBatch) {                                                 \
      int64_t length = count - start < kBatch ? count - start : kBatch;                                       \
      const float* from = in[0] + start;                                                                      \
      float* to = out + start;                                                                                \
      int32_t huge = 0;                                                                                       \
      for (int64_t i = 0; i < length; ++i) {                                                                  \
        kept[i] = from[i];                                                                                    \
        huge |= !(absolute(from[i]) <= kSmallAngle);                                                          \
      }                                                                                                       \
      for (int64_t i = 0; i < length; ++i) to[i] = small(kept[i]);                                            \
      if (huge)                                                                                               \
        for (int64_t i = 0; i < length; ++i)                                                                  \
          if (!(absolute(kept[i]) <= kSmallAngle)) to[i] = any(kept[i]);                                      \
    }                                                                                                         \
    (void)numbers;                                                                                            \
  }
ES_RUN_SMALL(sin, sine_small, sine)
ES_RUN_SMALL(cos, cosine_small, cosine)
ES_RUN_SMALL(tan, tangent_small, tangent)

#define ES_RUN_ADDRESS(name, inputs, value) run_##name,
#define ES_RUN_INPUTS(name, inputs, value) inputs,
static const int kInputsOf[] = {ES_POINTWISE(ES_RUN_INPUTS)};

static Run run_of(Point point) {
  static const Run runs[] = {ES_POINTWISE(ES_RUN_ADDRESS)};
  switch (point) {
    case Point::sin:
      return run_sin_fast;
    case Point::cos:
      return run_cos_fast;
    case Point::tan:
      return run_tan_fast;
    default:
      return runs[(int)point];
  }
}

// Results that are larger than a cache go past it: what is not read first costs a third less traffic, and computing goes
// on meanwhile.
static void stream(float* to, const float* from, int64_t count) {
#if defined(__AVX512F__)
  for (int64_t i = 0; i < count; i += 16) _mm512_stream_ps(to + i, _mm512_load_ps(from + i));
#elif defined(__AVX2__)
  for (int64_t i = 0; i < count; i += 8) _mm256_stream_ps(to + i, _mm256_load_ps(from + i));
#else
  memcpy(to, from, 4 * (size_t)count);
#endif
}

static void run_large(Run run, int inputs, float* out, const float* const* in, int64_t count, const float* numbers) {
  constexpr int64_t kBatch = 1024, kLarge = 1 << 20;
  bool in_place = false;
  for (int i = 0; i < inputs; ++i) in_place = in_place || (in[i] < out + count && out < in[i] + count);
  if (count < kLarge || in_place) return run(out, in, count, numbers);
  alignas(64) float buffer[kBatch];
  const float* at[3] = {in[0], in[1], in[2]};
  int64_t first = (int64_t)((64 - ((uintptr_t)out & 63)) & 63) / 4, done = first;
  if (first) run(out, at, first, numbers);
  for (; done + kBatch <= count; done += kBatch) {
    for (int i = 0; i < inputs; ++i) at[i] = in[i] + done;
    run(buffer, at, kBatch, numbers);
    stream(out + done, buffer, kBatch);
  }
  for (int i = 0; i < inputs; ++i) at[i] = in[i] + done;
  run(out + done, at, count - done, numbers);
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

static void contiguous(Point point, float* out, const float* const* inputs, int64_t count, const float* numbers) {
  const float* in[3] = {};
  for (int i = 0; i < kInputsOf[(int)point]; ++i) in[i] = inputs[i];
  float c[4] = {};
  if (numbers) memcpy(c, numbers, sizeof(c));
  run_large(run_of(point), kInputsOf[(int)point], out, in, count, c);
}

template <class T>
static void widen_run(float* to, const char* from, int64_t stride, int64_t count) {
  if (stride == (int64_t)sizeof(T)) {
    const T* at = (const T*)from;
    for (int64_t i = 0; i < count; ++i) to[i] = widen(at[i]);
  } else if (stride == 0) {
    float x = widen(*(const T*)from);
    for (int64_t i = 0; i < count; ++i) to[i] = x;
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = widen(*(const T*)(from + i * stride));
  }
}

template <class T>
static void narrow_run(char* to, int64_t stride, const float* from, int64_t count) {
  if (stride == (int64_t)sizeof(T)) {
    T* at = (T*)to;
    for (int64_t i = 0; i < count; ++i) at[i] = narrow<T>(from[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) *(T*)(to + i * stride) = narrow<T>(from[i]);
  }
}

static void gather(Element type, float* to, const char* from, int64_t stride, int64_t count) {
  if (type == Element::f32) return widen_run<float>(to, from, stride, count);
  if (type == Element::bf16) return widen_run<bf16>(to, from, stride, count);
  widen_run<fp16>(to, from, stride, count);
}

static void scatter(Element type, char* to, int64_t stride, const float* from, int64_t count) {
  if (type == Element::f32) return narrow_run<float>(to, stride, from, count);
  if (type == Element::bf16) return narrow_run<bf16>(to, stride, from, count);
  narrow_run<fp16>(to, stride, from, count);
}

// Contiguous floats are used where they are; everything else goes through buffers that stay in the first cache.
static void strided(const PointJob& job, char* const* data, const int64_t* strides, int64_t count) {
  constexpr int64_t kBatch = 1024;
  alignas(64) float buffer[4][kBatch];
  const int inputs = kInputsOf[(int)job.point];
  Run run = run_of(job.point);
  bool direct[4], constant[4], all = true;
  for (int o = 0; o <= inputs; ++o) {
    direct[o] = job.types[o] == Element::f32 && strides[o] == 4;
    constant[o] = o > 0 && strides[o] == 0;
    all = all && direct[o];
  }
  const float* in[3] = {};
  if (all) {
    for (int o = 1; o <= inputs; ++o) in[o - 1] = (const float*)data[o];
    return run_large(run, inputs, (float*)data[0], in, count, job.numbers);
  }
  int64_t first = count < kBatch ? count : kBatch;
  for (int o = 1; o <= inputs; ++o)
    if (constant[o]) gather(job.types[o], buffer[o], data[o], 0, first);
  for (int64_t start = 0; start < count; start += kBatch) {
    int64_t length = count - start < kBatch ? count - start : kBatch;
    for (int o = 1; o <= inputs; ++o) {
      const char* at = data[o] + start * strides[o];
      if (!direct[o] && !constant[o]) gather(job.types[o], buffer[o], at, strides[o], length);
      in[o - 1] = direct[o] ? (const float*)at : buffer[o];
    }
    char* to = data[0] + start * strides[0];
    run(direct[0] ? (float*)to : buffer[0], in, length, job.numbers);
    if (!direct[0]) scatter(job.types[0], to, strides[0], buffer[0], length);
  }
}

static int inputs_of(Point point) { return kInputsOf[(int)point]; }

static const Pointwise kTable = {strided, contiguous, inputs_of};

}
ES_NAMESPACE_END

ES_TABLE_IS(Pointwise, pointwise, kTable)
