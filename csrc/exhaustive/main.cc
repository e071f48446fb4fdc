// Prints a hash of each function of one number over all 2^32 inputs (or 2^24 of them, all words that are i * 257) under
// one instruction set: `exhaustive ISA all|sample [NAME...]`. NaN is one word. Built and run by
// tests/numerics/exhaustive.py.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "../cpu/pointwise.h"

using namespace es;

namespace {

constexpr uint64_t kPrime = 0x9e3779b97f4a7c15u;
constexpr int kPart = 1 << 16, kBlock = 4096, kLanes = 8;
constexpr float kNumbers[4] = {0.25f, 0.75f, 1.0f, 0.0f};  // for functions that take some

// Eight chains of h * prime + word. Not as vector code: SSE2 has no such product.
#ifdef __GNUC__
__attribute__((optimize("no-tree-vectorize")))
#endif
void hash(uint64_t* lane, const float* values) {
  for (int i = 0; i < kBlock; i += kLanes)
    for (int l = 0; l < kLanes; ++l) {
      uint32_t word = bits(values[i + l]);
      word = (word & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : word;
      lane[l] = lane[l] * kPrime + word;
    }
}

uint64_t fold(const uint64_t* values, int64_t count) {
  uint64_t whole = 0;
  for (int64_t i = 0; i < count; ++i) whole = (whole ^ (values[i] >> 32)) * kPrime + values[i];
  return whole;
}

uint64_t sweep(Point point, int64_t count, uint32_t step) {
  const int64_t parts = count / kPart;
  std::vector<uint64_t> hashes(parts);
  std::atomic<int64_t> next{0};
  auto work = [&] {
    alignas(64) float in[kBlock], out[kBlock];
    const float* inputs[1] = {in};
    for (int64_t part; (part = next++) < parts;) {
      uint64_t lane[kLanes] = {};
      for (int64_t start = part * kPart; start < (part + 1) * kPart; start += kBlock) {
        for (int i = 0; i < kBlock; ++i) in[i] = from_bits((uint32_t)(start + i) * step);
        pointwise().contiguous(point, out, inputs, kBlock, kNumbers);
        hash(lane, out);
      }
      hashes[part] = fold(lane, kLanes);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i) threads.emplace_back(work);
  for (auto& thread : threads) thread.join();
  return fold(hashes.data(), parts);
}

#define NAME(name, inputs, value) #name,
const char* kNames[] = {ES_POINTWISE(NAME)};

}

int main(int count, char** arguments) {
  if (count < 3 || !use_isa(arguments[1])) return 2;
  bool all = !strcmp(arguments[2], "all");
  for (int p = 0; p < (int)Point::count; ++p) {
    bool asked = count == 3;
    for (int i = 3; i < count; ++i) asked = asked || !strcmp(arguments[i], kNames[p]);
    if (!asked || pointwise().inputs((Point)p) != 1) continue;
    printf("%s %016llx\n", kNames[p],
           (unsigned long long)sweep((Point)p, all ? int64_t(1) << 32 : int64_t(1) << 24, all ? 1 : 257));
    fflush(stdout);
  }
}
