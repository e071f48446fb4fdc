#include "ranges.h"

#include "../exact/ranges.h"

ES_NAMESPACE {

template <class T>
static void arange(int64_t count, double start, double step, T* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = (T)arange_element(start, step, i);
}

template <class T>
static void linspace(int64_t count, double start, double end, T* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = (T)linspace_element(start, end, count, i);
}

static const Ranges kTable = {arange<float>, arange<double>, linspace<float>, linspace<double>};

}
ES_NAMESPACE_END

ES_TABLE_IS(Ranges, ranges, kTable)
