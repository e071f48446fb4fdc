// Lines of elements: all are sorted by their keys at once, and then by their lines, which keeps the order within each.
#include "../cpu/sort.h"

#include "sorted.h"

ES_NAMESPACE {

struct KeyOf {
  SortLines s;
  ES_FN int64_t operator()(int64_t at) const { return (int64_t)key_of(s.type, s.in, at, s.descending); }
};

struct LineOf {
  int64_t length;
  ES_FN int64_t operator()(int64_t at) const { return at / length; }
};

struct PlaceIn {
  const int64_t* positions;
  int64_t length, *places;
  ES_FN void operator()(int64_t i) const { places[i] = positions[i] % length; }
};

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

static void lines(const SortLines& s) {
  const int64_t count = s.lines * s.length;
  Sorted sorted(count, last_key(s.type), KeyOf{s});
  if (s.lines > 1) sorted.by((uint64_t)(s.lines - 1), LineOf{s.length});
  for_each(count, PlaceIn{sorted.by_place.positions, s.length, s.places});
}

static const Sort kTable = {lines};

}
ES_NAMESPACE_END

ES_TABLE_IS(Sort, sorts, kTable)
#endif
