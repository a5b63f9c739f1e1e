"""Attention against PyTorch's scaled_dot_product_attention, workload by workload, in turns.

    python -m tilewright_lab.scripts.attention_time [NAME ..] [--target cuda|cpu|host] \
        [--tune model|measure] [--rounds 9] [--json FILE]

Every result is compared with float64 first; a name is one of `WORKLOADS`. PyTorch computes fp32
with TF32 off, on a GPU as a CUDA graph. The ratio is the median of the rounds' ratios, PyTorch's
time over ours; what kernels were chosen is in the JSON file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tilewright_lab.scripts.beside_torch import compare


@dataclass(frozen=True, slots=True)
class Workload:
    """Heads of queries, and of keys and values, which several of them may share."""

    batch: int
    heads: int
    shared: int
    rows: int
    keys: int
    depth: int
    causal: bool = False
    mask: bool = False


WORKLOADS = {
    'bert_384': Workload(1, 12, 12, 384, 384, 64, mask=True),
    'bert_384_batch8': Workload(8, 12, 12, 384, 384, 64, mask=True),
    'gpt2_128': Workload(1, 12, 12, 128, 128, 64, causal=True),
    'long_2048': Workload(1, 16, 16, 2048, 2048, 128, causal=True),
    'cross_64x512': Workload(2, 8, 8, 64, 512, 64),
    'grouped_512': Workload(1, 32, 8, 512, 512, 128, causal=True),
    'wide_256': Workload(1, 8, 8, 256, 256, 256),
    'decode_1024': Workload(1, 12, 12, 1, 1024, 64),
}


class Attention(torch.nn.Module):
    """One call of scaled_dot_product_attention."""

    def __init__(self, one: Workload) -> None:
        super().__init__()
        self.one = one

    def forward(self, q: Any, k: Any, v: Any, *mask: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, *mask, is_causal=self.one.causal, enable_gqa=self.one.heads > self.one.shared
        )


def inputs_of(one: Workload) -> list[Any]:
    heads = torch.randn(one.batch, one.heads, one.rows, one.depth)
    shared = [torch.randn(one.batch, one.shared, one.keys, one.depth) for _ in range(2)]
    seen = torch.zeros(one.batch, 1, 1, one.keys)
    seen[..., one.keys * 7 // 8 :] = -1e4  # padding, as encoders mask it
    return [heads, *shared, *([seen] if one.mask else [])]


def made(name: str) -> tuple[Any, list[Any]]:
    """The module and the inputs of a workload."""
    return Attention(WORKLOADS[name]).eval(), inputs_of(WORKLOADS[name])


if __name__ == '__main__':
    compare('attention against that of PyTorch', WORKLOADS, made)
