// Bags of embeddings: a thread has a position, a place, or a column of a bag.
#include "../cpu/bags.h"

#include "sorted.h"

ES_NAMESPACE {

struct BagOf {
  int64_t bags;
  const int64_t* begins;
  int64_t* bag;
  ES_FN void operator()(int64_t p) const { bag[p] = bag_of(p, bags, begins); }
};

struct CountOf {
  ByPlace sorted;
  int64_t count;
  int64_t* counts;
  ES_FN void operator()(int64_t place) const {
    const int64_t* keys = sorted.keys;
    const int64_t first = first_that(count, [=](int64_t j) { return keys[j] >= place; });
    counts[place] = first_that(count, [=](int64_t j) { return keys[j] > place; }) - first;
  }
};

struct MaximumOf {
  BagMaxima m;
  ES_FN void operator()(int64_t at) const { bag_maximum(m, at / m.width, at % m.width); }
};

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

static void of_positions(int64_t count, int64_t bags, const int64_t* begins, int64_t* bag) {
  for_each(count, BagOf{bags, begins, bag});
}

static void counts(int64_t count, int64_t places, const int64_t* to, int64_t* counts) {
  const Sorted sorted(count, (uint64_t)places, PlaceOf{to, places});
  for_each(places, CountOf{sorted.by_place, count, counts});
}

static void maxima(const BagMaxima& m) { for_each(m.bags * m.width, MaximumOf{m}); }

static const Bags kTable = {of_positions, counts, maxima};

}
ES_NAMESPACE_END

ES_TABLE_IS(Bags, bags, kTable)
#endif
