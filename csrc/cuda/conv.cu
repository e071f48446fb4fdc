// Convolutions as contractions whose operands are found where they lie (implicit GEMM), in the order of exact/conv.h: each
// group by itself, channels of the result by positions.
#include "../cpu/conv.h"

#include "contraction.h"
#include "elements.h"
#include "rows.h"

ES_NAMESPACE {

static ES_FN char* address_of(const Volume& v, int64_t a, int64_t b, const int64_t* i) {
  const int64_t* by = v.stride;
  return (char*)v.data + (a * by[0] + b * by[1] + i[0] * by[2] + i[1] * by[3] + i[2] * by[4]) * size_of(v.element);
}
static ES_FN float load(const Volume& v, int64_t a, int64_t b, const int64_t* i) {
  return load(v.element, address_of(v, a, b, i));
}
static ES_FN void store(const Volume& v, int64_t a, int64_t b, const int64_t* i, float x) {
  store(v.element, address_of(v, a, b, i), x);
}

// What an output meets in the input by way of a tap; padding is +0.
static ES_FN float input_of(const ConvShape& s, const Volume& x, int64_t group, const Place& out, const Place& tap) {
  int64_t in[3];
  if (!find_input(s, out.at, tap.at, in)) return 0.0f;
  return load(x, out.lead, group * s.in_channels + tap.lead, in);
}

// y: out channels by (batch, position of the output); k counts (channel, tap).
struct Forward {
  int64_t batch, m, n, k;
  ConvShape s;
  Volume x, w, y;
  const float* bias;

  ES_FN bool left_along_k() const { return true; }
  ES_FN bool right_along_k() const { return false; }
  ES_FN float left(int64_t group, int64_t i, int64_t k) const {
    Place tap = place_of(k, s.kernel);
    return load(w, group * s.out_channels + i, tap.lead, tap.at);
  }
  ES_FN float right(int64_t group, int64_t k, int64_t j) const {
    return input_of(s, x, group, place_of(j, s.out), place_of(k, s.kernel));
  }
  ES_FN void store(int64_t group, int64_t i, int64_t j, float sum) const {
    Place out = place_of(j, s.out);
    const int64_t channel = group * s.out_channels + i;
    es::store(y, out.lead, channel, out.at, bias ? sum + bias[channel] : sum);
  }
};

// dx: in channels by (batch, position) of those positions that the same taps meet: every stride-th in each dimension. k
// counts (out channel, tap).
struct BackwardData {
  int64_t batch, m, n, k;
  ConvShape s;
  Volume dy, w, dx;
  const float* bias;
  Taps taps[3];
  int64_t first[3], count[3];

  ES_FN bool left_along_k() const { return false; }
  ES_FN bool right_along_k() const { return false; }
  ES_FN Place position_of(int64_t j) const {
    Place in = place_of(j, count);
    for (int d = 0; d < 3; ++d) in.at[d] = first[d] + s.stride[d] * in.at[d];
    return in;
  }
  ES_FN float left(int64_t group, int64_t i, int64_t k) const {
    Place tap = tap_of(taps, k);
    return load(w, group * s.out_channels + tap.lead, i, tap.at);
  }
  ES_FN float right(int64_t group, int64_t k, int64_t j) const {
    Place tap = tap_of(taps, k), in = position_of(j);
    int64_t out[3];
    if (!find_output(s, in.at, tap.at, out)) return 0.0f;
    return load(dy, in.lead, group * s.out_channels + tap.lead, out);
  }
  ES_FN void store(int64_t group, int64_t i, int64_t j, float sum) const {
    Place in = position_of(j);
    const int64_t channel = group * s.in_channels + i;
    es::store(dx, in.lead, channel, in.at, bias ? sum + bias[channel] : sum);
  }
};

// dw: out channels by (channel, tap); k counts (batch, position of the output).
struct BackwardWeight {
  int64_t batch, m, n, k;
  ConvShape s;
  Volume x, dy, dw;

  ES_FN bool left_along_k() const { return true; }
  ES_FN bool right_along_k() const { return true; }
  ES_FN float left(int64_t group, int64_t i, int64_t k) const {
    Place out = place_of(k, s.out);
    return load(dy, out.lead, group * s.out_channels + i, out.at);
  }
  ES_FN float right(int64_t group, int64_t k, int64_t j) const {
    return input_of(s, x, group, place_of(k, s.out), place_of(j, s.kernel));
  }
  ES_FN void store(int64_t group, int64_t i, int64_t j, float sum) const {
    Place tap = place_of(j, s.kernel);
    es::store(dw, group * s.out_channels + i, tap.lead, tap.at, sum);
  }
};

ES_KERNEL void ES_THREADS(kThreads) bias_kernel(ConvShape s, Volume dy, float* db) {
  ES_SHARED(float, place, kTogether);
  for (int64_t c = blockIdx.x; c < s.groups * s.out_channels; c += gridDim.x) {
    float sum;
    sum_row<1>(
        s.batch * volume_of(s.out), place,
        [&](float* total, int64_t k) {
          Place out = place_of(k, s.out);
          *total = *total + load(dy, out.lead, c, out.at);
        },
        &sum);
    if (threadIdx.x == 0) db[c] = sum;
  }
}

}
ES_NAMESPACE_END

#if ES_HOST
ES_NAMESPACE {

static void forward(const ConvShape& s, const Volume& x, const Volume& w, const float* bias, const Volume& y) {
  contract_all(Forward{s.groups, s.out_channels, s.batch * volume_of(s.out), s.in_channels * volume_of(s.kernel), s, x,
                       w, y, bias});
}

static void backward_data(const ConvShape& s, const Volume& dy, const Volume& w, const float* bias, const Volume& dx) {
  for (int64_t a = 0; a < s.stride[0]; ++a)
    for (int64_t b = 0; b < s.stride[1]; ++b)
      for (int64_t c = 0; c < s.stride[2]; ++c) {
        BackwardData op{s.groups, s.in_channels, s.batch, s.out_channels, s, dy, w, dx, bias, {}, {a, b, c}, {}};
        for (int d = 0; d < 3; ++d) {
          op.count[d] = op.first[d] < s.in[d] ? (s.in[d] - op.first[d] + s.stride[d] - 1) / s.stride[d] : 0;
          op.taps[d] = taps_of(s.kernel[d], s.stride[d], s.padding[d], s.dilation[d], op.first[d]);
          op.n *= op.count[d];
          op.k *= op.taps[d].count;
        }
        contract_all(op);
      }
}

static void backward_weight(const ConvShape& s, const Volume& x, const Volume& dy, const Volume& dw) {
  contract_all(BackwardWeight{s.groups, s.out_channels, s.in_channels * volume_of(s.kernel),
                              s.batch * volume_of(s.out), s, x, dy, dw});
}

static void backward_bias(const ConvShape& s, const Volume& dy, float* db) {
  const int64_t channels = s.groups * s.out_channels;
  if (channels) ES_LAUNCH(blocks_for(channels), kThreads, bias_kernel, s, dy, db);
}

static const Conv kTable = {forward, backward_data, backward_weight, backward_bias};

}
ES_NAMESPACE_END

ES_TABLE_IS(Conv, conv, kTable)
#endif
