"""Recurrent networks are made of operators that other families have, and nothing fused; their results follow."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

ARITHMETIC = {
    *("addmm", "mm", "add", "add_", "mul", "mul_", "sub", "neg", "div_", "sum"),
    *("sigmoid_", "tanh", "tanh_", "relu", "sigmoid_backward", "tanh_backward", "threshold_backward", "bernoulli_"),
}
MOVES = {
    *("cat", "clone", "detach", "empty_like", "expand", "lift_fresh", "ones_like", "select", "slice", "slice_backward"),
    *("stack", "t", "unbind", "unsafe_split", "view", "zeros", "_local_scalar_dense", "_pack_padded_sequence"),
}
NETWORKS = {
    "lstm": lambda: nn.LSTM(9, 7, 2, dropout=0.2, bidirectional=True),
    "lstm with projections": lambda: nn.LSTM(9, 7, proj_size=3),
    "gru": lambda: nn.GRU(9, 7, 2, dropout=0.1),
    "rnn": lambda: nn.RNN(9, 7),
    "rnn with relu": lambda: nn.RNN(9, 7, nonlinearity="relu"),
    "lstm cell": lambda: nn.LSTMCell(9, 7),
    "gru cell": lambda: nn.GRUCell(9, 7),
    "rnn cell": lambda: nn.RNNCell(9, 7),
}


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.add(operator.overloadpacket.__name__)
        return operator(*args, **(kwargs or {}))


def train(name, packed):
    """Hash of the output and all gradients."""
    torch.manual_seed(1)
    network = NETWORKS[name]()
    x = torch.randn(3, 9) if "cell" in name else torch.randn(5, 3, 9)
    x.requires_grad_()
    y = network(nn.utils.rnn.pack_padded_sequence(x, [5, 4, 2]) if packed else x)
    y = y if torch.is_tensor(y) else y[0]
    y = y.data if packed else y
    (y * torch.randn(y.shape)).sum().backward()
    found = hashlib.sha256()
    for tensor in (y, x.grad, *(p.grad for p in network.parameters())):
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


CASES = [(name, packed) for name in NETWORKS for packed in (False, True) if not (packed and "cell" in name)]


@pytest.mark.parametrize(("name", "packed"), CASES)
def test_a_recurrent_network_has_no_operator_of_its_own(exact, name, packed):
    with Operators() as seen:
        train(name, packed)
    known = ARITHMETIC | MOVES | {"uniform_", "randn", "empty", "copy_"}
    assert seen.names <= known, f"new: {seen.names - known}"


FIRST = {}


@pytest.mark.parametrize(("name", "packed"), CASES)
def test_its_results_are_the_same_under_every_instruction_set_and_thread_count(isa, threads, name, packed):
    digest = train(name, packed)
    assert FIRST.setdefault((name, packed), digest) == digest
