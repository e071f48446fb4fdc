"""PyTorch's own table of operators (op_db), with its inputs: forward and backward, what comes out as a digest.

Inputs are drawn from the mode's own generator, so this is only comparable between worlds in exact mode.
"""

from __future__ import annotations

import warnings
from unittest import mock

import torch
from numerics.zoo import digest

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MOST_SAMPLES = {"float32": 40, "bfloat16": 8, "float16": 8}

UNWRITTEN = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_")
"""Operators that give memory as it is."""

OTHERWISE_ON_A_DEVICE = {
    "tensor_split": "wants its indices on the CPU",
    "nn.functional.ctc_loss": "asks cuDNN, and is refused on CPUs",
    "nn.functional.linear_cross_entropy.chunked": "asks for products of another type, which are refused",
    "nn.functional.linear_cross_entropy.chunked_none": "asks for products of another type, which are refused",
}


def _tensors(thing) -> list[torch.Tensor]:
    if isinstance(thing, torch.Tensor):
        return [thing]
    if isinstance(thing, dict):
        return [tensor for value in thing.values() for tensor in _tensors(value)]
    if isinstance(thing, (list, tuple)):
        return [tensor for value in thing for tensor in _tensors(value)]
    return []


def _moved(thing, device: str):
    """A copy on a device, laid out as it is: some inputs share tensors, which operators change."""
    if not isinstance(thing, torch.Tensor) or thing.layout != torch.strided or thing.device.type != "cpu":
        return thing
    with torch.no_grad():
        memory = torch.empty(0, dtype=thing.dtype, device="cpu").set_(thing.untyped_storage())
        moved = memory.to(device, copy=True).as_strided(thing.shape, thing.stride(), thing.storage_offset())
    return moved.requires_grad_(thing.requires_grad)


def _outcome(op, sample) -> str:
    """Of one input: a digest, or in one word why there is none."""
    try:
        out = _tensors(op(sample.input, *sample.args, **sample.kwargs))
        leaves = [leaf for leaf in _tensors([sample.input, sample.args, sample.kwargs]) if leaf.requires_grad]
        roots = [one for one in out if one.requires_grad]
        gradients = []
        if leaves and roots:
            given = [((torch.arange(one.numel()) % 17 - 8) / 8).to(one).reshape(one.shape) for one in roots]
            gradients = torch.autograd.grad(roots, leaves, given, allow_unused=True)
        return digest(one for one in [*out, *gradients] if one is not None and not one.is_sparse)
    except Exception as error:
        text = str(error)
        if "not exact" in text:
            return f"refused: {text.partition('not exact: ')[2].split(': ')[0]}"
        return f"failed: {type(error).__name__}"


def main(dtype: str, part: str = "0/1", device: str = "cpu") -> dict[str, list[str]]:
    """Outcomes by operator."""
    # Inputs as on a CPU: some have others where there is a GPU.
    no_gpu = mock.patch("torch.cuda.is_available", return_value=False)
    with no_gpu:
        from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    number, parts = map(int, part.split("/"))
    found = {}
    for op in op_db[number::parts]:
        if op.name in UNWRITTEN or not op.supports_dtype(DTYPES[dtype], "cpu"):
            continue
        torch.manual_seed(1)
        name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        try:
            with no_gpu:
                samples = list(op.sample_inputs("cpu", DTYPES[dtype], requires_grad=op.supports_autograd))
        except Exception as error:
            found[name] = [f"no inputs: {type(error).__name__}: {str(error)[:100]}"]
            continue
        samples = [sample.transform(lambda thing: _moved(thing, device)) for sample in samples[: MOST_SAMPLES[dtype]]]
        found[name] = [_outcome(op, sample) for sample in samples]
    return found
