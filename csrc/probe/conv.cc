#include "../cpu/conv.h"

#include "probe.h"

using namespace es;
using namespace es::probe;

// The results once more, each element by its definition in exact/conv.h.
struct Defined {
  const ConvShape& s;

  static float at(const Volume& v, int64_t a, int64_t b, const int64_t* i) {
    const int64_t* by = v.stride;
    return ((const float*)v.data)[a * by[0] + b * by[1] + i[0] * by[2] + i[1] * by[3] + i[2] * by[4]];
  }
  // f(a, b, position) for all of (outer, inner, size), in order.
  template <class F>
  static std::vector<float> each(int64_t outer, int64_t inner, const int64_t* size, F f) {
    std::vector<float> all;
    for (int64_t k = 0; k < outer * inner * volume_of(size); ++k) {
      Place place = place_of(k, size);
      all.push_back(f(place.lead / inner, place.lead % inner, place.at));
    }
    return all;
  }
  std::vector<float> forward(const Volume& x, const Volume& w, const std::vector<float>& b) const {
    return each(s.batch, s.groups * s.out_channels, s.out, [&](int64_t n, int64_t c, const int64_t* o) {
      return b[c] + conv_forward(
                        s, n, c, o, [&](int64_t n, int64_t c, const int64_t* i) { return at(x, n, c, i); },
                        [&](int64_t c, int64_t k, const int64_t* t) { return at(w, c, k, t); });
    });
  }
  std::vector<float> backward_data(const Volume& dy, const Volume& w) const {
    return each(s.batch, s.groups * s.in_channels, s.in, [&](int64_t n, int64_t c, const int64_t* i) {
      return conv_backward_data(
          s, n, c, i, [&](int64_t n, int64_t c, const int64_t* o) { return at(dy, n, c, o); },
          [&](int64_t c, int64_t k, const int64_t* t) { return at(w, c, k, t); });
    });
  }
  std::vector<float> backward_weight(const Volume& x, const Volume& dy) const {
    return each(s.groups * s.out_channels, s.in_channels, s.kernel, [&](int64_t c, int64_t k, const int64_t* t) {
      return conv_backward_weight(
          s, c, k, t, [&](int64_t n, int64_t c, const int64_t* i) { return at(x, n, c, i); },
          [&](int64_t n, int64_t c, const int64_t* o) { return at(dy, n, c, o); });
    });
  }
  std::vector<float> backward_bias(const Volume& dy) const {
    std::vector<float> all;
    for (int64_t c = 0; c < s.groups * s.out_channels; ++c)
      all.push_back(conv_backward_bias(s, c, [&](int64_t n, int64_t c, const int64_t* o) { return at(dy, n, c, o); }));
    return all;
  }
};

ES_PROBE(conv, report) {
  Source source(6);
  struct Case {
    int64_t batch, groups, in_channels, out_channels, size, kernel, stride, padding, dilation;
  };
  for (Case c : {Case{2, 1, 3, 5, 9, 3, 1, 1, 1}, Case{2, 1, 4, 20, 8, 1, 1, 0, 1}, Case{3, 1, 17, 16, 10, 3, 2, 1, 1},
                 Case{1, 6, 1, 1, 11, 3, 1, 1, 1}, Case{2, 2, 3, 4, 9, 3, 1, 2, 2}, Case{2, 1, 40, 33, 7, 5, 2, 2, 1}}) {
    const int64_t size = (c.size + 2 * c.padding - c.dilation * (c.kernel - 1) - 1) / c.stride + 1;
    const int64_t channels[2] = {c.groups * c.in_channels, c.groups * c.out_channels};
    auto x = source.numbers(c.batch * channels[0] * c.size * c.size);
    auto w = source.numbers(channels[1] * c.in_channels * c.kernel * c.kernel), b = source.numbers(channels[1]);
    auto dy = source.numbers(c.batch * channels[1] * size * size);
    std::vector<float> y(dy.size()), dx(x.size()), dw(w.size()), db(channels[1]);
    ConvShape shape{};
    shape.batch = c.batch, shape.groups = c.groups, shape.in_channels = c.in_channels;
    shape.out_channels = c.out_channels;
    for (int d = 0; d < 3; ++d) {
      shape.in[d] = d ? c.size : 1, shape.out[d] = d ? size : 1, shape.kernel[d] = d ? c.kernel : 1;
      shape.stride[d] = d ? c.stride : 1, shape.padding[d] = d ? c.padding : 0, shape.dilation[d] = d ? c.dilation : 1;
    }
    auto volume = [](std::vector<float>& data, int64_t inside, int64_t length) {
      const int64_t plane = length * length;
      return Volume{data.data(), Element::f32, {inside * plane, plane, plane, length, 1}};
    };
    const Volume vx = volume(x, channels[0], c.size), vw = volume(w, c.in_channels, c.kernel);
    const Volume vy = volume(y, channels[1], size), vdy = volume(dy, channels[1], size);
    conv().forward(shape, vx, vw, b.data(), vy);
    conv().backward_data(shape, vdy, vw, nullptr, volume(dx, channels[0], c.size));
    conv().backward_weight(shape, vx, vdy, volume(dw, c.in_channels, c.kernel));
    conv().backward_bias(shape, vdy, db.data());
    const std::string name = "conv " + std::to_string(channels[0]) + " to " + std::to_string(channels[1]);
    const Defined defined{shape};
    require_same(name, y, defined.forward(vx, vw, b));
    require_same(name + ", by data", dx, defined.backward_data(vdy, vw));
    require_same(name + ", by weight", dw, defined.backward_weight(vx, vdy));
    require_same(name + ", by bias", db, defined.backward_bias(vdy));
    report.say(name, y);
    report.say(name + ", by data", dx);
    report.say(name + ", by weight", dw);
    report.say(name + ", by bias", db);
  }
}
