"""A commit as a file that plain PyTorch reads: no part of EasyScale is needed to load it, and no code is run by that.

A model is exported under the names that its own `state_dict()` has: tied weights under all their names, buffers that
are not persistent not at all. Only the job's code knows these, so it is built once for that.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..errors import UserError
from ..storage import packs, trees
from ..storage.files import NO_ROOM
from .inputs import averaged

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

What = Literal["model", "ema", "optimizer", "all"]
Format = Literal["safetensors", "torch"]

SKELETON = "easyscale.state"
"""Under this name the metadata of a safetensors file have what is no tensor, in JSON: a skeleton of `trees.flatten`."""


def plain_names(state: Mapping[str, Any]) -> dict[str, str]:
    """Names for the tensors of a model if its code is not asked: those of its parameters and all its buffers."""
    model = state["model"]
    return {name: f"{kind}/{name}" for kind in ("parameters", "buffers") for name in model[kind]}


def chosen(state: Mapping[str, Any], what: What, places: Mapping[str, str]) -> dict[Any, Any]:
    """The part of a state that is wanted, as PyTorch's own objects would give it.

    Args:
        state: of a commit.
        what: `model` or `ema` (with the averaged parameters): a `state_dict` of the model; `optimizer`: one of the
            optimizer; `all`: both, and everything else of the state, by name.
        places: see `replay_messages.Named`.

    Raises:
        UserError: the job keeps no averages; or its model has changed since that commit.
    """
    if what == "optimizer":
        return dict(state["optimizer"])
    if what == "all":
        rest = {name: part for name, part in state.items() if name != "model"}
        return {"model": _model(state, places), **rest}
    if what == "ema":
        if not state["ema"]:
            raise UserError("this job keeps no averages of its parameters", "leave out --what, or train with ema=...")
        parameters = averaged(state["model"]["parameters"], state["ema"])
        state = {**state, "model": {**state["model"], "parameters": parameters}}
    return _model(state, places)


def returned(state: Mapping[str, Any], what: What) -> dict[Any, Any]:
    """What a function returned, as it can be written: what is no dict is `result` in one.

    Raises:
        UserError: something of a training is wanted.
    """
    if what not in ("model", "all"):
        raise UserError(f"this job is a call of a function: it has no {what}", "leave out --what")
    result = state["result"]
    return dict(result) if isinstance(result, dict) else {"result": result}


def write(tree: dict[Any, Any], form: Format, file: Path, metadata: Mapping[str, str]) -> int:
    """Write a file, whole or not at all. Returns its size in bytes.

    Args:
        tree: tensors by name; for `torch`, and for other safetensors files than a model's, also nested.
        form: `torch`: for `torch.load(file, weights_only=True)`. `safetensors`: for `safetensors.torch.load_file`;
            what is nested has its path for a name, and what is no tensor is JSON in the metadata (`SKELETON`).
        file: it must not be there.
        metadata: text for the header of a safetensors file.

    Raises:
        UserError: the file is there, cannot be written, or has a type that safetensors does not know.
    """
    if file.exists():
        raise UserError(f"{file} is there already", "name another file (--to), or remove it first")
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as out:
            if form == "torch":
                torch.save(tree, out)
            else:
                out.writelines(_safetensors(tree, metadata))
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
        return file.stat().st_size
    except (OSError, RuntimeError) as error:  # torch.save raises the latter on a full disk
        full = isinstance(error, RuntimeError) or error.errno in NO_ROOM
        hint = "free some room" if full else "name a file in a folder that is there and that you may write to"
        raise UserError(f"{file} cannot be written: {error}", hint) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _model(state: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, torch.Tensor]:
    found = {}
    for name, place in places.items():
        kind, _, key = place.partition("/")
        tensor = state["model"][kind].get(key)
        if tensor is None:
            raise UserError(
                f"the model that the job's code builds has {name!r}, and the commit has not",
                "its code has changed since then: --plain-names exports what the commit has",
            )
        found[name] = tensor
    return found


def _safetensors(tree: dict[Any, Any], metadata: Mapping[str, str]) -> list[Any]:
    skeleton, tensors = trees.flatten(tree)
    flat = all(isinstance(value, torch.Tensor) and isinstance(name, str) for name, value in tree.items())
    if flat:  # a state_dict: its names are its own
        tensors = dict(tree)
    else:
        metadata = {**metadata, SKELETON: json.dumps(skeleton)}
    for name, tensor in tensors.items():
        if packs.codec(tensor.dtype) != "plain":
            raise UserError(
                f"{name!r} is of type {tensor.dtype}, which not every reader of safetensors knows", "use --format torch"
            )
    return packs.pieces({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)
