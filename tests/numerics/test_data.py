"""What data pipelines and masks need: grid_sample."""

from __future__ import annotations

import pytest
import torch
from easyscale.pipeline.numerics import library
from numerics import reference
from torch.nn import functional

MODES = [(mode, padding) for mode in ("bilinear", "nearest") for padding in ("zeros", "border", "reflection")]


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    picture = torch.randn(2, 3, 9, 7, generator=generator).to(dtype)
    grid = (torch.rand(2, 11, 5, 2, generator=generator) * 3 - 1.5).to(dtype)
    return picture, grid


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("mode", "padding"), MODES)
def test_pictures_are_sampled_as_pytorch_does_but_for_rounding(mode, padding, corners, exact):
    picture, grid = inputs()
    found = functional.grid_sample(picture, grid, mode, padding, corners)
    library.disable()  # float64 is refused there
    wanted = functional.grid_sample(picture.double(), grid.double(), mode, padding, corners)
    assert (found - wanted).abs().max() < 1e-5


def sampled(picture, grid):
    """Bilinear with zeros outside, one rounding per line."""
    one, two = torch.ones(()).numpy(), 2 * torch.ones(()).numpy()
    picture, grid = picture.numpy(), grid.numpy()
    out = torch.zeros(*picture.shape[:2], *grid.shape[1:3]).numpy()
    for n, c, i, j in torch.cartesian_prod(*map(torch.arange, out.shape)).tolist():
        place = []
        for axis, size in ((0, picture.shape[3]), (1, picture.shape[2])):
            moved = grid[n, i, j, axis] + one
            moved = moved * one.dtype.type(size)
            moved = moved - one
            place.append(moved / two)
        x, y = place
        left, top = int(x // 1), int(y // 1)
        f = one.dtype.type
        shares = [(top, left, f(left + 1) - x, f(top + 1) - y), (top, left + 1, x - f(left), f(top + 1) - y)]
        shares += [(top + 1, left, f(left + 1) - x, y - f(top)), (top + 1, left + 1, x - f(left), y - f(top))]
        total = None
        for row, column, across, down in shares:
            inside = 0 <= row < picture.shape[2] and 0 <= column < picture.shape[3]
            weight = across * down
            product = (picture[n, c, row, column] if inside else f(0)) * weight
            total = product if total is None else total + product
        out[n, c, i, j] = total
    return out


def test_the_four_products_are_added_from_the_upper_left_to_the_lower_right(isa, threads):
    picture, grid = inputs()
    found = functional.grid_sample(picture, grid, align_corners=False)
    assert reference.same(found.numpy(), sampled(picture, grid))
    apart = picture.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert torch.equal(functional.grid_sample(apart, grid, align_corners=False), found)


def test_places_that_are_no_numbers_are_outside_and_halves_are_rounded_once(exact):
    picture, grid = inputs(torch.bfloat16)
    found = functional.grid_sample(picture, grid, align_corners=False)
    wide = functional.grid_sample(picture.float(), grid.float(), align_corners=False)
    assert torch.equal(found, wide.bfloat16())
    nowhere = torch.full((2, 1, 1, 2), float("nan"))
    for mode, padding in MODES:
        assert not functional.grid_sample(picture.float(), nowhere, mode, padding, False).isnan().any()
    with pytest.raises(RuntimeError, match="not exact"):
        functional.grid_sample(picture.double(), grid.double(), align_corners=False)
    with pytest.raises(RuntimeError, match="not exact"):
        functional.grid_sample(picture, grid, "bicubic", align_corners=False)
