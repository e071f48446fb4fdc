#include "../cpu/sort.h"

#include "probe.h"

using namespace es;
using namespace es::probe;

ES_PROBE(sort, report) {
  Source source(20);
  struct Case {
    const char* name;
    Ordered type;
    int64_t size;
  };
  for (Case c : {Case{"u8", Ordered::u8, 1}, Case{"i8", Ordered::i8, 1}, Case{"i16", Ordered::i16, 2},
                 Case{"i32", Ordered::i32, 4}, Case{"i64", Ordered::i64, 8}, Case{"f32", Ordered::f32, 4},
                 Case{"bf16", Ordered::bf16, 2}, Case{"f16", Ordered::f16, 2}, Case{"f64", Ordered::f64, 8}})
    for (int64_t length : {1, 30, 500}) {
      const int64_t lines = length == 500 ? 1 : 19, count = lines * length;
      std::vector<uint64_t> words(count);
      for (size_t i = 0; i < words.size(); ++i) words[i] = i % 5 ? source.word() : words[i / 2];  // with equals
      const uint64_t zeros[] = {0, 0x8000800080008000u, 0, 0x8000800080008000u, ~(uint64_t)0, 0x7fff7fff7fff7fffu};
      if (length > 1) __builtin_memcpy((char*)words.data() + 8, zeros, sizeof(zeros));
      std::vector<int64_t> places(count);
      for (bool descending : {false, true}) {
        sorts().lines({c.type, lines, length, descending, words.data(), places.data()});
        report.say(std::string(c.name) + (descending ? " descending by " : " by ") + std::to_string(length),
                   {places.begin(), places.end()});
      }
    }
  std::vector<float> numbers = source.numbers(5000);
  std::vector<int64_t> places(5000);
  sorts().lines({Ordered::f32, 2, 2500, true, numbers.data(), places.data()});
  report.say("long lines", {places.begin(), places.end()});
}
