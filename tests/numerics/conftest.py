"""Exact kernels beside PyTorch's own, under every instruction set that this processor has."""

from __future__ import annotations

import pytest
import torch
from easyscale.pipeline.numerics import build, library
from numerics.isas import ISAS


@pytest.fixture(scope="session", autouse=True)
def built():
    """Once, by whoever of several test processes comes first."""
    return build.library()


@pytest.fixture(params=ISAS)
def isa(request):
    """Exact mode under one instruction set after the other."""
    with library.exact(request.param):
        yield request.param


@pytest.fixture
def exact():
    """Exact mode."""
    with library.exact():
        yield


@pytest.fixture(params=(1, 2))
def threads(request):
    """Under one thread and under several."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
