// Random numbers: a thread has a block of Philox, which is four words, for elements that are 16 apart (exact/philox.h).
#include "../cpu/random.h"

#include "../exact/half.h"
#include "../exact/philox.h"
#include "each.h"
#include "first.h"

ES_NAMESPACE {

template <class T>
static ES_FN void store(T* out, int64_t at, float x, float last) {
  T value = narrow<T>(x);
  out[at] = widen(value) > last ? narrow<T>(last) : value;
}

static ES_FN void store(const Draw& d, int64_t at, float x, float last) {
  if (d.kind == Kind::f32) store((float*)d.out, at, x, last);
  else if (d.kind == Kind::bf16) store((bf16*)d.out, at, x, last);
  else if (d.kind == Kind::f16) store((fp16*)d.out, at, x, last);
  else ((uint8_t*)d.out)[at] = (uint8_t)(int32_t)x;
}

// The first element that block number `block` of Philox is for, and how many blocks there are for all.
static ES_FN int64_t first_of(int64_t block) { return block / kPanelBlocks * kPanelWords + block % kPanelBlocks; }
static ES_FN int64_t blocks_of(const Draw& d) { return (d.count + kPanelWords - 1) / kPanelWords * kPanelBlocks; }

// `values(words, first element, its four)`. What exceeds `last` when it has been rounded becomes `last`.
template <class Values>
struct DrawOf {
  Draw d;
  Values values;
  float last;
  ES_FN void operator()(int64_t block) const {
    const int64_t first = first_of(block);
    if (first >= d.count) return;
    float four[4];
    values(philox_block(d.key, (uint64_t)block), first, four);
    for (int r = 0; r < 4; ++r)
      if (first + r * kPanelBlocks < d.count) store(d, first + r * kPanelBlocks, four[r], last);
  }
};

// An element that depends on its word alone.
#define ES_EACH_VALUE(Name, members, value)                                   \
  struct Name {                                                               \
    members;                                                                  \
    ES_FN void operator()(const Words& words, int64_t, float* four) const {   \
      for (int r = 0; r < 4; ++r) {                                           \
        uint32_t word = words.word[r];                                        \
        four[r] = value;                                                      \
      }                                                                       \
    }                                                                         \
  };
ES_EACH_VALUE(UniformValues, Uniform parameters, uniform_of(word, parameters))
ES_EACH_VALUE(ExponentialValues, float rate, exponential_of(word, rate))
ES_EACH_VALUE(CauchyValues, float median; float sigma, cauchy_of(word, median, sigma))
ES_EACH_VALUE(GeometricValues, float scale, geometric_of(word, scale))
ES_EACH_VALUE(BernoulliValues, uint32_t largest; float one, word <= largest ? one : 0.0f)
#undef ES_EACH_VALUE

template <bool kLog>
struct NormalValues {
  float mean, deviation;
  ES_FN float finish(float z) const {
    float x = fma(z, deviation, mean);
    return kLog ? exponential(x) : x;
  }
  ES_FN void operator()(const Words& words, int64_t, float* four) const {
    for (int pair = 0; pair < 2; ++pair) {
      Direction z = normal_pair_of(words.word[2 * pair], words.word[2 * pair + 1]);
      four[2 * pair] = finish(z.cosine);
      four[2 * pair + 1] = finish(z.sine);
    }
  }
};

struct BernoulliEach {
  const double* p;
  int64_t count;
  ES_FN void operator()(const Words& words, int64_t first, float* four) const {
    for (int r = 0; r < 4; ++r) {
      int64_t at = first + r * kPanelBlocks;
      four[r] = at < count && bernoulli_of(words.word[r], p[at]) ? 1.0f : 0.0f;
    }
  }
};

struct Uniform64 {
  uint64_t key;
  double* out;
  double from, to;
  ES_FN void operator()(int64_t i) const {
    double value = from + unit(two_words_of(key, (uint64_t)i)) * (to - from);
    out[i] = value < to ? value : from;
  }
};

template <class T>
struct DropoutOf {
  Draw d;
  const T* x;
  uint8_t* mask;
  BernoulliValues keep;
  float scale;
  ES_FN void operator()(int64_t block) const {
    const int64_t first = first_of(block);
    float kept[4];
    keep(philox_block(d.key, (uint64_t)block), first, kept);
    for (int r = 0; r < 4; ++r) {
      int64_t at = first + r * kPanelBlocks;
      if (at >= d.count) continue;
      ((T*)d.out)[at] = narrow<T>(widen(x[at]) * (kept[r] * scale));
      mask[at] = kept[r] != 0;
    }
  }
};

template <class T>
struct MaskedScale {
  T* out;
  const T* x;
  const uint8_t* mask;
  float scale;
  ES_FN void operator()(int64_t i) const { out[i] = narrow<T>(widen(x[i]) * (mask[i] ? scale : 0.0f)); }
};

struct NoProbability {
  const double* p;
  ES_FN bool operator()(int64_t i) const { return !is_probability(p[i]); }
};

struct NoWeight {
  const double* weights;
  ES_FN bool operator()(int64_t i) const { return !is_weight(weights[i]); }
};
struct NoSum {
  const double* upto;
  int64_t width;
  ES_FN bool operator()(int64_t row) const { return !(upto[(row + 1) * width - 1] > 0); }
};

// A block has a row: all bring what one adds up.
constexpr int kPart = 1024;
ES_KERNEL void ES_THREADS(kThreads) sums_kernel(int64_t rows, int64_t width, double* weights) {
  ES_SHARED(double, part, kPart);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    double sum = 0;
    for (int64_t first = 0; first < width; first += kPart) {
      const int length = width - first < kPart ? (int)(width - first) : kPart;
      double* here = weights + row * width + first;
      for (int i = (int)threadIdx.x; i < length; i += kThreads) part[i] = here[i];
      __syncthreads();
      if (threadIdx.x == 0)
#pragma unroll 8
        for (int i = 0; i < length; ++i) part[i] = sum = sum + part[i];
      __syncthreads();
      for (int i = (int)threadIdx.x; i < length; i += kThreads) here[i] = part[i];
      __syncthreads();
    }
  }
}

struct ChoiceOf {
  uint64_t key;
  int64_t width;
  const double* upto;
  int64_t samples, *out;
  ES_FN void operator()(int64_t at) const {
    out[at] = choice_of(two_words_of(key, (uint64_t)at), upto + at / samples * width, width);
  }
};

struct IntegerOf {
  uint64_t key;
  int64_t* out;
  Integers parameters;
  ES_FN void operator()(int64_t i) const { out[i] = integer_of(two_words_of(key, (uint64_t)i), parameters); }
};

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

template <class Values>
static void draw(const Draw& d, Values values, float last = kInfinity) {
  for_each(blocks_of(d), DrawOf<Values>{d, values, last});
}

static BernoulliValues bernoulli_values(uint64_t threshold) {
  return {(uint32_t)(threshold - 1), threshold ? 1.0f : 0.0f};
}

static void uniform(const Draw& d, float from, float range, float last) {
  draw(d, UniformValues{{from, range}}, last);
}
static void normal(const Draw& d, float mean, float deviation) { draw(d, NormalValues<false>{mean, deviation}); }
static void log_normal(const Draw& d, float mean, float deviation) { draw(d, NormalValues<true>{mean, deviation}); }
static void exponential_numbers(const Draw& d, float rate) { draw(d, ExponentialValues{rate}); }
static void cauchy(const Draw& d, float median, float sigma) { draw(d, CauchyValues{median, sigma}); }
static void geometric(const Draw& d, float p, float last) { draw(d, GeometricValues{logarithm_1_plus(-p)}, last); }
static void bernoulli(const Draw& d, uint64_t threshold) { draw(d, bernoulli_values(threshold)); }
static void bernoulli_each(const Draw& d, const double* p) { draw(d, BernoulliEach{p, d.count}); }

static void uniform64(uint64_t key, int64_t count, double* out, double from, double to) {
  for_each(count, Uniform64{key, out, from, to});
}

template <class T>
static void dropout_as(const Draw& d, const void* x, uint8_t* mask, uint64_t threshold, float scale) {
  for_each(blocks_of(d), DropoutOf<T>{d, (const T*)x, mask, bernoulli_values(threshold), scale});
}

static void dropout(const Draw& d, const void* x, uint8_t* mask, uint64_t threshold, float scale) {
  if (d.kind == Kind::f32) return dropout_as<float>(d, x, mask, threshold, scale);
  if (d.kind == Kind::bf16) return dropout_as<bf16>(d, x, mask, threshold, scale);
  dropout_as<fp16>(d, x, mask, threshold, scale);
}

template <class T>
static void masked_scale_as(int64_t count, void* out, const void* x, const uint8_t* mask, float scale) {
  for_each(count, MaskedScale<T>{(T*)out, (const T*)x, mask, scale});
}

static void masked_scale(int64_t count, void* out, const void* x, Kind kind, const uint8_t* mask, float scale) {
  if (kind == Kind::f32) return masked_scale_as<float>(count, out, x, mask, scale);
  if (kind == Kind::bf16) return masked_scale_as<bf16>(count, out, x, mask, scale);
  masked_scale_as<fp16>(count, out, x, mask, scale);
}

static bool probabilities(int64_t count, const double* p) { return first_where(count, NoProbability{p}) >= count; }

static Weights sum_weights(int64_t rows, int64_t width, double* weights) {
  if (rows * width == 0) return Weights::fine;
  const int64_t impossible = first_where(rows * width, NoWeight{weights}) / width;
  ES_LAUNCH(blocks_for(rows), kThreads, sums_kernel, rows, width, weights);
  const int64_t zero = first_where(rows, NoSum{weights, width});
  return impossible < rows && impossible <= zero ? Weights::impossible : zero < rows ? Weights::zero : Weights::fine;
}

static void choose(uint64_t key, int64_t rows, int64_t width, const double* upto, int64_t samples, int64_t* out) {
  for_each(rows * samples, ChoiceOf{key, width, upto, samples, out});
}

static void integers(uint64_t key, int64_t count, int64_t* out, uint64_t range, int64_t base) {
  for_each(count, IntegerOf{key, out, {range, base}});
}

static const Random kTable = {
    uniform,   uniform64,      normal,  log_normal,   exponential_numbers, cauchy,      geometric,
    bernoulli, bernoulli_each, dropout, masked_scale, probabilities,       sum_weights, choose,
    integers,
};

}
ES_NAMESPACE_END

ES_TABLE_IS(Random, random_numbers, kTable)
#endif
