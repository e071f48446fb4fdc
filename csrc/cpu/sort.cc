#include "sort.h"

#include "parallel.h"
#include "scratch.h"

ES_NAMESPACE {

constexpr int64_t kFew = 48;  // are sorted by insertion
constexpr int kDigits = 256;

struct Item {
  uint64_t key;
  int64_t place;
};

static void insert(Item* items, int64_t count) {
  for (int64_t i = 1; i < count; ++i) {
    const Item one = items[i];
    int64_t j = i;
    for (; j > 0 && items[j - 1].key > one.key; --j) items[j] = items[j - 1];
    items[j] = one;
  }
}

// By 8 bits after the other, to and fro between two places. The one where they end is given back.
static Item* by_digits(Item* from, Item* to, int64_t count, int bits) {
  for (int shift = 0; shift < bits; shift += 8) {
    int64_t next[kDigits] = {};
    for (int64_t i = 0; i < count; ++i) ++next[from[i].key >> shift & (kDigits - 1)];
    if (next[from[0].key >> shift & (kDigits - 1)] == count) continue;  // all the same
    for (int64_t d = 0, before = 0; d < kDigits; ++d) {
      const int64_t mine = next[d];
      next[d] = before, before += mine;
    }
    for (int64_t i = 0; i < count; ++i) to[next[from[i].key >> shift & (kDigits - 1)]++] = from[i];
    Item* last = from;
    from = to, to = last;
  }
  return from;
}

static void lines(const SortLines& s) {
  const int64_t space = s.length * (int64_t)(sizeof(Item) / sizeof(float));
  parallel_for(s.lines, 16384 / (s.length + 1) + 1, [&](int64_t begin, int64_t end) {
    Scratch scratch(2 * space);
    Item *all = scratch.as<Item>(), *other = all + s.length;
    for (int64_t line = begin; line < end; ++line) {
      for (int64_t i = 0; i < s.length; ++i) all[i] = {key_of(s.type, s.in, line * s.length + i, s.descending), i};
      Item* sorted = all;
      if (s.length <= kFew)
        insert(all, s.length);
      else
        sorted = by_digits(all, other, s.length, key_bits(s.type));
      for (int64_t i = 0; i < s.length; ++i) s.places[line * s.length + i] = sorted[i].place;
    }
  });
}

static const Sort kTable = {lines};

}
ES_NAMESPACE_END

ES_TABLE_IS(Sort, sorts, kTable)
