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

// All use threads inside.
struct Random {
  void (*uniform)(const Draw&, float from, float range, float last);
  // `threshold`: the number of words that give 1.
  void (*bernoulli)(const Draw&, uint64_t threshold);
  // A probability for each element.
  void (*bernoulli_each)(const Draw&, const double* p);
  void (*integers)(uint64_t key, int64_t count, int64_t* out, uint64_t range, int64_t base);
};

}
ES_TABLE(Random, random_numbers)
