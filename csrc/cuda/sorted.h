// Positions sorted by the place that each goes to, those of one place in ascending order: so a place can go through what
// meets there without looking at anything else. A stable radix sort, 4 bits at a time.
#pragma once

#include "each.h"

ES_NAMESPACE {

constexpr int kDigits = 16, kOfThread = 8;  // neighbouring positions
constexpr int64_t kOfBlock = kThreads * kOfThread;

// Position positions[j] goes to place keys[j]; the latter ascend, as unsigned numbers.
struct ByPlace {
  int64_t *keys, *positions;

  ES_FN bool begins(int64_t j) const { return j == 0 || keys[j - 1] != keys[j]; }
  ES_FN bool ends(int64_t j, int64_t count) const { return j == count - 1 || keys[j + 1] != keys[j]; }
};

ES_FN int digit_of(int64_t key, int shift) { return (int)(key >> shift & (kDigits - 1)); }

// The sum of what the threads before this one have, which itself has `mine`. `sums` has a place for each thread, where
// then lies the sum up to it.
template <class T, class Sums>
static ES_DEVICE T sum_before(T mine, Sums& sums) {
  const int thread = (int)threadIdx.x;
  sums[thread] = mine;
  __syncthreads();
  for (int apart = 1; apart < kThreads; apart *= 2) {
    const T before = thread >= apart ? sums[thread - apart] : 0;
    __syncthreads();
    sums[thread] = sums[thread] + before;
    __syncthreads();
  }
  return sums[thread] - mine;
}

// How many of the block's positions come before the first that a thread has of a digit: in order of digits, and of
// threads. `table` is (digit, thread), `sums` has a place for each thread.
template <class Table, class Sums>
static ES_DEVICE void count_digits(const ByPlace& from, int64_t count, int64_t first, int shift, Table& table,
                                   Sums& sums) {
  const int thread = (int)threadIdx.x;
  for (int d = 0; d < kDigits; ++d) table[d * kThreads + thread] = 0;
  for (int64_t j = first + thread * kOfThread; j < first + (thread + 1) * kOfThread && j < count; ++j) {
    const int at = digit_of(from.keys[j], shift) * kThreads + thread;
    table[at] = table[at] + 1;
  }
  __syncthreads();
  int mine = 0;  // of kDigits neighbours in the table
  for (int i = 0; i < kDigits; ++i) mine += table[thread * kDigits + i];
  int total = sum_before(mine, sums);
  for (int i = 0; i < kDigits; ++i) {
    const int one = table[thread * kDigits + i];
    table[thread * kDigits + i] = total;
    total += one;
  }
  __syncthreads();
}

// totals: (digit, block of positions).
ES_KERNEL void ES_THREADS(kThreads)
    digits_kernel(ByPlace from, int64_t count, int shift, int64_t tiles, int64_t* totals) {
  ES_SHARED(int, table, kDigits * kThreads);
  ES_SHARED(int, sums, kThreads);
  const int thread = (int)threadIdx.x;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    count_digits(from, count, tile * kOfBlock, shift, table, sums);
    if (thread < kDigits) {
      const int next = thread + 1 < kDigits ? table[(thread + 1) * kThreads] : sums[kThreads - 1];
      totals[thread * tiles + tile] = next - table[thread * kThreads];
    }
    __syncthreads();
  }
}

// One block: each of the totals becomes the sum of those before it.
ES_KERNEL void ES_THREADS(kThreads) offsets_kernel(int64_t count, int64_t* totals) {
  ES_SHARED(int64_t, sums, kThreads);
  const int thread = (int)threadIdx.x;
  int64_t before = 0;
  for (int64_t first = 0; first < count; first += kThreads) {
    const int64_t mine = first + thread < count ? totals[first + thread] : 0;
    const int64_t here = sum_before(mine, sums);
    if (first + thread < count) totals[first + thread] = before + here;
    before += sums[kThreads - 1];
    __syncthreads();
  }
}

ES_KERNEL void ES_THREADS(kThreads)
    move_kernel(ByPlace from, ByPlace to, int64_t count, int shift, int64_t tiles, const int64_t* offsets) {
  ES_SHARED(int, table, kDigits * kThreads);
  ES_SHARED(int, sums, kThreads);
  const int thread = (int)threadIdx.x;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t first = tile * kOfBlock;
    count_digits(from, count, first, shift, table, sums);
    if (thread < kDigits) sums[thread] = table[thread * kThreads];  // the first of each digit
    __syncthreads();
    for (int64_t j = first + thread * kOfThread; j < first + (thread + 1) * kOfThread && j < count; ++j) {
      const int digit = digit_of(from.keys[j], shift), at = digit * kThreads + thread;
      const int64_t place = offsets[digit * tiles + tile] + table[at] - sums[digit];
      table[at] = table[at] + 1;
      to.keys[place] = from.keys[j], to.positions[place] = from.positions[j];
    }
    __syncthreads();
  }
}

// The place of a position, where a negative one means none.
struct PlaceOf {
  const int64_t* to;
  int64_t places;  // which stands for those that go nowhere
  ES_FN int64_t operator()(int64_t p) const { return to[p] < 0 ? places : to[p]; }
};

template <class Place>
struct Numbered {
  ByPlace all;
  Place place;
  ES_FN void operator()(int64_t p) const { all.keys[p] = place(p), all.positions[p] = p; }
};

template <class Place>
struct KeyedBy {
  ByPlace all;
  Place place;
  ES_FN void operator()(int64_t j) const { all.keys[j] = place(all.positions[j]); }
};

#if ES_HOST

// Positions 0 .. count - 1 by `place(position)`, an unsigned number up to `most`.
class Sorted {
 public:
  template <class Place>
  Sorted(int64_t count, uint64_t most, Place place)
      : count_(count), memory_((size_t)(4 * count + totals_of(count)) * sizeof(int64_t)) {
    int64_t* data = memory_.as<int64_t>();
    by_place = {data, data + count};
    other_ = {data + 2 * count, data + 3 * count};
    for_each(count, Numbered<Place>{by_place, place});
    sort(most);
  }

  // By another place; those for which it is the same stay in the order that they have.
  template <class Place>
  void by(uint64_t most, Place place) {
    for_each(count_, KeyedBy<Place>{by_place, place});
    sort(most);
  }

  ByPlace by_place;

 private:
  static int64_t totals_of(int64_t count) { return (count + kOfBlock - 1) / kOfBlock * kDigits; }

  void sort(uint64_t most) {
    int64_t *totals = memory_.as<int64_t>() + 4 * count_, tiles = totals_of(count_) / kDigits;
    for (int shift = 0; count_ && shift < 64 && most >> shift; shift += 4) {
      ES_LAUNCH(blocks_for(tiles), kThreads, digits_kernel, by_place, count_, shift, tiles, totals);
      ES_LAUNCH(1, kThreads, offsets_kernel, tiles * kDigits, totals);
      ES_LAUNCH(blocks_for(tiles), kThreads, move_kernel, by_place, other_, count_, shift, tiles, totals);
      ByPlace last = by_place;
      by_place = other_, other_ = last;
    }
  }

  int64_t count_;
  ByPlace other_;
  Memory memory_;
};

#endif

}
ES_NAMESPACE_END
