// Hashes of what the kernels compute, without PyTorch: for processors where PyTorch is not (arm64 under qemu), and for
// every instruction set of this one. A family's file in this folder runs its table of kernels on small inputs that reach
// every path (borders of chunks and blocks, tails, strides, hostile values) and tells a Report.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace es::probe {

// FNV-1a over the words of floats; a NaN is a NaN.
class Hash {
 public:
  void add(float x) {
    uint32_t word;
    __builtin_memcpy(&word, &x, 4);
    add_word(x != x ? 0x7fc00000u : word);
  }
  void add_word(uint64_t word) { value_ = (value_ ^ word) * 0x100000001b3u; }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

// Inputs: the same on every machine, from integer arithmetic alone.
class Source {
 public:
  explicit Source(uint64_t seed) : state_(seed) {}
  uint64_t word() {  // splitmix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Between -1 and 1, of many exponents.
  float number() {
    uint64_t bits = word();
    float x = (float)(int32_t)(bits & 0xffffff) / 8388608.0f - 1.0f;
    return (bits >> 60) == 0 ? x * 0.0009765625f : x;
  }
  // Any 32 bits: NaN, infinities, subnormals.
  float hostile() {
    uint32_t bits = (uint32_t)word();
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
  }
  std::vector<float> numbers(int64_t count) {
    std::vector<float> all(count);
    for (auto& x : all) x = number();
    return all;
  }
  std::vector<float> hostiles(int64_t count) {
    std::vector<float> all(count);
    for (auto& x : all) x = hostile();
    return all;
  }

 private:
  uint64_t state_;
};

// What was found, a line each: the family, name, and hash.
class Report {
 public:
  explicit Report(std::string family) : family_(std::move(family)) {}
  void say(const std::string& name, const std::vector<float>& values) {
    Hash hash;
    for (float x : values) hash.add(x);
    std::printf("%s: %s %016llx\n", family_.c_str(), name.c_str(), (unsigned long long)hash.value());
  }

 private:
  std::string family_;
};

// Ends the program with exit code 4 if two that must be equal are not, to the bit.
inline void require_same(const std::string& name, const std::vector<float>& values, const std::vector<float>& defined) {
  Hash here, there;
  for (float x : values) here.add(x);
  for (float x : defined) there.add(x);
  if (here.value() == there.value()) return;
  std::fprintf(stderr, "%s is not as it is defined\n", name.c_str());
  std::exit(4);
}

using Family = void (*)(Report&);
struct Registered {
  Registered(const char* name, Family family);
};

// ES_PROBE(gemm, report) { ... }
#define ES_PROBE(name, report)                                       \
  static void probe_##name(es::probe::Report&);                      \
  static es::probe::Registered registered_##name(#name, &probe_##name); \
  static void probe_##name(es::probe::Report& report)

}
