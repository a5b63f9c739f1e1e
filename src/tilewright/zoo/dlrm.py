"""DLRM, the recommendation network of Naumov et al. (2019), as set up for Kaggle's data.

13 numbers go through a network of their own, 26 indices each choose rows of a table, rows of a bag
are added; the products of all pairs of these 27 vectors, beside the first of them, go through the
network on top. Goes in: batch, rows of a table and a number that divides the layers' sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.graph.graph import Graph, Value
from tilewright.zoo.written import (
    OUTPUT,
    GraphWriter,
    WrittenNetwork,
    check_sizes,
    divided,
    loaded_linear,
)

DENSE, TABLES, COLUMNS = 13, 26, 16
PAIRS = (TABLES + 1) * TABLES // 2
# Elements of the products below the diagonal, as numbers of a row of all of them.
BELOW = np.flatnonzero(np.tril(np.ones((TABLES + 1, TABLES + 1)), -1))


@dataclass(frozen=True, slots=True)
class Dlrm(WrittenNetwork):
    name: str
    batch: int
    rows: int
    width: int = 1
    bag: int = 1

    @property
    def choices(self) -> int:
        return self.rows

    @property
    def sizes(self) -> dict[str, list[int]]:
        """Network -> sizes of what lies between its layers."""
        inner = {'bottom': (512, 256, 64), 'top': (512, 256)}
        ends = {'bottom': (DENSE, COLUMNS), 'top': (COLUMNS + PAIRS, 1)}
        return {
            part: [ends[part][0], *(divided(n, self.width) for n in inner[part]), ends[part][1]]
            for part in inner
        }

    @property
    def layers(self) -> tuple[str, ...]:
        linear = (f'{part}{n}' for part, s in self.sizes.items() for n in range(len(s) - 1))
        return (*(f'table{n}' for n in range(TABLES)), *linear)

    @property
    def inputs(self) -> tuple[Value, ...]:
        sparse = Value('sparse', (TABLES, self.batch, self.bag), 'i64')
        return (Value('dense', (self.batch, DENSE)), sparse)

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (Value(OUTPUT, (self.batch, 1)),)

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        made: dict[str, tuple[int, ...]] = {
            f'table{n}': (self.rows, COLUMNS) for n in range(TABLES)
        }
        for part, sizes in self.sizes.items():
            for n, shape in enumerate(pairwise(sizes)):
                made |= {f'{part}{n}.weight': shape, f'{part}{n}.bias': shape[1:]}
        return made

    def deviation(self, name: str) -> float:
        if name.startswith('table'):
            return COLUMNS**-0.5
        return (2 / self.weights[name][0]) ** 0.5 if name.endswith('weight') else 0.02

    @property
    def multiplications(self) -> int:
        each = sum(a * b for sizes in self.sizes.values() for a, b in pairwise(sizes))
        return self.batch * (each + (TABLES + 1) ** 2 * COLUMNS)

    def to_graph(self, weights: Mapping[str, np.ndarray]) -> Graph:
        g = GraphWriter(dict(weights))
        dense = self._layers(g, 'dense', 'bottom')
        parts = tuple(f'table{n}/indices' for n in range(TABLES))
        first, second = g.whole('first', 0), g.whole('second', 1)
        rows = [g.node('Unsqueeze', 'bottom/row', dense, second)]
        for n, part in enumerate(g.several('Split', parts, 'sparse', axis=0, num_outputs=TABLES)):
            bags = g.node('Squeeze', f'table{n}/bags', part, first)
            found = g.node('Gather', f'table{n}/rows', f'table{n}', bags, axis=0)
            rows.append(g.node('ReduceSum', f'table{n}/sum', found, second, keepdims=1))
        e = g.node('Concat', 'vectors', *rows, axis=1)
        turned = g.node('Transpose', 'vectors/turned', e, perm=(0, 2, 1))
        z = g.node('MatMul', 'products', e, turned)
        z = g.node('Reshape', 'products/row', z, g.whole('flat', self.batch, (TABLES + 1) ** 2))
        pairs = g.node('Gather', 'pairs', z, g.whole('below', *BELOW.tolist()), axis=1)
        self._layers(g, g.node('Concat', 'top/given', dense, pairs, axis=1), 'top')
        return g.graph(self)

    def _layers(self, g: GraphWriter, x: str, part: str) -> str:
        count = len(self.sizes[part]) - 1
        for n in range(count):
            x = g.linear(x, f'{part}{n}')
            last = part == 'top' and n == count - 1
            x = g.node('Sigmoid', OUTPUT, x) if last else g.node('Relu', f'{part}{n}/relu', x)
        return x

    def module(self, torch: Any, weights: Mapping[str, np.ndarray]) -> Any:
        nn: Any = torch.nn
        network = self

        def layers(part: str, sizes: Sequence[int]) -> Any:
            made = []
            for n in range(len(sizes) - 1):
                made += [loaded_linear(torch, weights, f'{part}{n}'), nn.ReLU()]
            return nn.Sequential(*([*made[:-1], nn.Sigmoid()] if part == 'top' else made))

        class Module(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bottom, self.top = (layers(*item) for item in network.sizes.items())
                self.tables = nn.ModuleList(
                    nn.EmbeddingBag.from_pretrained(
                        torch.from_numpy(np.array(weights[f'table{n}'])), mode='sum'
                    )
                    for n in range(TABLES)
                )
                self.register_buffer('below', torch.tril_indices(TABLES + 1, TABLES + 1, -1))

            def forward(self, dense: Any, sparse: Any) -> Any:
                d = self.bottom(dense)
                sums = [table(bags) for table, bags in zip(self.tables, sparse, strict=True)]
                e = torch.stack([d, *sums], 1)
                products = e @ e.transpose(1, 2)
                pairs = products[:, self.below[0], self.below[1]]
                return self.top(torch.cat([d, pairs], 1))

        return Module()


def dlrm(batch: int = 1, image: int = 100_000, width: int = 1) -> Dlrm:
    """`image` is the number of rows of a table."""
    return Dlrm('dlrm', batch, check_sizes('dlrm', batch, image, 'rows', 2**31 // COLUMNS), width)
