#include "../cpu/norm_batch.h"

#include "probe.h"

using namespace es;
using namespace es::probe;

ES_PROBE(batch_norm, report) {
  Source source(9);
  for (bool last : {false, true})
    for (int64_t channels : {1, 3, 20, 64}) {
      const Images shape{6, channels, 49 * 5, last};
      const int64_t count = shape.batch * channels * shape.positions;
      auto x = source.numbers(count), g = source.numbers(count);
      auto weight = source.numbers(channels), bias = source.numbers(channels);
      std::vector<float> y(count), dx(count), mean(channels), inverse(channels), dweight(channels), dbias(channels);
      std::vector<float> running_mean(channels), running_variance(channels, 1);
      const auto& kernels = batch_norm_kernels();
      kernels.statistics({shape, x.data(), 1e-5f, 0.1f, 0.9f, mean.data(), inverse.data(), running_mean.data(),
                          running_variance.data()});
      kernels.forward({shape, x.data(), weight.data(), bias.data(), y.data(), mean.data(), inverse.data()});
      kernels.backward({shape, g.data(), x.data(), weight.data(), mean.data(), inverse.data(), true, dx.data(),
                        dweight.data(), dbias.data()});
      const std::string at = " of " + std::to_string(channels) + (last ? " last" : "");
      report.say("batch norm" + at, y);
      report.say("batch norm, running variance" + at, running_variance);
      report.say("batch norm, by x" + at, dx);
      report.say("batch norm, by weight" + at, dweight);
      report.say("batch norm, by bias" + at, dbias);
    }
}
