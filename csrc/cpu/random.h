// Tensors of random numbers: element i's value is a function of the call's key and i, see exact/philox.h.
#pragma once

#include "../exact/random.h"
#include "isa.h"

namespace es {

enum class Kind { f32, bf16, f16, u8 };

// `count` elements of this kind, one after the other.
struct Draw {
  uint64_t key;
  int64_t count;
  void* out;
  Kind kind;
};

// What is wrong with weights, if anything: the first row that has it.
enum class Weights { fine, impossible, zero };

// All use threads inside.
struct Random {
  void (*uniform)(const Draw&, float from, float range, float last);
  void (*uniform64)(uint64_t key, int64_t count, double* out, double from, double to);
  void (*normal)(const Draw&, float mean, float deviation);
  void (*log_normal)(const Draw&, float mean, float deviation);
  void (*exponential)(const Draw&, float rate);
  void (*cauchy)(const Draw&, float median, float sigma);
  // What exceeds `last` is `last`.
  void (*geometric)(const Draw&, float p, float last);
  // `threshold`: the number of words that give 1.
  void (*bernoulli)(const Draw&, uint64_t threshold);
  // A probability for each element.
  void (*bernoulli_each)(const Draw&, const double* p);
  // out = x times `scale` where a bernoulli number is 1 (which `mask` keeps), times 0 elsewhere; and its backward.
  void (*dropout)(const Draw&, const void* x, uint8_t* mask, uint64_t threshold, float scale);
  void (*masked_scale)(int64_t count, void* out, const void* x, Kind kind, const uint8_t* mask, float scale);
  // Whether all are probabilities.
  bool (*probabilities)(int64_t count, const double* p);
  // Weights, of which none may be negative, infinite or NaN, become the chain of their sums up to each, which must not
  // come to 0.
  Weights (*sum_weights)(int64_t rows, int64_t width, double* weights);
  // For each of `rows` rows of `width` weights: `samples` indices, each as often as its weight says. `upto` holds the
  // sums of the weights up to each.
  void (*choose)(uint64_t key, int64_t rows, int64_t width, const double* upto, int64_t samples, int64_t* out);
  void (*integers)(uint64_t key, int64_t count, int64_t* out, uint64_t range, int64_t base);
};

}
ES_TABLE(Random, random_numbers)
