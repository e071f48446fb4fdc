#include "../cpu/scatter.h"

#include "../cpu/bags.h"

#include "probe.h"

using namespace es;
using namespace es::probe;

static std::vector<int64_t> places(Source& source, int64_t count, int64_t lowest, int64_t end) {
  std::vector<int64_t> all(count);
  for (auto& one : all) one = lowest + (int64_t)(source.word() % (uint64_t)(end - lowest));
  return all;
}

ES_PROBE(scatter, report) {
  Source source(8);
  for (int64_t width : {1, 7, 40})
    for (int how = 0; how < 4; ++how) {
      const int64_t count = 300, rows = 11;
      auto from = source.numbers(count * width), out = source.numbers(rows * width), scale = source.numbers(count);
      auto to = places(source, count, -1, rows);
      scatter().rows({1, count, width, rows, to.data(), nullptr, from.data(), how ? nullptr : scale.data(), out.data()},
                     how);
      report.say("scatter rows of " + std::to_string(width) + " how " + std::to_string(how), out);
    }
}

// Few and many positions for a place, of which there are more than two digits' worth; rows that are looked up; batches.
ES_PROBE(scatter_far, report) {
  Source source(13);
  for (int64_t rows : {1, 3, 300, 70000})
    for (int64_t width : {1, 33, 200}) {
      const int64_t count = width == 1 ? 4500 : 150, batches = rows == 3 ? 3 : 1;
      auto to = places(source, count, -1, rows), look = places(source, count, 0, 5);
      auto from = source.numbers(batches * count * width), out = source.numbers(batches * rows * width);
      scatter().rows({batches, count, width, rows, to.data(), rows == 300 ? look.data() : nullptr, from.data(), nullptr,
                      out.data()},
                     (int)Combine::add);
      const std::string at = std::to_string(rows) + " rows of " + std::to_string(width);
      report.say("scatter to " + at, out);
      auto bytes = (char*)out.data(), words = (char*)from.data();
      if (width == 33) bytes += 1, words += 3;  // anything, anywhere
      const int64_t size = width == 33 ? 131 : width * 4;
      scatter().assign(1, count - 2, size, rows, to.data(), words, bytes);
      report.say("assigned to " + at, out);
    }
}

// Lines for a thread each, and long ones.
ES_PROBE(scatter_lines, report) {
  Source source(14);
  for (int64_t length : {1, 20, 3000})
    for (int64_t inner : {1, 5})
      for (int how = 0; how < 4; ++how) {
        const int64_t outer = 3, rows = 17, count = outer * length * inner;
        auto from = source.numbers(count), out = source.numbers(outer * rows * inner);
        auto index = places(source, count, 0, rows);
        scatter().lines({outer, length, inner, index.data(), from.data(), out.data(), rows * inner, inner}, how);
        report.say("scatter lines of " + std::to_string(length) + " inner " + std::to_string(inner) + " how " +
                       std::to_string(how),
                   out);
        const int64_t size = how == 3 ? 2 : 4;
        scatter().assign_lines({outer, length, inner, index.data(), nullptr, nullptr, rows * inner, inner}, size,
                               (const char*)from.data(), (char*)out.data());
        report.say("lines assigned of " + std::to_string(length) + " inner " + std::to_string(inner) + " size " +
                       std::to_string(size) + " after " + std::to_string(how),
                   out);
      }
}

ES_PROBE(scatter_dots, report) {
  Source source(15);
  for (int64_t width : {0, 5, 512, 1300}) {
    auto a = source.numbers(7 * width), b = source.numbers(9 * width);
    auto a_row = places(source, 300, -1, 7), b_row = places(source, 300, 0, 9);
    std::vector<float> out(300);
    scatter().dots(300, width, a.data(), a_row.data(), b.data(), b_row.data(), out.data());
    report.say("dots of " + std::to_string(width), out);
  }
  auto index = places(source, 3000, -4, 9);
  std::vector<float> inside;
  for (int64_t lowest : {-4, -3})
    for (int64_t end : {8, 9}) inside.push_back(scatter().in_range(index.data(), 3000, lowest, end));
  inside.push_back(scatter().in_range(nullptr, 0, 0, 0));
  report.say("in range", inside);
}

static std::vector<float> floats(const std::vector<int64_t>& all) { return {all.begin(), all.end()}; }

ES_PROBE(bags, report) {
  Source source(16);
  const int64_t count = 2500, width = 3, rows = 40;
  auto row = places(source, count, 0, rows), to = places(source, count, -1, 700), small = places(source, count, -9, 9);
  std::vector<int64_t> numbers(count), all(count), counts(700);
  scatter().number(count, 9, small.data(), nullptr, numbers.data());
  scatter().number(count, 40, row.data(), numbers.data(), all.data());
  report.say("numbers of places", floats(all));
  bags().counts(count, 700, to.data(), counts.data());
  report.say("counts of places", floats(counts));
  for (int64_t bags_at_most : {1, 40, 3000}) {
    std::vector<int64_t> begins{0};
    for (int64_t p = 1; p < count && (int64_t)begins.size() < bags_at_most; ++p)
      if (source.word() % (uint64_t)(2 * count) < (uint64_t)bags_at_most)
        for (uint64_t again = source.word() % 3 + 1; again > 0; --again) begins.push_back(p);
    const int64_t many = (int64_t)begins.size();
    std::vector<int64_t> bag(count), from(many * width);
    bags().of_positions(count, many, begins.data(), bag.data());
    auto table = source.numbers(rows * width);
    table[7] = __builtin_nanf(""), table[8] = table[11];
    std::vector<float> out(many * width);
    bags().maxima({many, count, width, 5, bag.data(), row.data(), table.data(), out.data(), from.data()});
    const std::string at = " of at most " + std::to_string(bags_at_most) + " bags";
    report.say("positions" + at, floats(bag));
    report.say("maxima" + at, out);
    report.say("rows of maxima" + at, floats(from));
  }
}
