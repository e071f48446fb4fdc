// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): four random words for a key of 64
// bits and a counter of 128 bits. And how the elements of a tensor take their words from it.
#pragma once

#include "base.h"

ES_NAMESPACE {

struct Words {
  uint32_t word[4];
};

ES_FN uint32_t multiply_high(uint32_t a, uint32_t b) { return (uint32_t)(((uint64_t)a * b) >> 32); }

ES_FN Words philox(uint64_t key, Words counter) {
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    uint32_t high0 = multiply_high(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    uint32_t high1 = multiply_high(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return Words{{c0, c1, c2, c3}};
}

// The words of the counter (block, 0): block 0 .. 2^64 - 1.
ES_FN Words philox_block(uint64_t key, uint64_t block) {
  return philox(key, Words{{(uint32_t)block, (uint32_t)(block >> 32), 0, 0}});
}

// Elements take their words panel by panel. A panel is 16 consecutive blocks, which has four rows of 16 words: row r is
// word r of each block. With one word per element, element i has word r of block b where
//   b = i / 64 * 16 + i % 16,  r = i / 16 % 4
// (so that rows are runs of elements); with two words per element (rows 2r and 2r + 1): b = i / 32 * 16 + i % 16,
// r = i / 16 % 2.
constexpr int64_t kPanelBlocks = 16;
constexpr int64_t kPanelWords = 64;

ES_FN uint32_t word_of(uint64_t key, uint64_t i) {
  Words words = philox_block(key, i / 64 * 16 + i % 16);
  return words.word[i / 16 % 4];
}

ES_FN uint64_t two_words_of(uint64_t key, uint64_t i) {
  Words words = philox_block(key, i / 32 * 16 + i % 16);
  uint64_t r = i / 16 % 2;
  return words.word[2 * r] | (uint64_t)words.word[2 * r + 1] << 32;
}

}
ES_NAMESPACE_END
