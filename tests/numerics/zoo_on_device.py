"""The models of the zoo, trained on the CPU and on a device by one process."""

from __future__ import annotations

import torch
from numerics import zoo


def main(steps: str, *names: str) -> dict[str, dict[str, str]]:
    """Digests of both, as `zoo.main` gives them."""
    cpu = zoo.main(steps, *names)
    with torch.device("cuda"):
        return {"cpu": cpu, "device": zoo.main(steps, *names)}
