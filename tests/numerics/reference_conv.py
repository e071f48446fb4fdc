"""Convolutions in the specified order, slow and in numpy: every product that takes part is written into a matrix, in
the order in which it does, and `reference.contract` adds up. Shares no code with `csrc`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numerics import reference


@dataclass(frozen=True)
class Case:
    """One convolution. Channels are those of one group; of a transposed one, `channels` is its input's, too."""

    batch: int
    channels: int
    outputs: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    extra: tuple[int, ...] | None = None
    """Output padding: it is a transposed one."""

    @property
    def transposed(self):
        return self.extra is not None

    def arguments(self):
        """What `aten::convolution` takes after its tensors."""
        extra = self.extra or (0,) * len(self.size)
        return [list(self.stride), list(self.padding), list(self.dilation), self.transposed, list(extra), self.groups]

    def output_size(self):
        sizes = []
        for d, size in enumerate(self.size):
            kernel = (self.kernel[d] - 1) * self.dilation[d] + 1
            if self.extra is not None:
                sizes.append((size - 1) * self.stride[d] - 2 * self.padding[d] + kernel + self.extra[d])
            else:
                sizes.append((size + 2 * self.padding[d] - kernel) // self.stride[d] + 1)
        return tuple(sizes)

    def shapes(self):
        """Of input, weight, output."""
        pair = (self.channels, self.outputs) if self.transposed else (self.outputs, self.channels)
        return (
            (self.batch, self.groups * self.channels, *self.size),
            (self.groups * pair[0], pair[1], *self.kernel),
            (self.batch, self.groups * self.outputs, *self.output_size()),
        )


def simple(batch, channels, outputs, size, kernel, stride=1, padding=0, dilation=1, groups=1, extra=None):
    """A case whose dimensions are all treated alike, if a number is given for them."""
    wide = [x if isinstance(x, tuple) else (x,) * len(size) for x in (kernel, stride, padding, dilation)]
    more = extra if extra is None or isinstance(extra, tuple) else (extra,) * len(size)
    return Case(batch, channels, outputs, size, *wide, groups=groups, extra=more)


def _take(x, index):
    """x[n, c] at index (one array of positions per dimension); +0 outside."""
    inside = np.ones(index[0].shape, bool)
    for i, size in zip(index, x.shape[2:], strict=True):
        inside &= (i >= 0) & (i < size)
    if 0 in x.shape[2:]:
        return np.zeros((*x.shape[:2], *inside.shape), x.dtype)
    found = x[(slice(None), slice(None), *(np.clip(i, 0, s - 1) for i, s in zip(index, x.shape[2:], strict=True)))]
    return np.where(inside, found, np.float32(0))


def _grid(*ranges):
    return [a.ravel() for a in np.meshgrid(*ranges, indexing="ij")]


def gather(case, x, w, out):
    """Each output from the inputs under its kernel. x (n, g*c, ...), w (g*o, c, ...): (n, g*o, *out)."""
    n, groups, taps = x.shape[0], case.groups, _grid(*map(range, w.shape[2:]))
    at = _grid(*map(range, out))
    patches = [
        _take(x, [at[d] * case.stride[d] - case.padding[d] + t[d] * case.dilation[d] for d in range(len(out))])
        for t in zip(*taps, strict=True)
    ]
    k = np.stack(patches, 2).reshape(n, groups, w.shape[1] * len(patches), len(at[0]))  # (channel, taps)
    return reference.contract(w.reshape(groups, -1, k.shape[2]), k).reshape(n, w.shape[0], *out)


def spread(case, y, w, out):
    """The other way: each output from those inputs whose kernels reach it. w (g*c, o, ...)."""
    n, groups, dims = y.shape[0], case.groups, range(len(out))
    result = np.zeros((n, groups, w.shape[1], *out), np.float32)
    weights = w.reshape(groups, w.shape[0] // groups, w.shape[1], *w.shape[2:])
    for phase in product(*map(range, case.stride)):
        at = _grid(*(range(phase[d], out[d], case.stride[d]) for d in dims))
        far = [[phase[d] + case.padding[d] - t * case.dilation[d] for t in range(w.shape[2 + d])] for d in dims]
        taps = list(product(*([t for t, f in enumerate(far[d]) if f % case.stride[d] == 0] for d in dims)))
        if not taps or not len(at[0]):
            continue
        met = [
            _take(y, [(at[d] + case.padding[d] - t[d] * case.dilation[d]) // case.stride[d] for d in dims])
            for t in taps
        ]
        k = np.stack(met, 2).reshape(
            n, groups, -1 if n else len(taps) * weights.shape[1], len(at[0])
        )  # (channel, taps)
        a = np.stack([weights[(slice(None),) * 3 + t] for t in taps], 2)  # groups, c, taps, o
        a = a.reshape(groups, -1, w.shape[1]).transpose(0, 2, 1)
        result[(slice(None),) * 3 + tuple(at)] = reference.contract(a, k)
    return result.reshape(n, groups * w.shape[1], *out)


def weights(case, x, y, kernel):
    """The gradient of a `gather`'s weights: (g*o, c, *kernel)."""
    groups, at = case.groups, _grid(*map(range, y.shape[2:]))
    pixels = len(at[0])
    n, c, o = x.shape[0], x.shape[1] // groups, y.shape[1] // groups
    result = np.zeros((groups, o, c, *kernel), np.float32)
    a = y.reshape(n, groups, o, pixels).transpose(1, 2, 0, 3).reshape(groups, o, n * pixels)
    for t in product(*map(range, kernel)):
        met = _take(x, [at[d] * case.stride[d] - case.padding[d] + t[d] * case.dilation[d] for d in range(len(kernel))])
        b = met.reshape(n, groups, c, pixels).transpose(1, 0, 3, 2).reshape(groups, n * pixels, c)
        result[(slice(None),) * 3 + t] = reference.contract(a, b)
    return result.reshape(-1, c, *kernel)


def forward(case, x, w, bias):
    """What `aten::convolution` returns."""
    y = (spread if case.transposed else gather)(case, x, w, case.output_size())
    with np.errstate(all="ignore"):
        return y + bias.reshape(-1, *[1] * len(case.size))


def backward(case, dy, x, w):
    """What `aten::convolution_backward` returns."""
    plain = replace(case, extra=None)
    if case.transposed:
        dx, dw = gather(plain, dy, w, case.size), weights(plain, dy, x, case.kernel)
    else:
        dx, dw = spread(plain, dy, w, case.size), weights(plain, x, dy, case.kernel)
    return dx, dw, reference.reduce(np.moveaxis(dy, 1, 0).reshape(dy.shape[1], dy.size // dy.shape[1]))
