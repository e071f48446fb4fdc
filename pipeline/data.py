"""The data of a job: which samples every EST sees at every step, one seeded item, and the dataset's fingerprint.

The order is that of torch's `DistributedSampler` + `DataLoader` with N replicas: a pure function of the job and the
step, so there is nothing to restore but the step. Fetching ahead is left to `loader.py`.
"""

from __future__ import annotations

import hashlib
import traceback
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from ..errors import RemoteError, SpecError, headline
from ..storage.digest import tensor_digest
from .randomness import preserved, seed_sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .spec import JobSpec

FINGERPRINT_ITEMS = 16
"""Items that a fingerprint looks at, from the first to the last."""


def check_dataset(dataset: Any) -> int:
    """The dataset's length.

    Raises:
        SpecError: it is not map-style with a length.
    """
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        raise SpecError(
            f"the dataset ({kind}) is an IterableDataset",
            "use a map-style dataset (__len__ and __getitem__): the order of samples must be a function of the step",
        )
    try:
        length = len(dataset)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise SpecError(
            f"the dataset ({kind}) has no length: {error}", "define __len__: the number of samples"
        ) from error
    if not hasattr(dataset, "__getitem__"):
        raise SpecError(f"the dataset ({kind}) has no __getitem__", "define __getitem__(index)")
    return length


def epoch_of(spec: JobSpec, step: int) -> tuple[int, int]:
    """The epoch that a step lies in, and its number within that epoch (both from 0)."""
    return divmod(step, spec.steps_per_epoch)


def order(spec: JobSpec, epoch: int) -> list[int]:
    """All sample ids of an epoch, padded or cut to a multiple of N: EST `r` sees `order[r::N]`."""
    return list(_order(spec.samples, spec.ests, spec.seed if spec.shuffle else None, spec.drop_last, epoch))


@lru_cache(maxsize=4)
def _order(samples: int, ests: int, seed: int | None, drop_last: bool, epoch: int) -> tuple[int, ...]:
    """As `torch.utils.data.DistributedSampler` (torch 2.13), for at least one sample per EST."""
    if seed is None:
        ids = list(range(samples))
    else:
        generator = torch.Generator().manual_seed(seed + epoch)
        ids = torch.randperm(samples, generator=generator).tolist()
    excess = samples % ests
    if excess and drop_last:
        return tuple(ids[: samples - excess])
    return tuple(ids + ids[: ests - excess] if excess else ids)


def sample_ids(spec: JobSpec, step: int, est: int) -> list[int]:
    """The samples of one EST's batch at one step, in order. The last batch of an epoch may be short."""
    epoch, index = epoch_of(spec, step)
    shuffle_seed = spec.seed if spec.shuffle else None
    ids = _order(spec.samples, spec.ests, shuffle_seed, spec.drop_last, epoch)
    stride = spec.batch_size * spec.ests
    return list(ids[est + index * stride : (index + 1) * stride : spec.ests])


def split_evenly(ids: list[int], pieces: int) -> list[list[int]]:
    """Cut a batch into micro-batches of equal length, or one longer at the front; never an empty one."""
    each, longer = divmod(len(ids), pieces)
    ends = [each * (i + 1) + min(i + 1, longer) for i in range(min(pieces, len(ids)))]
    return [ids[lo:hi] for lo, hi in zip([0, *ends], ends, strict=False)]


def item_error(sample: int, epoch: int, error: Exception) -> RemoteError:
    """What is said of a sample at which the dataset raises, with the traceback: called where it is caught."""
    return RemoteError(f"sample {sample} of the dataset (epoch {epoch}) raised {told(error)}")


def told(error: Exception) -> str:
    """An exception of the user's as text, since its type may not exist in another process: what it is on the first
    line, then the traceback from below the frame that calls this."""
    below = error.__traceback__.tb_next if error.__traceback__ else None
    try:
        trace = "".join(traceback.format_exception(type(error), error, below))
    except Exception:  # noqa: BLE001 - a class of the user's whose text or notes cannot be made
        trace = ""
    return f"{headline(error)}\n{trace}".rstrip()


def fingerprint(dataset: Any, seed: int) -> str:
    """SHA-256 (hex) over length, class name and a few items of a map-style dataset, as the first epoch sees them.

    Equal in all processes and on all machines that make these items bit for bit alike. Data that were exchanged only
    between the items looked at are not noticed.

    Raises:
        SpecError: the dataset is not map-style with a length.
        RemoteError: an item raised.
    """
    length = check_dataset(dataset)
    ids = sorted({i * (length - 1) // (FINGERPRINT_ITEMS - 1) for i in range(FINGERPRINT_ITEMS)}) if length else []
    total = hashlib.sha256(f"easyscale dataset 1\n{type(dataset).__qualname__}\n{length}\n".encode())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with preserved():
            for sample in ids:
                seed_sample(seed, 0, sample)
                try:
                    item = dataset[sample]
                except Exception as error:
                    raise item_error(sample, 0, error) from error
                total.update(f"{sample}\n".encode())
                for part in _parts(item):
                    total.update(part)
    finally:
        torch.set_num_threads(threads)
    return total.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """The value as bytes that determine it. Of objects of unknown classes only the class is seen."""
    if isinstance(value, torch.Tensor):
        yield f"tensor {tensor_digest(value)}\n".encode()
    elif isinstance(value, dict):
        yield from _parts_of_dict(value)
    elif isinstance(value, (list, tuple)):
        yield f"{'list' if isinstance(value, list) else 'tuple'} {len(value)}\n".encode()
        for item in value:
            yield from _parts(item)
    elif isinstance(value, (bytes, bytearray, str)) or value is None or type(value) in (bool, int, float, complex):
        yield f"{type(value).__name__} {value!r}\n".encode("utf-8", "surrogatepass")
    elif isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array_interface__"):
        array = np.asarray(value)  # also PIL images
        if array.dtype.hasobject:
            yield from _parts(array.tolist())
        else:
            yield f"array {array.dtype.str} {array.shape}\n".encode()
            yield np.ascontiguousarray(array).tobytes()
    else:
        yield f"object {type(value).__qualname__}\n".encode()


def _parts_of_dict(value: Mapping[Any, Any]) -> Iterator[bytes]:
    yield f"dict {len(value)}\n".encode()
    for key, item in value.items():
        yield from _parts(key)
        yield from _parts(item)
