"""Products of two computed operands against PyTorch's, workload by workload, in turns.

    python -m tilewright_lab.scripts.product_time [NAME ..] [--target cuda|cpu|host] \
        [--tune model|measure] [--rounds 9] [--json FILE]

Batched, broadcast and turned operands; a name is one of `WORKLOADS`. Every result is compared with
float64 first. PyTorch computes fp32 with TF32 off, on a GPU as a CUDA graph; the ratio is its time
over ours, the median of the rounds.
"""

from __future__ import annotations

from typing import Any

import torch

from tilewright_lab.scripts.beside_torch import compare

# Shapes of both operands, and whether the second one is turned.
WORKLOADS = {
    'scores': ((12, 384, 64), (12, 384, 64), True),
    'values': ((12, 384, 384), (12, 384, 64), False),
    'pairs': ((2048, 27, 64), (2048, 27, 64), True),  # DLRM's interactions
    'square': ((1024, 1024), (1024, 1024), False),
    'broadcast': ((16, 128, 512), (512, 512), False),
    'one_row': ((32, 1, 512), (32, 512, 512), False),
}


class Product(torch.nn.Module):
    """One matrix product."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.turned = turned

    def forward(self, a: Any, b: Any) -> Any:
        return torch.matmul(a, b.transpose(-1, -2) if self.turned else b)


def made(name: str) -> tuple[Any, list[Any]]:
    """The module and the inputs of a workload."""
    first, second, turned = WORKLOADS[name]
    return Product(turned).eval(), [torch.randn(first), torch.randn(second)]


if __name__ == '__main__':
    compare('products of computed operands against those of PyTorch', WORKLOADS, made)
