#include "bags.h"

#include "parallel.h"

ES_NAMESPACE {

static void of_positions(int64_t count, int64_t bags, const int64_t* begins, int64_t* bag) {
  parallel_for(count, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) bag[p] = bag_of(p, bags, begins);
  });
}

static void counts(int64_t count, int64_t places, const int64_t* to, int64_t* counts) {
  for (int64_t place = 0; place < places; ++place) counts[place] = 0;
  for (int64_t p = 0; p < count; ++p)
    if (to[p] >= 0) ++counts[to[p]];
}

static void maxima(const BagMaxima& m) {
  parallel_for(m.bags, 1 + 1024 / (1 + m.width), [&](int64_t begin, int64_t end) {
    for (int64_t bag = begin; bag < end; ++bag)
      for (int64_t column = 0; column < m.width; ++column) bag_maximum(m, bag, column);
  });
}

static const Bags kTable = {of_positions, counts, maxima};

}
ES_NAMESPACE_END

ES_TABLE_IS(Bags, bags, kTable)
