#include "random.h"

#include "../exact/half.h"
#include "../exact/philox.h"
#include "parallel.h"

ES_NAMESPACE {

constexpr int64_t kGrain = 64;  // panels

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

// For each panel `values(panel's words, its first element, its 64 values)`; what exceeds `last` once it has been rounded
// becomes `last`.
template <class Values>
static void draw(const Draw& d, Values values, float last = __builtin_inff()) {
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
static void draw_each(const Draw& d, Value value_of, float last = __builtin_inff()) {
  draw(
      d,
      [&](const Panel& words, int64_t, float* value) {
        const uint32_t* word = words.row[0];
        for (int64_t i = 0; i < kPanelWords; ++i) value[i] = value_of(word[i]);
      },
      last);
}

static void uniform(const Draw& d, float from, float range, float last) {
  Uniform parameters{from, range, last};
  draw_each(d, [=](uint32_t word) { return uniform_of(word, parameters); }, last);
}

static void bernoulli(const Draw& d, uint64_t threshold) {
  if (threshold == 0) return draw_each(d, [](uint32_t) { return 0.0f; });
  uint32_t largest = (uint32_t)(threshold - 1);
  draw_each(d, [=](uint32_t word) { return word <= largest ? 1.0f : 0.0f; });
}

static void bernoulli_each(const Draw& d, const double* p) {
  draw(d, [=](const Panel& words, int64_t first, float* value) {
    int64_t count = d.count - first < kPanelWords ? d.count - first : kPanelWords;
    const uint32_t* word = words.row[0];
    for (int64_t i = 0; i < count; ++i) value[i] = bernoulli_of(word[i], p[first + i]) ? 1.0f : 0.0f;
    for (int64_t i = count; i < kPanelWords; ++i) value[i] = 0;
  });
}

static void integers(uint64_t key, int64_t count, int64_t* out, uint64_t range, int64_t base) {
  constexpr int64_t kEach = kPanelWords / 2;
  Integers parameters{range, base};
  parallel_for((count + kEach - 1) / kEach, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      Panel words;
      int64_t value[kEach], first = panel * kEach;
      draw_panel(key, (uint64_t)panel, words);
      for (int64_t pair = 0; pair < 2; ++pair)
        for (int64_t lane = 0; lane < kPanelBlocks; ++lane) {
          uint64_t both = words.row[2 * pair][lane] | (uint64_t)words.row[2 * pair + 1][lane] << 32;
          value[pair * kPanelBlocks + lane] = integer_of(both, parameters);
        }
      memcpy(out + first, value, sizeof(int64_t) * (size_t)(count - first < kEach ? count - first : kEach));
    }
  });
}

static const Random kTable = {uniform, bernoulli, bernoulli_each, integers};

}
ES_NAMESPACE_END

ES_TABLE_IS(Random, random_numbers, kTable)
