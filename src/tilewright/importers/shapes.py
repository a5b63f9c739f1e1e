"""Shapes that callers and files give, checked before anything is made of them.

Goes in: `shapes=` of `tilewright.compile`, sizes of a tensor. Comes out: tuples of whole numbers
that a tensor may have; anything else is one `ModelError`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence

from tilewright.errors import ModelError
from tilewright.graph.lowering.types import MAX_ELEMENTS, MAX_RANK


def given_shapes(shapes: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """`shapes=` as a caller gives it -> input -> sizes."""
    return {name: _sizes(name, shape) for name, shape in by_name('shapes', shapes).items()}


def by_name(argument: str, given: Mapping | None) -> Mapping:
    """What a caller gives for the inputs of a model, if it is by their names."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ModelError(
            f'{argument} is a {type(given).__name__}; give a dictionary from the names of inputs'
        )
    return given


def _sizes(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(size) for size in shape)
    except TypeError:
        raise ModelError(f'shapes gives {name!r} as {shape!r}; give whole numbers') from None


def checked_shape(sizes: tuple[int, ...], what: str) -> tuple[int, ...]:
    """The sizes, if a tensor may have them."""
    if len(sizes) > MAX_RANK:
        raise ModelError(f'{what} has {len(sizes)} dimensions; the limit is {MAX_RANK}')
    if any(size < 0 for size in sizes):
        raise ModelError(f'{what} has shape {list(sizes)}; sizes are at least 0')
    if math.prod(max(1, size) for size in sizes) > MAX_ELEMENTS:
        raise ModelError(
            f'{what} has shape {list(sizes)}, {math.prod(sizes)} elements; '
            f'the limit is {MAX_ELEMENTS}'
        )
    return sizes
