#include "random.h"

#include "../exact/half.h"
#include "../exact/philox.h"
#include "parallel.h"

ES_NAMESPACE {

constexpr int64_t kGrain = 256;  // panels

struct Panel {
  uint32_t row[4][kPanelBlocks];
};

static void draw_panel(uint64_t key, uint64_t panel, Panel& words) {
  for (int64_t lane = 0; lane < kPanelBlocks; ++lane) {
    Words block = philox_block(key, panel * kPanelBlocks + lane);
    words.row[0][lane] = block.word[0];
    words.row[1][lane] = block.word[1];
    words.row[2][lane] = block.word[2];
    words.row[3][lane] = block.word[3];
  }
}

template <class T>
static void store_panel(T* out, const float* values, int64_t count, float last) {
  T rounded[kPanelWords];
  for (int64_t i = 0; i < kPanelWords; ++i) {
    T value = narrow<T>(values[i]);
    rounded[i] = widen(value) > last ? narrow<T>(last) : value;
  }
  memcpy(out, rounded, sizeof(T) * (size_t)count);
}

// For each panel `values(panel's words, its first element, its 64 values)`; what exceeds `last` when it has been
// rounded becomes `last`.
template <class Values>
static void draw(const Draw& d, Values values, float last = kInfinity) {
  parallel_for((d.count + kPanelWords - 1) / kPanelWords, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      Panel words;
      float value[kPanelWords];
      int64_t first = panel * kPanelWords;
      int64_t count = d.count - first < kPanelWords ? d.count - first : kPanelWords;
      draw_panel(d.key, (uint64_t)panel, words);
      values(words, first, value);
      switch (d.kind) {
        case Kind::f32:
          store_panel((float*)d.out + first, value, count, last);
          break;
        case Kind::bf16:
          store_panel((bf16*)d.out + first, value, count, last);
          break;
        case Kind::f16:
          store_panel((fp16*)d.out + first, value, count, last);
          break;
        case Kind::u8: {
          uint8_t bytes[kPanelWords];
          for (int64_t i = 0; i < kPanelWords; ++i) bytes[i] = (uint8_t)(int32_t)value[i];
          memcpy((uint8_t*)d.out + first, bytes, (size_t)count);
        }
      }
    }
  });
}

// The same where element i depends on word i alone.
template <class Value>
static void draw_each(const Draw& d, Value value_of, float last = kInfinity) {
  draw(
      d,
      [=](const Panel& words, int64_t, float* value) {
        Value each = value_of;  // here, so that its parameters stay in registers
        const uint32_t* word = words.row[0];
        for (int64_t i = 0; i < kPanelWords; ++i) value[i] = each(word[i]);
      },
      last);
}

static void uniform(const Draw& d, float from, float range, float last) {
  Uniform parameters{from, range};
  draw_each(d, [=](uint32_t word) { return uniform_of(word, parameters); }, last);
}

static void uniform64(uint64_t key, int64_t count, double* out, double from, double to) {
  double range = to - from;
  parallel_for(count, kGrain * kPanelWords, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double value = from + unit(two_words_of(key, (uint64_t)i)) * range;
      out[i] = value < to ? value : from;
    }
  });
}

// Rows 0 and 1 are one pair of numbers each, rows 2 and 3 too.
template <class Finish>
static void draw_normal(const Draw& d, Finish finish) {
  draw(d, [=](const Panel& words, int64_t, float* value) {
    for (int64_t pair = 0; pair < 2; ++pair) {
      const uint32_t *first = words.row[2 * pair], *second = words.row[2 * pair + 1];
      float* to = value + 2 * pair * kPanelBlocks;
      for (int64_t lane = 0; lane < kPanelBlocks; ++lane) {
        Direction z = normal_pair_of(first[lane], second[lane]);
        to[lane] = finish(z.cosine);
        to[kPanelBlocks + lane] = finish(z.sine);
      }
    }
  });
}

static void normal(const Draw& d, float mean, float deviation) {
  draw_normal(d, [=](float z) { return fma(z, deviation, mean); });
}

static void log_normal(const Draw& d, float mean, float deviation) {
  draw_normal(d, [=](float z) { return es::exponential(fma(z, deviation, mean)); });
}

static void exponential_numbers(const Draw& d, float rate) {
  draw_each(d, [=](uint32_t word) { return exponential_of(word, rate); });
}

static void cauchy(const Draw& d, float median, float sigma) {
  draw_each(d, [=](uint32_t word) { return cauchy_of(word, median, sigma); });
}

static void geometric(const Draw& d, float p, float last) {
  float scale = logarithm_1_plus(-p);
  draw_each(d, [=](uint32_t word) { return geometric_of(word, scale); }, last);
}

static void bernoulli(const Draw& d, uint64_t threshold) {
  uint32_t largest = (uint32_t)(threshold - 1);
  float one = threshold ? 1.0f : 0.0f;
  draw_each(d, [=](uint32_t word) { return word <= largest ? one : 0.0f; });
}

static void bernoulli_each(const Draw& d, const double* p) {
  draw(d, [=](const Panel& words, int64_t first, float* value) {
    int64_t count = d.count - first < kPanelWords ? d.count - first : kPanelWords;
    const uint32_t* word = words.row[0];
    for (int64_t i = 0; i < count; ++i) value[i] = bernoulli_of(word[i], p[first + i]) ? 1.0f : 0.0f;
    for (int64_t i = count; i < kPanelWords; ++i) value[i] = 0;
  });
}

template <bool small>
static void integers_as(uint64_t key, int64_t count, int64_t* out, uint64_t range, int64_t base) {
  constexpr int64_t kEach = kPanelWords / 2;
  Integers parameters{range, base};
  uint64_t range32 = (uint32_t)range;
  parallel_for((count + kEach - 1) / kEach, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      Panel words;
      int64_t value[kEach], first = panel * kEach;
      draw_panel(key, (uint64_t)panel, words);
      for (int64_t pair = 0; pair < 2; ++pair)
        for (int64_t lane = 0; lane < kPanelBlocks; ++lane) {
          uint64_t low = words.row[2 * pair][lane], high = words.row[2 * pair + 1][lane];
          // For a small range the same in arithmetic that vectors have.
          value[pair * kPanelBlocks + lane] = small
                                                  ? (int64_t)((high * range32 + (low * range32 >> 32)) >> 32) + base
                                                  : integer_of(low | high << 32, parameters);
        }
      memcpy(out + first, value, sizeof(int64_t) * (size_t)(count - first < kEach ? count - first : kEach));
    }
  });
}

template <class T>
static void dropout_panel(T* out, const T* x, uint8_t* mask, const uint32_t* word, int64_t count, uint32_t largest,
                          float one, float scale) {
  for (int64_t i = 0; i < count; ++i) {
    float keep = word[i] <= largest ? one : 0.0f;
    out[i] = narrow<T>(widen(x[i]) * (keep * scale));
  }
  uint8_t bytes[kPanelWords], kept = one != 0;
  for (int64_t i = 0; i < kPanelWords; ++i) bytes[i] = word[i] <= largest ? kept : (uint8_t)0;
  memcpy(mask, bytes, (size_t)count);
}

template <class T>
static void dropout_as(const Draw& d, const T* x, uint8_t* mask, uint64_t threshold, float scale) {
  uint32_t largest = (uint32_t)(threshold - 1);
  float one = threshold ? 1.0f : 0.0f;
  parallel_for((d.count + kPanelWords - 1) / kPanelWords, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      Panel words;
      int64_t first = panel * kPanelWords, count = d.count - first < kPanelWords ? d.count - first : kPanelWords;
      draw_panel(d.key, (uint64_t)panel, words);
      T* out = (T*)d.out + first;
      const uint32_t* word = words.row[0];
      // Two calls, so that the length of a whole panel is a constant in one of them.
      if (count == kPanelWords)
        dropout_panel(out, x + first, mask + first, word, kPanelWords, largest, one, scale);
      else
        dropout_panel(out, x + first, mask + first, word, count, largest, one, scale);
    }
  });
}

template <class T>
static void masked_scale_as(int64_t count, T* out, const T* x, const uint8_t* mask, float scale) {
  parallel_for(count, kGrain * kPanelWords, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = narrow<T>(widen(x[i]) * (mask[i] ? scale : 0.0f));
  });
}

static void dropout(const Draw& d, const void* x, uint8_t* mask, uint64_t threshold, float scale) {
  if (d.kind == Kind::f32) return dropout_as(d, (const float*)x, mask, threshold, scale);
  if (d.kind == Kind::bf16) return dropout_as(d, (const bf16*)x, mask, threshold, scale);
  dropout_as(d, (const fp16*)x, mask, threshold, scale);
}

static void masked_scale(int64_t count, void* out, const void* x, Kind kind, const uint8_t* mask, float scale) {
  if (kind == Kind::f32) return masked_scale_as(count, (float*)out, (const float*)x, mask, scale);
  if (kind == Kind::bf16) return masked_scale_as(count, (bf16*)out, (const bf16*)x, mask, scale);
  masked_scale_as(count, (fp16*)out, (const fp16*)x, mask, scale);
}

static bool probabilities(int64_t count, const double* p) {
  for (int64_t i = 0; i < count; ++i)
    if (!is_probability(p[i])) return false;
  return true;
}

static Weights sum_weights(int64_t rows, int64_t width, double* weights) {
  for (double *row = weights, *end = weights + rows * width; row < end; row += width) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) {
      if (!is_weight(row[i])) return Weights::impossible;
      row[i] = sum = sum + row[i];
    }
    if (!(sum > 0)) return Weights::zero;
  }
  return Weights::fine;
}

static void choose(uint64_t key, int64_t rows, int64_t width, const double* upto, int64_t samples, int64_t* out) {
  parallel_for(rows * samples, 256, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at)
      out[at] = choice_of(two_words_of(key, (uint64_t)at), upto + at / samples * width, width);
  });
}

static void integers(uint64_t key, int64_t count, int64_t* out, uint64_t range, int64_t base) {
  if (range != 0 && range <= 0xffffffff) return integers_as<true>(key, count, out, range, base);
  integers_as<false>(key, count, out, range, base);
}

static const Random kTable = {
    uniform,   uniform64,      normal,  log_normal,   exponential_numbers, cauchy,      geometric,
    bernoulli, bernoulli_each, dropout, masked_scale, probabilities,       sum_weights, choose,
    integers,
};

}
ES_NAMESPACE_END

ES_TABLE_IS(Random, random_numbers, kTable)
