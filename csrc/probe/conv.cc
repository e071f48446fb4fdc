#include "../cpu/conv.h"

#include "probe.h"

using namespace es;
using namespace es::probe;

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
    report.say(name, y);
    report.say(name + ", by data", dx);
    report.say(name + ", by weight", dw);
    report.say(name + ", by bias", db);
  }
}
