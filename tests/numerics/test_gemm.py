"""Matrix products are the specified chain and tree, rounded once, whatever the layout, type and instruction set."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from easyscale.pipeline.numerics import library
from numerics import reference

F32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
DTYPES = (F32, BF16, FP16)


def random(*shape, dtype=F32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def widened(x):
    return x.detach().float().numpy()


def product(a, b, c=None, alpha=1, beta=1):
    """beta * c + alpha * a @ b, rounded to the dtype of `a` by PyTorch's own conversion."""
    with np.errstate(all="ignore"):
        scaled = np.float32(alpha) * contract(a, b)
    if c is not None and beta != 0:
        scaled = reference.fma(np.float32(beta), widened(c), scaled)
    return torch.from_numpy(np.array(scaled, np.float32)).to(a.dtype)


_known: dict[tuple, np.ndarray] = {}


def contract(a, b):
    """The reference is slow: once for all instruction sets, layouts and numbers of threads."""
    a, b = widened(a), widened(b)
    key = (a.shape, b.shape, a.tobytes(), b.tobytes())
    if key not in _known:
        _known[key] = reference.contract(a, b)
    return _known[key]


def same(a, b):
    """Equal to the bit, and a tensor of the same dtype."""
    return a.dtype == b.dtype and reference.same(widened(a), widened(b))


LAYOUTS = {
    "rows": lambda x: x.contiguous(),
    "columns": lambda x: x.mT.contiguous().mT,
    "apart": lambda x: torch.stack([x, x + 1], -1)[..., 0],
    "every other row": lambda x: torch.stack([x, x + 1], -2)[..., 0, :],
    "backwards in a larger one": lambda x: torch.nn.functional.pad(x.mT, (3, 5, 1, 2))[..., 1:-2, 3:-5].mT,
}


def hostile(x, seed=0):
    """With NaN, infinities, zeros of both signs, subnormals and huge values here and there."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, -1e-45, 3e38, -3e38, 1e-30])
    where = torch.rand(x.shape, generator=generator) < 0.02
    chosen = values[torch.randint(len(values), x.shape, generator=generator)]
    return torch.where(where, chosen, x.float()).to(x.dtype)


SHAPES = [(1, 1, 1), (2, 3, 4), (7, 5, 513), (1, 40, 511), (33, 1, 65), (3, 70, 512), (19, 35, 0), (13, 16, 1030)]
SHAPES += [(29, 33, 100), (15, 130, 17), (4, 4, 2600), (0, 3, 2), (3, 0, 2)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_of_any_shape_and_layout_have_the_specified_bits(isa, threads, dtype):
    for (m, n, k), left, right in itertools.product(SHAPES, LAYOUTS, LAYOUTS):
        a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
        assert same(LAYOUTS[left](a) @ LAYOUTS[right](b), product(a, b)), (m, n, k, left, right)


def test_long_sums_are_shared_by_threads_without_a_trace(isa, threads):
    a, b = random(9, 17000), random(17000, 5)
    for left, right in itertools.product(LAYOUTS.values(), LAYOUTS.values()):
        assert same(left(a) @ right(b), product(a, b))
    assert same(torch.mv(a, b[:, 0]), product(a, b)[:, 0])
    assert same(torch.dot(a.flatten(), a.flatten()), torch.mm(a.view(1, -1), a.view(-1, 1))[0, 0])
    assert same(torch.dot(a.flatten(), a.flatten()), torch.mm(a.view(1, -1), a.view(-1, 1).expand(-1, 40))[0, 39])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hostile_values_come_through_as_ieee_says(isa, dtype):
    for m, n, k in [(5, 9, 30), (20, 40, 520), (1, 17, 40), (17, 1, 40)]:
        a, b = hostile(random(m, k, dtype=dtype), 1), hostile(random(k, n, dtype=dtype, seed=1), 2)
        c = hostile(random(m, n, dtype=dtype, seed=2), 3)
        assert same(a @ b, product(a, b))
        assert same(torch.addmm(c, a, b, beta=0.5, alpha=-2), product(a, b, c, -2, 0.5))


def test_nothing_but_a_beta_of_zero_hides_what_is_added(isa):
    a, b, c = random(3, 4), random(4, 5), torch.full((3, 5), float("nan"))
    assert same(torch.addmm(c, a, b, beta=0), product(a, b))
    assert torch.addmm(c, a, b).isnan().all()
    assert torch.addmm(torch.zeros(3, 5), c[:, :4], b, alpha=0).isnan().all(), "an alpha of 0 hides nothing"
    assert same(torch.addmm(-torch.zeros(3, 5), torch.zeros(3, 0), torch.zeros(0, 5)), torch.zeros(3, 5))


ADDENDS = {
    "matrix": lambda m, n: random(m, n, seed=5),
    "transposed": lambda m, n: random(n, m, seed=5).t(),
    "row": lambda m, n: random(n, seed=5),
    "column": lambda m, n: random(m, 1, seed=5),
    "number": lambda m, n: random(1, seed=5)[0],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_addmm_adds_anything_that_expands(isa, dtype):
    for m, n, k in [(3, 5, 7), (17, 40, 30), (30, 17, 600), (1, 20, 40), (20, 1, 40), (6, 33, 0)]:
        a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype)
        for (name, make), (alpha, beta) in itertools.product(ADDENDS.items(), [(1, 1), (0.3, -1.7), (1, 0)]):
            c = make(m, n).to(dtype)
            wanted = product(a, b, c.expand(m, n), alpha, beta)
            assert same(torch.addmm(c, a, b, beta=beta, alpha=alpha), wanted), name
            assert same(c.expand(m, n).clone().addmm_(a, b, beta=beta, alpha=alpha), wanted), name
            out = random(n, m, dtype=dtype).t()
            assert torch.addmm(c, a, b, beta=beta, alpha=alpha, out=out) is out
            assert same(out, wanted), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batches_are_products_one_by_one(isa, threads, dtype):
    for x, m, n, k in [(1, 3, 4, 5), (5, 16, 16, 8), (3, 33, 20, 520), (2, 1, 40, 9), (0, 2, 3, 4), (2, 3, 4, 0)]:
        a, b, c = random(x, m, k, dtype=dtype), random(x, k, n, dtype=dtype), random(x, m, n, dtype=dtype, seed=1)
        wanted = product(a, b)
        for left, right in itertools.product(LAYOUTS.values(), LAYOUTS.values()):
            assert same(torch.bmm(left(a), right(b)), wanted)
        one = b[:1].expand(x, k, n) if x else b
        assert same(torch.bmm(a, one), product(a, one)), "an expanded batch"
        wanted = product(a, b, c, 0.7, -2)
        assert same(torch.baddbmm(c, a, b, beta=-2, alpha=0.7), wanted)
        assert same(c.clone().baddbmm_(a, b, beta=-2, alpha=0.7), wanted)
        assert same(torch.baddbmm(c, a, b, beta=-2, alpha=0.7, out=torch.empty(x, m, n, dtype=dtype)), wanted)
        row = c[:1, :1] if x else c
        assert same(torch.baddbmm(row, a, b), product(a, b, row.expand(x, m, n)))
        assert same(torch.bmm(a, b, out=torch.empty(x, m, n, dtype=dtype)), product(a, b))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_vectors_are_matrices_of_one_column(isa, threads, dtype):
    for m, k in [(1, 1), (3, 5), (40, 513), (5, 1100), (600, 7), (3, 0), (20, 2000)]:
        a, x, c = random(m, k, dtype=dtype), random(k, dtype=dtype), random(m, dtype=dtype, seed=3)
        wanted = product(a, x[:, None])[:, 0]
        for layout in LAYOUTS.values():
            assert same(torch.mv(layout(a), x), wanted)
        assert same(torch.mv(a, x, out=torch.empty(m, dtype=dtype)), wanted)
        assert same(torch.mv(a, torch.stack([x, x], 1)[:, 0]), wanted)
        wanted = product(a, x[:, None], c[:, None], 3, 0.1)[:, 0]
        assert same(torch.addmv(c, a, x, beta=0.1, alpha=3), wanted)
        assert same(c.clone().addmv_(a, x, beta=0.1, alpha=3), wanted)
        assert same(torch.addmv(c, a, x, beta=0.1, alpha=3, out=torch.empty(m, dtype=dtype)), wanted)
        assert same(torch.addmv(c[:1], a, x), product(a, x[:, None], c[:1].expand(m)[:, None])[:, 0])
        for f in (torch.dot, torch.vdot, torch.inner):
            assert same(f(a[0], x), product(a[:1], x[:, None])[0, 0])
        assert same(torch.dot(a.t()[:, 0], x.flip(0).flip(0)), product(a[:1], x[:, None])[0, 0])
    out = torch.empty((), dtype=dtype)
    assert same(torch.dot(x, x, out=out), out)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_outer_product_that_is_added_is_a_product_of_length_one(isa, dtype):
    c, x, y = random(6, 20, dtype=dtype), random(6, dtype=dtype), random(20, dtype=dtype)
    wanted = product(x[:, None], y[None], c, 0.3, 1.1)
    assert same(torch.addr(c, x, y, beta=1.1, alpha=0.3), wanted)
    assert same(torch.addr(c.t().contiguous().t(), x, y, beta=1.1, alpha=0.3), wanted)
    assert same(c.clone().addr_(x, y, beta=1.1, alpha=0.3), wanted)
    assert same(torch.addr(c, x, y, beta=1.1, alpha=0.3, out=torch.empty_like(c)), wanted)
    assert same(torch.addr(c * float("nan"), x, y, beta=0), product(x[:, None], y[None]))


def test_what_is_made_of_products_has_their_bits(isa):
    x, w, bias = random(4, 6, 20), random(30, 20), random(30)
    flat = product(x.view(24, 20), w.t(), bias.expand(24, 30)).view(4, 6, 30)
    linear = torch.nn.functional.linear
    assert same(linear(x, w, bias), flat)
    assert same(linear(x[0], w, bias), flat[0])
    assert same(linear(x[0, 0], w, bias), flat[0, 0])
    assert same(linear(x, w), product(x, w.t()))
    assert same(linear(x.transpose(0, 1), w), product(x.transpose(0, 1), w.t()))
    assert same(torch.matmul(x, x.mT), product(x, x.mT))
    assert same(torch.matmul(x, w[0]), product(x, w[0][:, None])[..., 0])
    assert same(torch.einsum("bsi,oi->bso", x, w), product(x, w.t()))
    assert same(torch.einsum("bsi,bti->bst", x, x), product(x, x.mT))
    assert same(torch.tensordot(x, w, ([2], [1])), product(x, w.t()))
    total = random(6, 6)
    summed = total
    for one in x:
        summed = product(one, one.t(), summed, 0.5, 2 if summed is total else 1)
    assert same(torch.addbmm(total, x, x.mT, beta=2, alpha=0.5), summed)
    assert same(total.clone().addbmm_(x, x.mT, beta=2, alpha=0.5), summed)
    activated = torch._addmm_activation(bias, x[0], w.t())
    assert same(activated, flat[0].clamp(min=0))
    assert same(torch._addmm_activation(bias, x[0], w.t(), out=torch.empty(6, 30)), activated)


def test_a_bilinear_form_is_two_products(isa):
    x, y, w = random(5, 6), random(5, 7), random(3, 6, 7)
    left = product(x.expand(3, 5, 6), w)
    wanted = product(left[..., None, :], y[None, ..., None])[..., 0, 0].t()
    assert same(torch.nn.functional.bilinear(x, y, w), wanted)


def test_gradients_are_products_too(isa, threads):
    x, w, bias, grad = random(5, 9, 40), random(20, 40), random(20), random(5, 9, 20, seed=7)
    for one in (x, w, bias):
        one.requires_grad_()
    torch.nn.functional.linear(x, w, bias).backward(grad)
    flat = grad.reshape(45, 20)
    assert same(x.grad, product(grad, w))
    assert same(w.grad, product(flat.t(), x.reshape(45, 40)))
    a, b, up = random(3, 4, 600).requires_grad_(), random(3, 600, 5).requires_grad_(), random(3, 4, 5)
    torch.bmm(a, b).backward(up)
    assert same(a.grad, product(up, b.mT))
    assert same(b.grad, product(a.mT, up))
    c, p, q = (random(*shape).requires_grad_() for shape in ((4, 5), (4, 6), (6, 5)))
    torch.addmm(c, p, q, beta=2, alpha=3).backward(up[0])
    assert same(c.grad, up[0] * 2)
    assert same(p.grad, product(up[0], q.t()) * 3)
    assert same(q.grad, product(p.t(), up[0]) * 3)
    m, v = random(7, 30).requires_grad_(), random(30).requires_grad_()
    torch.mv(m, v).backward(up.flatten()[:7])
    assert same(v.grad, product(m.t(), up.flatten()[:7, None])[:, 0])


def test_outputs_may_be_inputs(isa):
    x, y = random(20, 20), random(20, 20, seed=1)
    wanted = product(x, y, x)
    assert same(x.clone().addmm_(x, y), wanted)
    both = x.clone()
    assert same(both.addmm_(both, y), wanted)
    both = x.clone()
    assert same(torch.mm(both, y, out=both), product(x, y))
    both = x.clone()
    assert same(torch.addmm(both.t(), x, y, out=both), product(x, y, x.t()))
    large = torch.zeros(21, 20)
    large[:20] = x
    assert same(torch.mm(large[:20], y, out=large[1:]), product(x, y))
    stack = torch.zeros(2, 20, 20)
    assert same(torch.mm(x, y, out=stack[1]), product(x, y))
    assert not stack[0].any()


def test_what_pytorch_refuses_is_refused_in_its_words(exact):
    a = torch.ones(2, 4)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.mm(a, a)
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.mm(a, a.t().bfloat16())
    with pytest.raises(RuntimeError, match="dtype"):
        torch.addmm(a.bfloat16(), a[:, :2], a)
    with pytest.raises(RuntimeError, match="dtype"):
        torch.baddbmm(a[None].bfloat16(), a[None, :, :2], a[None])
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.ones(4).expand(2, 4).addmm_(a[:, :2], a)
    with pytest.raises(RuntimeError, match="dtype"):
        torch.mm(a, a.t(), out=torch.ones(2, 2).double())
    with pytest.raises(RuntimeError, match="same number of elements"):
        torch.dot(a[0], a[0, :3])
    with pytest.raises(RuntimeError):
        torch.ones(3, 2).addmm_(a[:, :2], a)


CALLS = {
    "mm": lambda x: torch.mm(x, x),
    "mm.out": lambda x: torch.mm(x, x, out=torch.empty_like(x)),
    "addmm": lambda x: torch.addmm(x, x, x),
    "addmm_": lambda x: x.clone().addmm_(x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "mv": lambda x: torch.mv(x, x[0]),
    "addmv": lambda x: torch.addmv(x[0], x, x[0]),
    "dot": lambda x: torch.dot(x[0], x[0]),
    "vdot": lambda x: torch.vdot(x[0], x[0]),
    "addr": lambda x: torch.addr(x, x[0], x[0]),
    "addbmm": lambda x: torch.addbmm(x, x[None], x[None]),
    "_addmm_activation": lambda x: torch._addmm_activation(x, x, x),
}


@pytest.mark.parametrize("name", CALLS)
def test_wider_types_are_refused_and_integers_are_as_ever(exact, name):
    for dtype in (torch.float64, torch.complex64):
        with pytest.raises(RuntimeError, match=library.REFUSED):
            CALLS[name](torch.ones(4, 4, dtype=dtype))
    numbers = torch.arange(16).view(4, 4)
    ours = CALLS[name](numbers)
    library.disable()
    assert torch.equal(ours, CALLS[name](numbers))


@pytest.mark.parametrize("shape", [(40, 50, 3000), (30, 1, 5000), (64, 64, 64), (8, 700, 700)], ids=str)
def test_results_are_as_near_the_truth_as_those_of_pytorch(shape):
    m, n, k = shape
    for offset in (0, 1):
        a, b = random(m, k) + offset, random(k, n, seed=1) + offset
        truth, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        stock = a @ b
        with library.exact():
            ours = a @ b
        errors = [((one - truth).abs() / scale).max().item() for one in (ours, stock)]
        # Chains of stock products are half as long on an AMD EPYC; ours are 512 long everywhere.
        assert errors[0] <= 2.5 * errors[1] + 2e-8


def specified(i, j, k):
    """How many of k products are in the smallest part of the specified order that has both i and j > i."""
    node = 512
    while i // node != j // node:
        node *= 2
    first = j // node * node
    return j - first + 1 if node == 512 else min(first + node, k) - first


def shown(function, k, places):
    """The same as `specified` for each two of some places, as a kernel does it.

    FPRev's masks: a huge value at one place and its opposite at the other swallow every 1 that is added to either
    before the two meet, so that the result counts those that come after.

    Args:
        function: gives the sums of the rows of a matrix.
    """
    pairs = [(i, j) for i in places for j in places if i < j]
    rows = torch.ones(len(pairs), k)
    for row, (i, j) in zip(rows, pairs, strict=True):
        row[i], row[j] = 2.0**40, -(2.0**40)
    return {pair: k - int(left) for pair, left in zip(pairs, function(rows).tolist(), strict=True)}


PROBED = {
    "wide": lambda a: (a @ torch.ones(a.shape[1], 40))[:, 7],
    "wide, by columns": lambda a: (a.t().contiguous().t() @ torch.ones(40, a.shape[1]).t())[:, 39],
    "on the right": lambda a: (torch.ones(20, a.shape[1]) @ a.t())[3],
    "on the right, by rows": lambda a: (torch.ones(20, a.shape[1]) @ a.t().contiguous())[19],
    "by a vector": lambda a: torch.mv(a, torch.ones(a.shape[1])),
    "by a vector, by columns": lambda a: torch.mv(a.t().contiguous().t(), torch.ones(a.shape[1])),
    "one by one": lambda a: torch.stack([torch.dot(row, torch.ones(a.shape[1])) for row in a]),
    "added": lambda a: torch.addmm(torch.zeros(3), a, torch.ones(a.shape[1], 3))[:, 0],
    "in a batch": lambda a: torch.bmm(a[:, None], torch.ones(len(a), a.shape[1], 5))[:, 0, 1],
    "apart": lambda a: (torch.stack([a, a], 2)[..., 0] @ torch.ones(a.shape[1], 17))[:, 16],
}


@pytest.mark.parametrize("name", PROBED)
def test_masks_show_the_specified_tree(isa, threads, name):
    for k, places in [(40, range(0, 40, 3)), (700, (0, 1, 300, 510, 511, 512, 513, 699))]:
        for (i, j), found in shown(PROBED[name], k, places).items():
            assert found == specified(i, j, k), (i, j, k)
    k = 4700
    places = (0, 511, 513, 1023, 1024, 2047, 2048, 3600, 4095, 4096, 4607, 4608, 4699)
    for (i, j), found in shown(PROBED[name], k, places).items():
        assert found == specified(i, j, k), (i, j, k)


def test_stock_kernels_show_another_tree():
    found = shown(PROBED["wide"], 1500, (0, 1, 700, 1499))
    assert any(count != specified(*pair, 1500) for pair, count in found.items())
