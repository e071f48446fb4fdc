#include "pointwise.h"

#include "../exact/functions.h"

ES_NAMESPACE {

static void exp_run(float* out, const float* in, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = exponential(in[i]);
}

static const Pointwise kTable = {exp_run};

}
ES_NAMESPACE_END

ES_TABLE_IS(Pointwise, pointwise, kTable)
