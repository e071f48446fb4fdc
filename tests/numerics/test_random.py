"""Random numbers: to the bit the specified ones, the same under every instruction set, thread count and layout."""

from __future__ import annotations

import hashlib

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


@pytest.mark.parametrize("count", COUNTS)
def test_normal_and_exponential_numbers_are_the_specified_ones_within_the_error_of_their_functions(isa, threads, count):
    torch.manual_seed(count)
    first, second = ours.keys(count, 2)
    assert np.abs(torch.randn(count).numpy() - ours.normal(first, count)).max() < 1.5e-6
    wanted = ours.exponential(second, count)
    assert (np.abs(torch.empty(count).exponential_(2).numpy() - wanted / 2) / wanted).max() < 3e-7


ANSWERS = {
    "normal_": ([], "b69a238d1726e7e2"),
    "uniform_": ([], "cb3915a743a9edae"),
    "exponential_": ([0.5], "49f96ab1dde43115"),
    "log_normal_": ([0.5, 2], "facea0287756445d"),
    "cauchy_": ([1, 3], "c9bb725d5535d1a8"),
    "geometric_": ([0.01], "ff9f83452de8521d"),
}


@pytest.mark.parametrize("draw", ANSWERS)
def test_the_numbers_of_every_distribution_are_the_ones_in_this_file(isa, threads, draw):
    arguments, answer = ANSWERS[draw]
    torch.manual_seed(2**40)
    drawn = getattr(torch.empty(10_000), draw)(*arguments)
    assert hashlib.sha256(drawn.numpy().tobytes()).hexdigest()[:16] == answer


@pytest.mark.parametrize("draw", ["normal_", "exponential_", "log_normal_", "cauchy_", "geometric_"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_the_rounded_numbers_of_float32(isa, draw, dtype):
    arguments = [0.3] if draw == "geometric_" else []
    torch.manual_seed(8)
    half = getattr(torch.empty(3000, dtype=dtype), draw)(*arguments)
    torch.manual_seed(8)
    assert torch.equal(half, getattr(torch.empty(3000), draw)(*arguments).to(dtype))


def test_mean_and_deviation_are_applied_by_one_fma(isa):
    torch.manual_seed(3)
    z = torch.randn(500).numpy()
    torch.manual_seed(3)
    assert reference.same(
        torch.empty(500).normal_(0.1, 1.7).numpy(), reference.fma(z, np.float32(1.7), np.float32(0.1))
    )


def test_a_number_of_the_geometric_distribution_is_the_first_success(exact):
    for p in (0.999, 0.25, 1e-3):
        torch.manual_seed(5)
        drawn = torch.empty(20_000, dtype=torch.int64).geometric_(p).numpy()
        assert drawn.min() == 1
        assert abs(drawn.mean() - 1 / p) <= 4 * np.sqrt(1 - p) / p / np.sqrt(20_000)
    torch.manual_seed(5)
    assert torch.empty(20_000, dtype=torch.uint8).geometric_(1e-3).max() == 255


def test_float64_has_53_bits_of_uniform_numbers_and_exponential_ones_of_float32(isa):
    torch.manual_seed(21)
    first, second = ours.keys(21, 2)
    pairs = ours.words(first, 999, 2).astype(np.uint64)
    u = ((pairs[:, 1] << np.uint64(32) | pairs[:, 0]) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    assert reference.same(torch.rand(999, dtype=torch.float64).numpy(), u)
    single = torch.empty(999, dtype=torch.float64).exponential_()
    assert torch.equal(single, single.float().double())
    assert np.allclose(single.numpy(), ours.exponential(second, 999), 1e-6)


def multinomial(key, weights, samples):
    rows = []
    for row, weight in enumerate(weights.astype(np.float64)):
        upto = np.add.accumulate(weight)
        pairs = ours.words(key, (row + 1) * samples, 2)[row * samples :].astype(np.uint64)
        u = ((pairs[:, 1] << np.uint64(32) | pairs[:, 0]) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        rows.append([int(np.argmax(upto > x)) for x in u * upto[-1]])
    return np.array(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_samples_with_replacement_are_the_specified_ones(isa, threads, dtype):
    weights = torch.rand(3, 37).to(dtype)
    weights[:, ::5] = 0
    torch.manual_seed(5)
    drawn = weights.multinomial(200, replacement=True)
    assert drawn.tolist() == multinomial(ours.keys(5, 1)[0], weights.double().numpy(), 200).tolist()
    with pytest.raises(RuntimeError, match="invalid multinomial"):
        (-weights).multinomial(5, replacement=True)


def test_samples_without_replacement_are_all_different_and_never_impossible(exact):
    torch.manual_seed(1)
    weights = torch.ones(500, dtype=torch.float64)
    weights[100:] = 0
    drawn = torch.multinomial(weights, 100)
    assert sorted(drawn.tolist()) == list(range(100))


def test_a_sampler_with_weights_works(exact):
    sampler = torch.utils.data.WeightedRandomSampler([0.1, 0.0, 0.9], 1000, generator=torch.Generator().manual_seed(1))
    counts = np.bincount(list(sampler), minlength=3)
    assert counts[1] == 0
    assert 60 < counts[0] < 140


def layouts(*shape):
    yield torch.empty(shape)
    yield torch.empty(shape).to(memory_format=torch.channels_last)
    yield torch.empty(shape[::-1]).permute(3, 2, 1, 0)
    yield torch.empty(*shape[:-1], 2 * shape[-1])[..., ::2]


@pytest.mark.parametrize("draw", ["uniform_", "normal_", "exponential_", "bernoulli_", "random_"])
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_native_dropout_scales_what_it_keeps(isa, threads, dtype):
    for count in (0, 1, 64, 1000):
        x = (torch.arange(count) - 7.3).to(dtype).requires_grad_()
        torch.manual_seed(6)
        y, mask = torch.native_dropout(x, 0.3, True)
        keep = ours.bernoulli(ours.keys(6, 1)[0], count, 0.7)
        scale = torch.tensor(np.where(keep, np.float32(1 / 0.7), np.float32(0)))
        assert reference.same(mask.numpy(), keep)
        assert reference.same(y.detach().float().numpy(), (x.detach().float() * scale).to(dtype).float().numpy())
        y.backward(torch.full_like(y, 3))
        assert torch.equal(x.grad, (torch.full_like(y, 3).float() * scale).to(dtype))
    assert torch.native_dropout(x, 1.0, True)[0].abs().sum() == 0
    assert torch.equal(torch.native_dropout(x, 0.5, False)[0], x)


def test_native_dropout_keeps_the_layout(exact):
    x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    torch.manual_seed(1)
    y, mask = torch.native_dropout(x, 0.5, True)
    torch.manual_seed(1)
    plain, _ = torch.native_dropout(x.contiguous(), 0.5, True)
    assert torch.equal(y, plain)
    assert y.stride() == mask.stride() == x.stride()


def test_dropout_keeps_what_was_drawn(exact):
    x = torch.randn(300, generator=torch.Generator().manual_seed(1), dtype=torch.float32).requires_grad_()
    torch.manual_seed(6)
    y = torch.nn.functional.dropout(x, 0.25)
    keep = ours.bernoulli(ours.keys(6, 1)[0], 300, 0.75)
    scaled = np.float32(1) / np.float32(0.75)
    assert reference.same(y.detach().numpy(), x.detach().numpy() * np.where(keep, scaled, np.float32(0)))
    y.sum().backward()
    assert reference.same(x.grad.numpy(), np.where(keep, scaled, np.float32(0)))


@pytest.mark.parametrize("draw", ["normal_", "log_normal_", "cauchy_"])
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


def test_normal_numbers_are_normal(exact):
    torch.manual_seed(99)
    x = torch.randn(1_000_000, dtype=torch.float32).double()
    edges = torch.linspace(-4, 4, 161, dtype=torch.float64)
    share = 0.5 * (1 + torch.erf(edges / 2**0.5))
    expected = torch.cat([share, torch.ones(1).double()]) - torch.cat([torch.zeros(1).double(), share])
    counts = torch.bincount(torch.bucketize(x, edges), minlength=162)
    assert chi_square(counts.numpy(), 1e6 * expected.numpy()) < 225  # 161 +- 3.5 sigma
    assert 4.5 < x.abs().max() < 6.5


def test_integers_and_ones_come_as_often_as_they_should(exact):
    torch.manual_seed(77)
    counts = torch.randint(0, 7, (700_000,)).bincount().numpy()
    assert chi_square(counts, 100_000.0) < 22.5  # 6 degrees of freedom, one in a thousand
    ones = int(torch.empty(1_000_000, dtype=torch.uint8).bernoulli_(0.1).sum())
    assert abs(ones - 100_000) < 1000
