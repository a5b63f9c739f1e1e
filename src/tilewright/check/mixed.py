"""Networks of which ONNX Runtime runs a part: the whole against ONNX Runtime alone.

Goes in: a `MixedNetwork` and the model that it was split from. Comes out: `Checked`. Where results
differ, our pieces are compiled again and checked one by one, on the values that reach them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np

from tilewright.check.check import Check, Checked, compare
from tilewright.check.data import Range, random_arrays, ranges
from tilewright.check.difference import Arrays, kernel_tolerance
from tilewright.check.expected import Expected, by_onnxruntime
from tilewright.check.failure import Files, write_failure
from tilewright.check.source import Source
from tilewright.errors import CheckError
from tilewright.fallback.network import MixedNetwork, Mixture
from tilewright.fallback.split import graph_of
from tilewright.graph.graph import DTYPES, Graph
from tilewright.graph.lower import lower


def check_mixed(
    network: MixedNetwork,
    mixture: Mixture,
    source: Source,
    check: Check,
    max_rel_err: float,
    again: Callable[[Graph, Check], object],
) -> Checked | None:
    """Run a network once and judge it; raises CheckError where it is wrong.

    `again` compiles a piece of ours and checks it. None: ONNX Runtime does not agree with itself.
    """
    arrays = check.arrays
    if arrays is None:
        arrays = random_arrays(network.inputs, _ranges(mixture), check.seed)
    expected = check.expected or _right(source, arrays)
    limit = check.tolerance
    if limit is None:
        # How many sums the pieces of ONNX Runtime have is not known: as many as nodes, at most.
        kinds = (kind.value(name) for name, kind in mixture.found.kinds.items())
        dtypes = ['f32', *(value.dtype for value in kinds if value is not None)]
        limit = kernel_tolerance(dtypes, max_rel_err) * math.sqrt(len(mixture.traced.graph.nodes))
    got = network.run(arrays)
    verdict = compare(network.name, expected, got, limit)
    if not verdict.within:
        twice = _right(source, arrays), _right(source, arrays)
        if not compare(network.name, twice[0], twice[1].arrays, limit).within:
            warnings.warn(
                f'{network.name} cannot be checked: ONNX Runtime gives other results for the same '
                f'inputs every time',
                stacklevel=3,
            )
            return None
        _blame_pieces(network, mixture, arrays, again)
        shown = write_failure(network.name, Files(source.write), None, arrays, expected.arrays, got)
        raise CheckError(f'{verdict.sentence}; every piece of ours is right by itself; {shown}')
    if check.report is not None:
        check.report(verdict)
    return verdict


def _right(source: Source, arrays: Arrays) -> Expected:
    return by_onnxruntime(source.whole, arrays, source.threads, str(source.model))


def _blame_pieces(
    network: MixedNetwork,
    mixture: Mixture,
    arrays: Arrays,
    again: Callable[[Graph, Check], object],
) -> None:
    """Check the pieces of ours on the values that reach them; the first wrong one is the error."""
    values = {**arrays, **mixture.found.constants}
    graph = mixture.traced.graph
    for number, (piece, ran) in enumerate(zip(mixture.found.pieces, network.pieces, strict=True)):
        if piece.ours:
            made = graph_of(graph, piece, mixture.found, f'{graph.name}#{number}')
            again(made, Check(arrays={n: np.asarray(a) for n, a in ran.given(values).items()}))
        values |= ran.run(values)


def _ranges(mixture: Mixture) -> dict[str, Range]:
    """Ranges of whole numbers that our pieces read; what only others read is 0."""
    graph = mixture.traced.graph
    found = {
        value.name: Range(0, 1)
        for value in graph.inputs
        if np.dtype(DTYPES[value.dtype]).kind in 'iu'
    }
    for number, piece in enumerate(mixture.found.pieces):
        if piece.ours:
            found |= ranges(lower(graph_of(graph, piece, mixture.found, f'{number}')))
    return {name: found[name] for name in found if name in {v.name for v in graph.inputs}}
