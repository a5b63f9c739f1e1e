"""Products of one panel at one point of Winograd's tiles, for every number of tiles of a block.

Goes in: how micro-kernels share each number of tiles, and where a tile and its sums lie. Comes out:
the C function `multiply`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.writer import Writer


def write_products(
    writer: Writer, isa: str, vectors: int, runs: Mapping[int, Sequence[int]],
    places: Callable[[int], tuple[int, int]],
) -> None:  # fmt: skip
    """runs    number of tiles -> how many of them each micro-kernel takes
    places  a tile's number -> where it lies, and where its sums lie, in floats
    """
    writer.open(
        'static void multiply(const float *v, const float *u, float *m, long tiles, long count, '
        'long resume)'
    )
    writer.line('switch (tiles) {')
    for tiles, shares in runs.items():
        writer.line(f'case {tiles}:')
        done = 0
        for run in shares:
            name = micro.micro_name(isa, (run,), vectors)
            tile, sums = places(done)
            writer.line(f'    {name}(v + {tile}, u, m + {sums}, count, resume);')
            done += run
        writer.line('    break;')
    writer.line('}')
    writer.close()
    writer.line()
