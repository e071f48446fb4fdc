// Sorting lines of elements of any real type (exact/sorting.h). Of equals the first comes first, in either direction.
#pragma once

#include "../exact/sorting.h"
#include "isa.h"

namespace es {

// Contiguous (lines, length): places(line, i) is where in its line the i-th element lies.
struct SortLines {
  Ordered type;
  int64_t lines, length;
  bool descending;
  const void* in;
  int64_t* places;
};

struct Sort {
  void (*lines)(const SortLines&);  // uses threads inside
};

}
ES_TABLE(Sort, sorts)
