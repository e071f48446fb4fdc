// Fused optimizer steps over contiguous elements of one type. They use threads inside.
#pragma once

#include "../exact/optimizers.h"
#include "element.h"
#include "isa.h"

namespace es {

struct Optimizer {
  // Pointers to `count` elements each. Gradients are written only where they are unscaled; `largest`, `buffer`: only
  // with amsgrad, momentum.
  void (*adam)(Element, const Adam&, void* param, void* grad, void* mean, void* square, void* largest, int64_t count);
  void (*sgd)(Element, const Sgd&, void* param, void* grad, void* buffer, int64_t count);
  void (*adagrad)(Element, const Adagrad&, void* param, void* grad, void* sum, int64_t count);
};

}
ES_TABLE(Optimizer, optimizer)
