// Working memory: blocks of floats that a thread keeps for its next call, since fresh pages cost as much as small
// convolutions do.
#pragma once

#include <cstdlib>

#include "../exact/base.h"

ES_NAMESPACE {

// What a thread keeps.
struct KeptBlock {
  float* data;
  size_t size;
};
struct KeptBlocks {
  KeptBlock blocks[8] = {};
  ~KeptBlocks() {
    for (auto& one : blocks) free(one.data);
  }
};

// At least `count` floats, aligned to cache lines, and 64 more that may be read and written beyond them. Not cleared.
class Scratch {
 public:
  explicit Scratch(int64_t count) {
    size_ = ((size_t)count + 64) * sizeof(float) + 63 & ~(size_t)63;
    for (auto& kept : kept_.blocks)
      if (kept.size >= size_ && kept.size / 8 <= size_ + 4096) {
        data_ = kept.data, size_ = kept.size;
        kept = KeptBlock{nullptr, 0};
        return;
      }
    data_ = (float*)aligned_alloc(64, size_);
    if (!data_) abort();
  }
  ~Scratch() {
    KeptBlock mine{data_, size_};
    if (size_ <= kLargest)
      for (auto& kept : kept_.blocks)  // the small ones make way
        if (kept.size < mine.size) {
          KeptBlock other = kept;
          kept = mine, mine = other;
        }
    free(mine.data);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  float* data() { return data_; }
  template <class T>
  T* as() const {
    return (T*)data_;
  }

 private:
  static constexpr size_t kLargest = 64 << 20;
  static inline thread_local KeptBlocks kept_;

  float* data_;
  size_t size_;
};

}
ES_NAMESPACE_END
