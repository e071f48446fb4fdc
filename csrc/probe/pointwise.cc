#include "../cpu/pointwise.h"

#include "probe.h"

using namespace es;
using namespace es::probe;

#define ES_PROBE_NAME(name, inputs, value) #name,
static const char* kNames[] = {ES_POINTWISE(ES_PROBE_NAME)};
#undef ES_PROBE_NAME

ES_PROBE(pointwise, report) {
  Source source(2);
  const int64_t count = 1500;
  const float numbers[4] = {0.25f, 0.75f, 1.5f, 0.5f};
  for (int i = 0; i < (int)Point::count; ++i) {
    std::vector<std::vector<float>> in;
    for (int o = 0; o < 3; ++o) {
      in.push_back(source.hostiles(count / 2));
      for (float x : source.numbers(count - count / 2)) in.back().push_back(8 * x);
    }
    const float* inputs[3] = {in[0].data(), in[1].data(), in[2].data()};
    std::vector<float> out(count);
    pointwise().contiguous((Point)i, out.data(), inputs, count, numbers);
    report.say(std::string("pointwise ") + kNames[i], out);
  }
}
