// Recurrent networks on a device, composed as ATen composes them on a CPU: products of the inputs with their weights are
// made for all steps at once (so the gradients of weights are one contraction over all steps), gates are separate
// operators. There ATen takes fused cells, step by step.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <vector>

#include "registry.h"

namespace es::glue {
namespace {

using at::Tensor;
using at::TensorList;

struct Weights {
  Tensor of_input, of_hidden, input_bias, hidden_bias, projection;
};

struct State {
  Tensor hidden, cell;  // the second only of an LSTM
};

// `input` has been multiplied with its weights.
using Cell = State (*)(const Tensor& input, const State& before, const Weights&);

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return at::linear(x, weight, bias.defined() ? std::optional<Tensor>(bias) : std::nullopt);
}
Tensor of_input(const Tensor& x, const Weights& w) { return linear(x, w.of_input, w.input_bias); }
Tensor of_hidden(const Tensor& h, const Weights& w) { return linear(h, w.of_hidden, w.hidden_bias); }

State tanh_cell(const Tensor& input, const State& before, const Weights& w) {
  return {of_hidden(before.hidden, w).add_(input).tanh(), {}};
}

State relu_cell(const Tensor& input, const State& before, const Weights& w) {
  return {of_hidden(before.hidden, w).add_(input).relu(), {}};
}

State lstm_step(const Tensor& input, const State& before, const Weights& w) {
  auto gates = of_hidden(before.hidden, w).add_(input).unsafe_chunk(4, 1);
  Tensor in = gates[0].sigmoid_(), forget = gates[1].sigmoid_(), content = gates[2].tanh_(), out = gates[3].sigmoid_();
  Tensor cell = (forget * before.cell).add_(in * content);
  Tensor hidden = out * cell.tanh();
  if (w.projection.defined()) hidden = at::matmul(hidden, w.projection.t());
  return {hidden, cell};
}

State gru_step(const Tensor& input, const State& before, const Weights& w) {
  auto of_x = input.unsafe_chunk(3, 1), of_h = of_hidden(before.hidden, w).unsafe_chunk(3, 1);
  Tensor reset = of_h[0].add_(of_x[0]).sigmoid_(), update = of_h[1].add_(of_x[1]).sigmoid_();
  Tensor content = of_x[2].add(of_h[2].mul_(reset)).tanh_();
  return {(before.hidden - content).mul_(update).add_(content), {}};
}

// ---- a layer: all steps in one direction. Sequences of equal length are (steps, batch, features); packed ones are rows of
// a step after those of the step before, as many as `batches` says, longest sequences first.

struct Output {
  Tensor sequence;
  State last;
};

Output equal_length(Cell cell, const Tensor& input, State state, const Weights& w, bool backwards) {
  auto steps = of_input(input, w).unbind(0);
  TORCH_CHECK(!steps.empty(), "Expected sequence length to be larger than 0 in RNN");
  if (backwards) std::reverse(steps.begin(), steps.end());
  std::vector<Tensor> outputs;
  for (const Tensor& step : steps) {
    state = cell(step, state, w);
    outputs.push_back(state.hidden);
  }
  if (backwards) std::reverse(outputs.begin(), outputs.end());
  return {at::stack(outputs, 0), state};
}

State rows(const State& s, int64_t begin, int64_t end) {
  return {s.hidden.narrow(0, begin, end - begin), s.cell.defined() ? s.cell.narrow(0, begin, end - begin) : s.cell};
}

State joined(const std::vector<State>& parts) {
  std::vector<Tensor> hidden, cell;
  for (const State& s : parts) {
    hidden.push_back(s.hidden);
    if (s.cell.defined()) cell.push_back(s.cell);
  }
  return {at::cat(hidden, 0), cell.empty() ? Tensor() : at::cat(cell, 0)};
}

Output packed(Cell cell, const Tensor& input, at::IntArrayRef batches, const State& first, const Weights& w) {
  Tensor all = of_input(input, w);
  std::vector<Tensor> outputs;
  std::vector<State> ended;
  State state = first;
  int64_t offset = 0, before = batches[0];
  for (int64_t now : batches) {
    Tensor step = all.narrow(0, offset, now);
    offset += now;
    if (now < before) {
      ended.push_back(rows(state, now, before));
      state = rows(state, 0, now);
    }
    before = now;
    state = cell(step, state, w);
    outputs.push_back(state.hidden);
  }
  ended.push_back(state);
  std::reverse(ended.begin(), ended.end());
  return {at::cat(outputs, 0), joined(ended)};
}

Output packed_backwards(Cell cell, const Tensor& input, at::IntArrayRef batches, const State& first, const Weights& w) {
  Tensor all = of_input(input, w);
  std::vector<Tensor> outputs;
  State state = rows(first, 0, batches.back());
  int64_t offset = input.size(0), before = batches.back();
  for (auto now = batches.rbegin(); now != batches.rend(); ++now) {
    if (*now > before) state = joined({state, rows(first, before, *now)});
    offset -= *now;
    before = *now;
    state = cell(all.narrow(0, offset, *now), state, w);
    outputs.push_back(state.hidden);
  }
  std::reverse(outputs.begin(), outputs.end());
  return {at::cat(outputs, 0), state};
}

// ---- a network

struct Network {
  Cell cell;
  bool has_biases, projected, bidirectional, train;
  int64_t layers;
  double dropout;
};

std::vector<Weights> weights_of(TensorList parameters, const Network& n) {
  size_t each = 2 + (n.has_biases ? 2 : 0) + (n.projected ? 1 : 0);
  size_t directions = n.bidirectional ? 2 : 1;
  TORCH_CHECK(parameters.size() == each * directions * (size_t)n.layers, "got an incorrect number of RNN parameters");
  std::vector<Weights> all;
  for (size_t i = 0; i < parameters.size(); i += each) {
    Weights w{parameters[i], parameters[i + 1], {}, {}, {}};
    if (n.has_biases) w.input_bias = parameters[i + 2], w.hidden_bias = parameters[i + 3];
    if (n.projected) w.projection = parameters[i + each - 1];
    all.push_back(w);
  }
  return all;
}

// `batches` is null for sequences of equal length.
std::tuple<Tensor, std::vector<State>> run(const Network& n, Tensor input, const at::IntArrayRef* batches,
                                           const std::vector<State>& first, TensorList parameters) {
  auto weights = weights_of(parameters, n);
  TORCH_CHECK(first.size() == weights.size(), "Expected ", weights.size(), " hidden states, got ", first.size());
  std::vector<State> last;
  auto layer = [&](size_t number, bool backwards) {
    const Weights& w = weights[number];
    Output out = !batches    ? equal_length(n.cell, input, first[number], w, backwards)
                 : backwards ? packed_backwards(n.cell, input, *batches, first[number], w)
                             : packed(n.cell, input, *batches, first[number], w);
    last.push_back(out.last);
    return out.sequence;
  };
  for (int64_t l = 0; l < n.layers; ++l) {
    if (n.bidirectional) {
      Tensor there = layer(2 * l, false), back = layer(2 * l + 1, true);
      input = at::cat({there, back}, -1);
    } else {
      input = layer(l, false);
    }
    if (n.dropout != 0 && n.train && l + 1 < n.layers) input = at::dropout(input, n.dropout, true);
  }
  return {input, last};
}

Tensor stacked(const std::vector<State>& states, Tensor State::*which) {
  std::vector<Tensor> all;
  for (const State& s : states) all.push_back(s.*which);
  return at::stack(all, 0);
}

std::vector<State> states_of(const Tensor& hidden, const Tensor& cell = {}) {
  std::vector<State> all;
  for (const Tensor& h : hidden.unbind(0)) all.push_back({h, {}});
  if (cell.defined()) {
    auto cells = cell.unbind(0);
    TORCH_CHECK(cells.size() == all.size(), "h_0 and c_0 have different numbers of layers");
    for (size_t i = 0; i < all.size(); ++i) all[i].cell = cells[i];
  }
  return all;
}

at::IntArrayRef counts(const Tensor& batch_sizes) {
  TORCH_CHECK(batch_sizes.is_cpu() && batch_sizes.scalar_type() == at::kLong && batch_sizes.numel() > 0,
              "batch_sizes of a packed sequence are integers on the CPU");
  return {batch_sizes.const_data_ptr<int64_t>(), (size_t)batch_sizes.numel()};
}

// ---- operators

using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

template <Cell kCell>
Two plain(const Tensor& input, const Tensor& first, TensorList parameters, bool has_biases, int64_t layers,
          double dropout, bool train, bool bidirectional, bool batch_first) {
  auto [out, last] = run({kCell, has_biases, false, bidirectional, train, layers, dropout},
                         batch_first ? input.transpose(0, 1) : input, nullptr, states_of(first), parameters);
  return {batch_first ? out.transpose(0, 1) : out, stacked(last, &State::hidden)};
}
template <Cell kCell>
Two plain_packed(const Tensor& data, const Tensor& batch_sizes, const Tensor& first, TensorList parameters,
                 bool has_biases, int64_t layers, double dropout, bool train, bool bidirectional) {
  at::IntArrayRef batches = counts(batch_sizes);
  auto [out, last] = run({kCell, has_biases, false, bidirectional, train, layers, dropout}, data, &batches,
                         states_of(first), parameters);
  return {out, stacked(last, &State::hidden)};
}

bool is_projected(TensorList first) {
  TORCH_CHECK(first.size() == 2, "lstm expects two hidden states");
  TORCH_CHECK(first[0].dim() == 3 && first[1].dim() == 3, "h_0 and c_0 should be 3-D");
  return first[0].size(2) != first[1].size(2);
}
Three lstm(const Tensor& input, TensorList first, TensorList parameters, bool has_biases, int64_t layers,
           double dropout, bool train, bool bidirectional, bool batch_first) {
  auto [out, last] = run({lstm_step, has_biases, is_projected(first), bidirectional, train, layers, dropout},
                         batch_first ? input.transpose(0, 1) : input, nullptr, states_of(first[0], first[1]), parameters);
  return {batch_first ? out.transpose(0, 1) : out, stacked(last, &State::hidden), stacked(last, &State::cell)};
}
Three lstm_packed(const Tensor& data, const Tensor& batch_sizes, TensorList first, TensorList parameters,
                  bool has_biases, int64_t layers, double dropout, bool train, bool bidirectional) {
  at::IntArrayRef batches = counts(batch_sizes);
  auto [out, last] = run({lstm_step, has_biases, is_projected(first), bidirectional, train, layers, dropout}, data,
                         &batches, states_of(first[0], first[1]), parameters);
  return {out, stacked(last, &State::hidden), stacked(last, &State::cell)};
}

using Maybe = const std::optional<Tensor>&;

Weights weights_of_cell(const Tensor& input, const Tensor& hidden, const Tensor& of_x, const Tensor& of_h, Maybe bias_x,
                        Maybe bias_h) {
  TORCH_CHECK(input.size(1) == of_x.size(1), "input has inconsistent input_size: got ", input.size(1), " expected ",
              of_x.size(1));
  TORCH_CHECK(input.size(0) == hidden.size(0) && hidden.size(1) == of_h.size(1),
              "hidden has inconsistent sizes: got ", hidden.sizes(), ", expected ", input.size(0), " x ", of_h.size(1));
  return {of_x, of_h, bias_x.value_or(Tensor()), bias_h.value_or(Tensor()), {}};
}
template <Cell kCell>
Tensor one_step(const Tensor& input, const Tensor& hidden, const Tensor& of_x, const Tensor& of_h, Maybe bias_x,
                Maybe bias_h) {
  Weights w = weights_of_cell(input, hidden, of_x, of_h, bias_x, bias_h);
  return kCell(of_input(input, w), {hidden, {}}, w).hidden;
}
Two lstm_one_step(const Tensor& input, TensorList hidden, const Tensor& of_x, const Tensor& of_h, Maybe bias_x,
                  Maybe bias_h) {
  TORCH_CHECK(hidden.size() == 2, "lstm_cell expects two hidden states");
  Weights w = weights_of_cell(input, hidden[0], of_x, of_h, bias_x, bias_h);
  State state = lstm_step(of_input(input, w), {hidden[0], hidden[1]}, w);
  return {state.hidden, state.cell};
}

}

ES_COMPOSITES(recurrent, ops) {
  ops.impl("rnn_tanh.input", plain<tanh_cell>);
  ops.impl("rnn_tanh.data", plain_packed<tanh_cell>);
  ops.impl("rnn_tanh_cell", one_step<tanh_cell>);
  ops.impl("rnn_relu.input", plain<relu_cell>);
  ops.impl("rnn_relu.data", plain_packed<relu_cell>);
  ops.impl("rnn_relu_cell", one_step<relu_cell>);
  ops.impl("gru.input", plain<gru_step>);
  ops.impl("gru.data", plain_packed<gru_step>);
  ops.impl("gru_cell", one_step<gru_step>);
  ops.impl("lstm.input", lstm);
  ops.impl("lstm.data", lstm_packed);
  ops.impl("lstm_cell", lstm_one_step);
}

}
