"""Strassen's matrix product: seven products of blocks instead of eight, once or several times over.

Goes in: how often both operands are cut in two (`levels`), and a group. Comes out: which sums of
blocks are multiplied and what results are made of, whether it applies, and the expected error.

    C[q] = sum_t OUT[q][t] * (sum_i LEFT[t][i] A[i]) (sum_j RIGHT[t][j] B[j])     blocks of 2 x 2

This is the form of Strassen (1969) with 18 additions, not Winograd's with 15: additions are of
vectors that are at hand anyway, and what errors grow with, the largest sum over t of
OUT^2 |LEFT|^2 |RIGHT|^2, is 12 instead of 18. Errors are estimated as in ops/winograd_error.py, by
second moments of independent roundings, instead of the norms of Higham (1990).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tilewright.ops.dtypes import HALVES
from tilewright.ops.epilogue_error import final_error
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.ops.winograd_error import UNIT, VARIANCE

# Blocks are numbered row by row: 11, 12, 21, 22.
LEFT = (
    (1, 0, 0, 1), (0, 0, 1, 1), (1, 0, 0, 0), (0, 0, 0, 1), (1, 1, 0, 0), (-1, 0, 1, 0),
    (0, 1, 0, -1),
)  # fmt: skip
RIGHT = (
    (1, 0, 0, 1), (1, 0, 0, 0), (0, 1, 0, -1), (-1, 0, 1, 0), (0, 0, 0, 1), (1, 1, 0, 0),
    (0, 0, 1, 1),
)  # fmt: skip
OUT = (
    (1, 0, 0, 1, -1, 0, 1),
    (0, 0, 1, 0, 1, 0, 0),
    (0, 1, 0, 1, 0, 0, 0),
    (1, -1, 1, 0, 0, 1, 0),
)
# A right operand of one column of blocks takes four of the products: (which, signs of its two
# blocks, row of the result that the product is added to).
SINGLE = ((1, (1, 0), 1), (2, (1, -1), 0), (3, (-1, 1), 1), (4, (0, 1), 0))
PRODUCTS = len(LEFT)
MOST_LEVELS = 2  # a third multiplies weights to 5.4 times as many
_GROWTH = 12  # of the variance of an error with every level, while that of results doubles

T = TypeVar('T')
Combine = Callable[[Sequence[tuple[int, T]]], T]  # (sign, value) of each term -> their sum


def spread(blocks: dict[tuple[int, int], T], matrix, combine: Combine, levels: int) -> list[T]:
    """The sums of blocks (row, column) that are multiplied, by `LEFT` or `RIGHT`: 7^levels."""
    if levels == 0:
        return [blocks[0, 0]]
    half = 1 << (levels - 1)
    found: list[T] = []
    for signs in matrix:
        terms = [(sign, divmod(place, 2)) for place, sign in enumerate(signs) if sign]
        inner = {
            (r, c): combine([(s, blocks[i * half + r, j * half + c]) for s, (i, j) in terms])
            for r in range(half)
            for c in range(half)
        }
        found += spread(inner, matrix, combine, levels - 1)
    return found


def gather(products: Sequence[T], combine: Combine, levels: int) -> dict[tuple[int, int], T]:
    """The blocks (row, column) of the result, of 7^levels products in the order of `spread`."""
    if levels == 0:
        return {(0, 0): products[0]}
    half, each = 1 << (levels - 1), PRODUCTS ** (levels - 1)
    inner = [
        gather(products[t * each : (t + 1) * each], combine, levels - 1) for t in range(PRODUCTS)
    ]
    return {
        (q // 2 * half + r, q % 2 * half + c): combine(
            [(sign, inner[t][r, c]) for t, sign in enumerate(signs) if sign]
        )
        for q, signs in enumerate(OUT)
        for r in range(half)
        for c in range(half)
    }


def block_group(group: Group, dims: tuple[str, str, str], levels: int) -> Group:
    """The group whose main stage computes one block: each of (rows, columns, sum) cut in 2^levels.

    Rows are rounded up; tensors and all that follows the sum stay as they are.
    """
    stage = group.main
    cut = tuple(replace(d, size=-(-d.size >> levels)) if d.name in dims else d for d in stage.dims)
    smaller = replace(stage, dims=cut)
    return replace(group, stages=tuple(smaller if s is stage else s for s in group.stages))


def block_flops(stage: Stage, levels: int) -> int:
    """Operations of all products, of the stage of one block."""
    return PRODUCTS**levels * stage.flops


def product_error(terms: int, levels: int) -> float:
    """Expected largest error over largest result of sums of so many products, in fp32."""
    inner = (terms / 2**levels + 1) / 2 + 3.5 * levels + 1
    return math.sqrt(VARIANCE * (_GROWTH / 2) ** levels * inner)


def half_product_error(terms: int, levels: int, run: int) -> float:
    """The same in f16, where runs of so many products of a block are added, and their sums."""
    deep = terms / 2**levels
    long = min(run, deep)
    # Additions of a sum in order that round as much as runs and their sums do together.
    alike = long + deep / long
    return product_error(math.ceil(alike * 2**levels), levels) * HALVES['f16'] / UNIT


def predicted_error(group: Group, loop: str, levels: int) -> float:
    """The same for a group's results, its epilogue included."""
    return final_error(group, product_error(group.main.sizes[loop], levels))
