#include "../cpu/pool.h"

#include <limits>
#include <tuple>

#include "probe.h"

using namespace es;
using namespace es::probe;

// Seven numbers, so that there are equal maxima, and now and then anything, also NaN.
static std::vector<float> few(Source& source, int64_t count) {
  std::vector<float> all(count);
  for (auto& x : all) {
    const uint64_t word = source.word();
    x = word % 97 == 0 ? source.hostile() : (float)(int64_t)(word % 7) - 3;
  }
  return all;
}

template <class Axis>
static int64_t inputs(const Axis* a) {
  return a[0].in * a[1].in * a[2].in;
}
template <class Axis>
static int64_t outputs(const Axis* a) {
  return a[0].out * a[1].out * a[2].out;
}

static std::vector<float> as_floats(const std::vector<int64_t>& numbers) { return {numbers.begin(), numbers.end()}; }

// f(number, outer, inner, place in the plane) for all elements of volumes.
template <class F>
static void each(const Planes& p, const int64_t* size, F f) {
  const int64_t volume = size[0] * size[1] * size[2];
  for (int64_t i = 0; i < p.outer * volume * p.inner; ++i) {
    const int64_t in_plane = i / p.inner % volume, row = in_plane / size[2];
    const int64_t at[3] = {row / size[1], row % size[1], in_plane % size[2]};
    f(i, i / p.inner / volume, i % p.inner, at);
  }
}

// One kind of windows, as `Mean` says: forward (if there is one) and backward, held to the definition.
template <class Mean>
static void means(Report& report, const std::string& name, Source& source, const Planes& p, const Mean& m,
                  void (*forward)(const Planes&, const Mean&, const float*, float*),
                  void (*backward)(const Planes&, const Mean&, const float*, float*)) {
  const int64_t in[3] = {m.axis[0].in, m.axis[1].in, m.axis[2].in};
  const int64_t out[3] = {m.axis[0].out, m.axis[1].out, m.axis[2].out};
  auto element = [&](auto& from, auto& size, int64_t plane, int64_t c, int64_t d, int64_t h, int64_t w) {
    return from.at((((plane * size[0] + d) * size[1] + h) * size[2] + w) * p.inner + c);
  };
  if (forward) {
    auto x = source.numbers(p.outer * inputs(m.axis) * p.inner);
    std::vector<float> y(p.outer * outputs(m.axis) * p.inner), defined(y.size());
    forward(p, m, x.data(), y.data());
    each(p, out, [&](int64_t i, int64_t plane, int64_t c, const int64_t* o) {
      defined[i] =
          mean_of(m, o, [&](int64_t d, int64_t h, int64_t w) { return element(x, in, plane, c, d, h, w); });
    });
    require_same(name, y, defined);
    report.say(name, y);
  }
  auto g = source.numbers(p.outer * outputs(m.axis) * p.inner);
  std::vector<float> dx(p.outer * inputs(m.axis) * p.inner), defined(dx.size());
  backward(p, m, g.data(), dx.data());
  each(p, in, [&](int64_t i, int64_t plane, int64_t c, const int64_t* at) {
    defined[i] =
        mean_gradient(m, at, [&](int64_t d, int64_t h, int64_t w) { return element(g, out, plane, c, d, h, w); });
  });
  require_same(name + " backward", dx, defined);
  report.say(name + " backward", dx);
}

template <class Axis>
static void maxima(Report& report, const std::string& name, Source& source, const Planes& p, const Axis* axis,
                   void (*forward)(const Planes&, const Axis*, const float*, float*, int64_t*),
                   void (*backward)(const Planes&, const Axis*, const float*, const int64_t*, float*)) {
  const int64_t in[3] = {axis[0].in, axis[1].in, axis[2].in}, out[3] = {axis[0].out, axis[1].out, axis[2].out};
  auto x = few(source, p.outer * inputs(axis) * p.inner);
  for (int64_t i = 0; i < (int64_t)x.size() / 3; ++i) x[i] = -std::numeric_limits<float>::infinity();
  std::vector<float> y(p.outer * outputs(axis) * p.inner), defined(y.size()), numbers(y.size());
  std::vector<int64_t> where(y.size());
  forward(p, axis, x.data(), y.data(), where.data());
  each(p, out, [&](int64_t i, int64_t plane, int64_t c, const int64_t* o) {
    const Largest most = largest_of(axis, o, [&](int64_t d, int64_t h, int64_t w) {
      return x.at((((plane * in[0] + d) * in[1] + h) * in[2] + w) * p.inner + c);
    });
    defined[i] = most.value, numbers[i] = (float)most.at;
  });
  require_same(name, y, defined);
  require_same(name + ", where", as_floats(where), numbers);
  report.say(name, y);
  report.say(name + ", where", as_floats(where));

  auto g = source.numbers((int64_t)y.size());
  std::vector<float> dx(x.size());
  backward(p, axis, g.data(), where.data(), dx.data());
  report.say(name + " backward", dx);
  // In one plane an output points to what it does not see, and others nowhere.
  where[0] = inputs(axis) - 1, where[y.size() / 2] = -1, where[y.size() - 1] = inputs(axis);
  backward(p, axis, g.data(), where.data(), dx.data());
  report.say(name + " backward to anywhere", dx);
}

// The loops of kernels depend on whether rows are long, on strides of 1, 2 and more, and on channels that come last.
ES_PROBE(pool, report) {
  Source source(12);
  const Pool& kernels = pool_kernels();
  const Windows one{1, 1, 1, 1, 0, 1};
  const struct {
    const char* name;
    Windows axis[3];
  } windows[] = {
      {"3 by 2", {one, {9, 5, 3, 2, 1, 1}, {41, 21, 3, 2, 1, 1}}},
      {"3 by 1", {one, {6, 6, 3, 1, 1, 1}, {19, 19, 3, 1, 1, 1}}},
      {"2 by 3, short", {one, {8, 3, 2, 3, 0, 1}, {8, 3, 2, 3, 0, 1}}},
      {"4 by 3, ceil", {one, {9, 3, 4, 3, 1, 1}, {43, 15, 4, 3, 1, 1}}},
      {"volumes", {{5, 3, 2, 2, 1, 1}, {6, 3, 3, 2, 1, 1}, {18, 9, 3, 2, 1, 1}}},
  };
  for (int64_t inner : {1, 5, 20}) {
    const Planes p{3, inner};
    const std::string with = " inner " + std::to_string(inner);
    for (const auto& one : windows) {
      WindowMean m{{one.axis[0], one.axis[1], one.axis[2]}, 0, true};
      const std::string name = std::string(one.name) + with;
      means(report, "average " + name, source, p, m, kernels.average, kernels.average_backward);
      m.padding = false;
      means(report, "average without padding " + name, source, p, m, kernels.average, kernels.average_backward);
      m.divisor = 7;
      means(report, "average by 7 " + name, source, p, m, kernels.average, kernels.average_backward);
      maxima(report, "maximum " + name, source, p, one.axis, kernels.maximum, kernels.maximum_backward);
    }
    const Windows dilated[3] = {one, {9, 3, 3, 2, 1, 2}, {31, 15, 3, 2, 1, 2}};
    maxima(report, "dilated maximum" + with, source, p, dilated, kernels.maximum, kernels.maximum_backward);
    const Windows apart[3] = {one, {9, 5, 3, 1, 1, 3}, {31, 27, 3, 1, 1, 3}};
    maxima(report, "far apart maximum" + with, source, p, apart, kernels.maximum, kernels.maximum_backward);
    for (int64_t out : {1, 4, 12}) {
      const PartMean m{{{3, 2}, {7, 4}, {9, out}}};
      const std::string name = "adaptive " + std::to_string(out) + with;
      means(report, name, source, p, m, kernels.adaptive, kernels.adaptive_backward);
      maxima(report, "maximum, " + name, source, p, m.axis, kernels.adaptive_maximum,
             kernels.adaptive_maximum_backward);
    }
  }
}

ES_PROBE(nearest, report) {
  Source source(13);
  const Pool& kernels = pool_kernels();
  const Nearest one{1, 1, 1, false};
  for (int64_t inner : {1, 6})
    for (bool centers : {false, true})
      for (auto [in, out, scale] :
           {std::tuple{7, 14, 0.5f}, {7, 21, 1 / 3.0f}, {7, 7, 1.0f}, {20, 47, 0.42f}, {23, 9, 2.5f}}) {
        const Planes p{3, inner};
        const Copies<Nearest> copies{{one, {in, out, scale, centers}, {in, out, scale, centers}}};
        const std::string name = "nearest " + std::to_string(in) + " to " + std::to_string(out) + " inner " +
                                 std::to_string(inner) + (centers ? " by centers" : "");
        auto x = source.numbers(p.outer * in * in * inner);
        std::vector<float> y(p.outer * out * out * inner);
        kernels.nearest(p, copies.axis, 4, x.data(), y.data());
        report.say(name, y);
        kernels.nearest(Planes{p.outer, 4 * inner}, copies.axis, 1, x.data(), y.data());
        report.say(name + " in bytes", y);
        means<Copies<Nearest>>(report, name, source, p, copies, nullptr, kernels.nearest_backward);
      }
}

ES_PROBE(padding, report) {
  Source source(14);
  const Border one{1, 1, 0, false};
  for (int64_t inner : {1, 6})
    for (bool mirror : {false, true})
      for (auto [before, behind] : {std::pair{2, 3}, {8, 8}, {0, 5}, {-3, 2}, {4, -2}, {-2, -3}}) {
        const int64_t more = before + behind;
        const Copies<Border> copies{{one, {9, 9 + more, before, mirror}, {11, 11 + more, before, mirror}}};
        const std::string name = std::string(mirror ? "reflection " : "replication ") + std::to_string(before) + " " +
                                 std::to_string(behind) + " inner " + std::to_string(inner);
        means<Copies<Border>>(report, name, source, {3, inner}, copies, nullptr, pool_kernels().pad_backward);
      }
}

ES_PROBE(fold, report) {
  Source source(15);
  const Fold folds[] = {{4, {{9, 5, 3, 2, 1, 1}, {13, 7, 3, 2, 1, 1}}},
                        {3, {{8, 8, 3, 1, 1, 1}, {9, 9, 3, 1, 1, 1}}},
                        {2, {{11, 3, 2, 3, 1, 2}, {20, 6, 3, 3, 0, 2}}}};
  for (const auto& one : folds) {
    const Windows &down = one.axis[0], &right = one.axis[1];
    const int64_t taps = down.kernel * right.kernel, windows = down.out * right.out;
    auto columns = source.numbers(one.planes * taps * windows);
    std::vector<float> image(one.planes * down.in * right.in), defined(image.size());
    pool_kernels().fold(one, columns.data(), image.data());
    for (int64_t i = 0; i < (int64_t)image.size(); ++i)
      defined[i] = folded(one, i / right.in % down.in, i % right.in, [&](int64_t k, int64_t l, int64_t h, int64_t w) {
        const int64_t plane = i / (down.in * right.in);
        return columns.at((plane * taps + k * right.kernel + l) * windows + h * right.out + w);
      });
    const std::string name = "fold by " + std::to_string(down.stride);
    require_same(name, image, defined);
    report.say(name, image);
  }
}
