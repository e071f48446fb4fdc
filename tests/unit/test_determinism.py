"""Settings that make PyTorch deterministic, and the name of what remains."""

from __future__ import annotations

import os

import pytest
import torch
from easyscale.pipeline.determinism import class_id, configure, determinism_class


@pytest.mark.parametrize("threads", [2, 1])
def test_configure_makes_torch_deterministic_with_so_many_threads(threads: int) -> None:
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True
    torch.use_deterministic_algorithms(False)
    configure(threads)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.get_num_threads() == threads
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.tensor([1e-40]).add(1e-40).item() != 0


def test_the_class_depends_on_threads_and_on_what_makes_libraries_choose_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ONEDNN_MAX_CPU_ISA", "MKL_CBWR"):
        monkeypatch.delenv(name, raising=False)
    one = determinism_class("cpu", 1)
    assert one == determinism_class("cpu", 1)
    assert one["torch"] == torch.__version__
    assert one["isa"] == torch.backends.cpu.get_cpu_capability()
    ids = {class_id(one), class_id(determinism_class("cpu", 2))}
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    ids.add(class_id(determinism_class("cpu", 1)))
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    ids.add(class_id(determinism_class("cpu", 1)))
    assert len(ids) == 4
    assert all(len(name) == 12 for name in ids)


def test_the_order_of_a_class_does_not_matter_to_its_id() -> None:
    one = determinism_class("cpu", 1)
    assert class_id(dict(reversed(one.items()))) == class_id(one)
