"""An exact process refuses what it does not cover, and notices what changes its arithmetic."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from easyscale.errors import DeviceError, InexactError
from easyscale.pipeline.numerics import coverage, library, strict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REFUSED = library.REFUSED


@pytest.fixture
def exact() -> Iterator[None]:
    with strict.strictly():
        yield


def test_what_is_covered_runs_in_every_variant(exact: None) -> None:
    x = torch.ones(3, 4)
    assert (x * 2).tolist() == x.mul_(2).tolist() == torch.mul(torch.ones(3, 4), 2, out=torch.empty(3, 4)).tolist()
    assert (x @ x.t()).tolist() == [[16.0] * 3] * 3
    assert x.view(12)[3:].clone().flip(0).tolist() == [2.0] * 9


OF_DOUBLES = {
    "add": lambda x: x + x,
    "sub": lambda x: x - x,
    "rsub": lambda x: 1 - x,
    "random": lambda x: x.random_(5),
    "exponential": lambda x: x.exponential_(),
    "uniform": lambda x: x.uniform_(),
    "bernoulli": lambda x: x.bernoulli_(0.5),
    "multinomial": lambda x: torch.multinomial(x, 2),
    "arange": lambda x: torch.arange(3, dtype=x.dtype),
    "linspace": lambda x: torch.linspace(0, 1, 3, dtype=x.dtype),
    **{name: lambda x, name=name: getattr(x, name)() for name in ("sum", "mean", "amax", "amin", "aminmax", "sqrt")},
}


def test_what_a_scan_says_of_float64_is_so(exact: None) -> None:
    assert OF_DOUBLES.keys() == coverage.DOUBLES
    for run in OF_DOUBLES.values():
        run(torch.ones(3, 4, dtype=torch.float64))


def ones() -> torch.Tensor:
    return torch.ones(3, 4)


@pytest.mark.parametrize(
    ("operator", "call"),
    [
        ("_fft_r2c", lambda: torch.fft.rfft(ones())),
        ("linalg_qr", lambda: torch.linalg.qr(ones())),
        ("linalg_qr", lambda: torch.nn.init.orthogonal_(ones())),
        ("_to_sparse", lambda: ones().to_sparse()),
        ("_sparse_coo_tensor_with_dims_and_tensors", lambda: torch.sparse_coo_tensor([[0]], ones()[:1], (3, 4))),
        ("quantize_per_tensor", lambda: torch.quantize_per_tensor(ones(), 1.0, 0, torch.qint8)),
        ("_nested_tensor_from_tensor_list", lambda: torch.nested.nested_tensor([ones()])),
        ("to_mkldnn", lambda: ones().to_mkldnn()),
        ("_unique2", lambda: torch.unique(ones())),
        ("median", lambda: ones().median()),
        ("round.decimals", lambda: ones().round(decimals=2)),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_not_covered_is_refused_by_name(exact: None, operator: str, call: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match=f"{REFUSED}(aten::)?{operator}"):
        call()


def test_what_is_exact_for_integers_is_refused_for_floats_only(exact: None) -> None:
    whole = torch.tensor([3, 2, 3])
    assert torch.unique(whole).tolist() == [2, 3]
    assert (whole // 2).tolist() == [1, 1, 1]
    assert torch.bincount(whole).tolist() == [0, 0, 1, 2]
    with pytest.raises(RuntimeError, match=r"bincount.* integers only"):
        torch.bincount(whole, weights=torch.ones(3))


def test_equal_elements_are_sorted_by_their_index_and_a_nan_is_above_all(exact: None) -> None:
    x = torch.tensor([1.0, 3.0, 2.0, 3.0, float("nan"), 3.0, 1.0])
    assert x.sort().indices.tolist() == [0, 6, 2, 1, 3, 5, 4]
    assert x.argsort(descending=True).tolist() == [4, 1, 3, 5, 2, 0, 6]
    assert x.topk(3).indices.tolist() == [4, 1, 3]
    assert x.topk(2, largest=False, sorted=False).indices.tolist() == [0, 6]
    assert torch.zeros(5000).topk(3).indices.tolist() == [0, 1, 2]


def test_ranges_of_floats_are_computed_in_double_precision_and_rounded_once(exact: None) -> None:
    assert torch.arange(0, 1, 0.1).tolist() == [torch.tensor(0.1 * i).item() for i in range(10)]
    assert torch.arange(5).tolist() == [0, 1, 2, 3, 4]
    line = torch.linspace(-1, 1, 101)
    assert line.tolist() == [-x for x in reversed(line.tolist())]
    apart = torch.zeros(20)[::2]
    assert torch.arange(10, out=apart).tolist() == list(range(10))
    assert torch.arange(3, dtype=torch.bfloat16).tolist() == [0.0, 1.0, 2.0]


def test_inductor_is_refused_and_the_compilers_that_call_operators_are_not(exact: None) -> None:
    with pytest.raises(InexactError, match=r"torch\.compile") as raised:
        torch.compile(lambda x: x * 2)
    assert "aot_eager" in str(raised.value)
    assert torch.compile(lambda x: x * 2, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0]
    assert torch.compile(lambda x: x * 2, backend="aot_eager")(torch.ones(2)).tolist() == [2.0, 2.0]


def test_an_operator_of_somebody_else_is_refused_also_if_it_comes_later(exact: None) -> None:
    @torch.library.custom_op("easyscaletest::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert twice(torch.ones(2)).tolist() == [2.0, 2.0], "not looked at yet"
    assert strict.look() == ["easyscaletest::twice"]
    assert strict.look() == []
    for needs_grad in (False, True):
        with pytest.raises(RuntimeError, match="easyscaletest::twice"):
            twice(torch.ones(2, requires_grad=needs_grad))


def test_a_kernel_that_was_put_in_the_place_of_one_of_pytorchs_is_noticed(exact: None) -> None:
    strict.look(operators=True)
    theirs = torch.library.Library("aten", "IMPL")
    theirs.impl("mul.Tensor", lambda x, y: x, "CPU", allow_override=True)
    try:
        with pytest.raises(InexactError, match=r"aten::mul.Tensor was replaced: .*test_numerics_strict.py"):
            strict.look(operators=True)
    finally:
        theirs._destroy()
    strict.look(operators=True)


@pytest.mark.parametrize("everything", [False, True])
def test_flushing_subnormals_to_zero_is_noticed(exact: None, everything: bool) -> None:
    strict.look(operators=everything)
    torch.set_flush_denormal(True)
    try:
        with pytest.raises(InexactError, match=r"subnormal") as raised:
            strict.look(operators=everything)
    finally:
        torch.set_flush_denormal(False)
    assert "set_flush_denormal" in str(raised.value)
    strict.look(operators=everything)


def test_switching_onednn_on_again_is_undone_and_threads_are_free(exact: None) -> None:
    lstm = torch.nn.LSTM(3, 4)
    torch.backends.mkldnn.enabled = True
    with pytest.raises(RuntimeError, match="mkldnn_rnn_layer"):
        lstm(torch.ones(2, 1, 3))
    strict.look()
    assert not torch._C._get_mkldnn_enabled()
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    strict.look(operators=True)
    torch.set_num_threads(before)


def test_deterministic_algorithms_of_pytorchs_which_a_script_switches_on_are_off_again(exact: None) -> None:
    """With them PyTorch composes some operators in another way, on GPUs only."""
    torch.use_deterministic_algorithms(True)
    strict.look(operators=True)
    assert not torch.are_deterministic_algorithms_enabled()


def test_memory_that_is_written_twice_is_pytorchs_own_error(exact: None) -> None:
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.ones(1).expand(3).mul_(2)


def test_afterwards_pytorch_is_as_it_was() -> None:
    before = torch.fft.rfft(torch.ones(4)).real.tolist()
    with strict.strictly():
        assert strict.begun()
    assert not strict.begun()
    assert torch.fft.rfft(torch.ones(4)).real.tolist() == before
    assert torch.unique(torch.ones(3)).tolist() == [1.0]
    assert torch.compile(lambda x: x) is not None


def test_the_instruction_set_of_the_kernels_can_be_named_and_one_that_is_lacking_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(library.ISA, "baseline")
    with library.exact():
        library.use_isa()
        assert library.load().isa() in ("baseline", "neon")
        monkeypatch.setenv(library.ISA, "z80")
        with pytest.raises(DeviceError, match=r"EASYSCALE_ISA=z80.*z80"):
            library.use_isa()
        monkeypatch.delenv(library.ISA)
        library.use_isa()


def test_an_exact_process_that_forks_has_exact_children() -> None:
    code = """
import os, torch
from easyscale.pipeline.numerics import strict
strict.begin()
if os.fork() == 0:
    try:
        torch.fft.rfft(torch.ones(3))
    except RuntimeError as error:
        os._exit(0 if "not exact" in str(error) else 1)
    os._exit(2)
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
