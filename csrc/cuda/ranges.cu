// Elements of arange and linspace, one for a thread.
#include "../cpu/ranges.h"

#include "../exact/ranges.h"
#include "each.h"

ES_NAMESPACE {

template <class T>
struct ArangeOf {
  double start, step;
  T* out;
  ES_FN void operator()(int64_t i) const { out[i] = (T)arange_element(start, step, i); }
};

template <class T>
struct LinspaceOf {
  int64_t count;
  double start, end;
  T* out;
  ES_FN void operator()(int64_t i) const { out[i] = (T)linspace_element(start, end, count, i); }
};

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

template <class T>
static void arange(int64_t count, double start, double step, T* out) {
  for_each(count, ArangeOf<T>{start, step, out});
}

template <class T>
static void linspace(int64_t count, double start, double end, T* out) {
  for_each(count, LinspaceOf<T>{count, start, end, out});
}

static const Ranges kTable = {arange<float>, arange<double>, linspace<float>, linspace<double>};

}
ES_NAMESPACE_END

ES_TABLE_IS(Ranges, ranges, kTable)
#endif
