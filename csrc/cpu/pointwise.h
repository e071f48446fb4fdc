// Functions of one element, on contiguous runs.
#pragma once

#include "isa.h"

namespace es {

struct Pointwise {
  void (*exp)(float* out, const float* in, int64_t count);
};

}
ES_TABLE(Pointwise, pointwise)
