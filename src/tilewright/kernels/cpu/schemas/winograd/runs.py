"""Tiles of Winograd's algorithm in blocks: a thread's blocks, and the products of one with a panel.

Goes in: how threads share tiles and panels, how micro-kernels share each number of tiles, and where
a tile and its sums lie. Comes out: the loop over blocks, and the C function `multiply`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.writer import Writer


class Blocks(Protocol):
    """Tiles in blocks of at most `block`, and panels of `width` channels, among threads."""

    @property
    def tiles(self) -> int: ...
    @property
    def tile_ways(self) -> int: ...
    @property
    def panels(self) -> int: ...
    @property
    def k_ways(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def block(self) -> int: ...


def open_blocks(writer: Writer, p: Blocks, channels: int) -> None:
    """What a thread owns, `k_low` to `k_high` of the output channels among it, and the loop over
    its blocks: `tiles` of them, from `first` on.
    """
    ways, tiles = p.tile_ways, p.tiles
    writer.line(f'const long low = {tiles} * (part % {ways}) / {ways};')
    writer.line(f'const long high = {tiles} * (part % {ways} + 1) / {ways};')
    writer.line(f'const long k_low = {p.panels} * (part / {ways}) / {p.k_ways} * {p.width};')
    last = f'{p.panels} * (part / {ways} + 1) / {p.k_ways} * {p.width}'
    writer.line(f'const long k_high = min_long({last}, {channels});')
    writer.line(f'const long blocks = (high - low + {p.block - 1}) / {p.block};')
    writer.open('for (long block = 0; block < blocks; block++)')
    writer.line('const long first = low + (high - low) * block / blocks;')
    writer.line('const long tiles = low + (high - low) * (block + 1) / blocks - first;')


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
