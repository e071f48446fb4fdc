"""Random numbers: to the bit the specified ones, the same under every instruction set, thread count and layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numerics import reference
from numerics import reference_random as ours

COUNTS = [1, 15, 16, 17, 63, 64, 65, 200, 5000]


def test_philox_gives_the_words_that_its_authors_published():
    cases = [
        (0, [0, 0, 0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (2**64 - 1, [0xFFFFFFFF] * 4, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            0x299F31D0A4093822,
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ]
    for key, counter, words in cases:
        assert ours.philox(key, np.array([counter], np.uint64))[0].tolist() == words


@pytest.mark.parametrize("count", COUNTS)
def test_uniform_numbers_are_the_specified_ones(isa, threads, count):
    torch.manual_seed(count)
    first, second = ours.keys(count, 2)
    assert reference.same(torch.rand(count).numpy(), ours.uniform(first, count, 0, 1))
    assert reference.same(torch.empty(count).uniform_(-3, 0.7).numpy(), ours.uniform(second, count, -3, 0.7))


@pytest.mark.parametrize("count", COUNTS)
def test_zeros_and_ones_are_the_specified_ones(isa, threads, count):
    torch.manual_seed(count)
    generator = np.random.default_rng(count)
    each = generator.random(count, np.float32)
    for key, p in zip(ours.keys(count, 4), [0.3, 0.0, 1.0, 1e-9], strict=True):
        assert reference.same(
            torch.empty(count).bernoulli_(p).numpy(), ours.bernoulli(key, count, p).astype(np.float32)
        )
    torch.manual_seed(count)
    drawn = torch.bernoulli(torch.from_numpy(each))
    assert reference.same(drawn.numpy(), ours.bernoulli(ours.keys(count, 1)[0], count, each).astype(np.float32))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float16, torch.float64])
def test_zeros_and_ones_are_the_same_in_every_type(isa, dtype):
    torch.manual_seed(1)
    expected = torch.empty(777).bernoulli_(0.4)
    torch.manual_seed(1)
    assert torch.equal(torch.empty(777, dtype=dtype).bernoulli_(0.4).float(), expected)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 2), (-5, 1000), (0, 2**32), (-(2**63), 2**63 - 1), (7, 8), (-(2**40), 3 * 2**40)]
)
def test_integers_are_the_specified_ones(isa, threads, low, high):
    for count in (1, 31, 32, 33, 3000):
        torch.manual_seed(count)
        expected = ours.integers(ours.keys(count, 1)[0], count, low, high - low)
        assert torch.randint(low, high, (count,)).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.bool, 2),
        (torch.uint8, 2**8),
        (torch.int8, 2**7),
        (torch.int16, 2**15),
        (torch.int32, 2**31),
        (torch.int64, 2**63),
        (torch.bfloat16, 2**8 + 1),
        (torch.float16, 2**11 + 1),
        (torch.float32, 2**24 + 1),
        (torch.float64, 2**53 + 1),
    ],
)
def test_integers_without_bounds_are_those_that_the_type_holds_exactly(exact, dtype, size):
    torch.manual_seed(9)
    expected = ours.integers(ours.keys(9, 1)[0], 500, 0, size)
    assert [int(x) for x in torch.empty(500, dtype=dtype).random_()] == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 0), (-1e-3, 1e-3), (3, 3)])
def test_uniform_halves_are_rounded_once_and_stay_below_their_bound(isa, dtype, low, high):
    torch.manual_seed(2)
    drawn = torch.empty(50_000, dtype=dtype).uniform_(low, high)
    low, high = torch.tensor([low, high], dtype=dtype).float().tolist()
    torch.manual_seed(2)
    single = torch.empty(50_000).uniform_(low, high)
    below = torch.nextafter(torch.tensor(high, dtype=dtype), torch.tensor(-9, dtype=dtype)) if low < high else low
    assert torch.equal(drawn, single.to(dtype).clamp(max=float(below)))
    assert (drawn >= low).all()
    assert low == high or (drawn < high).all()


def layouts(*shape):
    yield torch.empty(shape)
    yield torch.empty(shape).to(memory_format=torch.channels_last)
    yield torch.empty(shape[::-1]).permute(3, 2, 1, 0)
    yield torch.empty(*shape[:-1], 2 * shape[-1])[..., ::2]


@pytest.mark.parametrize("draw", ["uniform_", "bernoulli_", "random_"])
def test_the_layout_of_a_tensor_does_not_change_what_an_element_gets(isa, draw):
    drawn = []
    for tensor in layouts(3, 5, 4, 7):
        torch.manual_seed(4)
        drawn.append(getattr(tensor, draw)().clone(memory_format=torch.contiguous_format))
    assert all(torch.equal(drawn[0], other) for other in drawn)


def test_each_call_takes_one_key_from_its_generator_and_an_empty_one_none(exact):
    keys = ours.keys(11, 3)
    torch.manual_seed(11)
    torch.rand(3)
    torch.rand(0)
    state = torch.get_rng_state()
    second = torch.rand(70)
    assert reference.same(second.numpy(), ours.uniform(keys[1], 70, 0, 1))
    torch.set_rng_state(state)
    assert torch.equal(torch.rand(70), second)
    generator = torch.Generator().manual_seed(11)
    assert reference.same(torch.rand(70, generator=generator).numpy(), ours.uniform(keys[0], 70, 0, 1))


def test_dropout_keeps_what_was_drawn(exact):
    x = torch.randn(300, generator=torch.Generator().manual_seed(1), dtype=torch.float32).requires_grad_()
    torch.manual_seed(6)
    y = torch.nn.functional.dropout(x, 0.25)
    keep = ours.bernoulli(ours.keys(6, 1)[0], 300, 0.75)
    scaled = np.float32(1) / np.float32(0.75)
    assert reference.same(y.detach().numpy(), x.detach().numpy() * np.where(keep, scaled, np.float32(0)))
    y.sum().backward()
    assert reference.same(x.grad.numpy(), np.where(keep, scaled, np.float32(0)))


@pytest.mark.parametrize("draw", ["uniform_"])
def test_other_types_are_refused(exact, draw):
    with pytest.raises(RuntimeError, match="not exact"):
        getattr(torch.empty(3, dtype=torch.float64), draw)()


def chi_square(counts, expected):
    return float((((counts - expected) ** 2) / expected).sum())


def test_uniform_numbers_are_uniform_and_their_neighbours_independent(exact):
    torch.manual_seed(1234)
    x = torch.rand(1_000_000).numpy()
    counts = np.histogram(x, 1000, (0, 1))[0]
    assert 850 < chi_square(counts, 1000.0) < 1150  # 999 +- 3.3 sigma
    for lag in (1, 16, 64):
        pairs = np.histogram2d(x[:-lag], x[lag:], 30, [(0, 1), (0, 1)])[0]
        assert 750 < chi_square(pairs, (len(x) - lag) / 900) < 1050


def test_integers_and_ones_come_as_often_as_they_should(exact):
    torch.manual_seed(77)
    counts = torch.randint(0, 7, (700_000,)).bincount().numpy()
    assert chi_square(counts, 100_000.0) < 22.5  # 6 degrees of freedom, one in a thousand
    ones = int(torch.empty(1_000_000, dtype=torch.uint8).bernoulli_(0.1).sum())
    assert abs(ones - 100_000) < 1000
