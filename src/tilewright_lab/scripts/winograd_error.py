"""The error of every F(m, r) beside the model's prediction, by generated kernels on this host.

    python -m tilewright_lab.scripts.winograd_error [--layers mopt/R2,mopt/R4] [--tiles 2,4,7x2] \
        [--algorithm winograd|fft] [--json FILE]

Tiles are m or rows x columns; `all` stands for every shape that the search may choose. mopt/R4 has
stride 2. With `--algorithm fft` tiles of transforms, for layers with large filters.

Data: `random` is normal; `relu` is normal, smoothed over the image and clipped at zero, as between
the layers of a network; `image` is a smooth positive picture with fine noise. Errors are the
largest difference from the float64 reference over the largest result; weights are normal.
`direct` is what the model says of the direct algorithm.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.fft.plan import fft_schedule
from tilewright.kernels.cpu.schemas.winograd.space import winograd_schedule
from tilewright.machine.compiler import build
from tilewright.machine.isa import best_isa
from tilewright.ops import fft, fft_error, winograd, winograd_error
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.ops.tiles import Tile, TileGeometry
from tilewright.ops.winograd_error import direct_error
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank_winograd import tiles_within

KINDS = ('random', 'relu', 'image')
TILES = '2,3,4,5,6,7,1x7,4x2,7x2,7x5'


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What the script asks of an algorithm that multiplies at points."""

    applies: Callable[[Group, Tile], str]
    geometry: Callable[[Group, Tile], TileGeometry]
    predicted: Callable[[Group, Tile], float]
    tiles: Callable[[Group], tuple[Tile, ...]]
    schedule: Callable[..., Schedule]


ALGORITHMS = {
    'winograd': Algorithm(
        winograd.applies, winograd.geometry, winograd_error.predicted_error,
        lambda group: tiles_within(group, float('inf')), winograd_schedule,
    ),
    'fft': Algorithm(
        fft.applies, fft.geometry, fft_error.predicted_error, fft.tiles_of, fft_schedule
    ),
}  # fmt: skip


def tiles(text: str, group: Group, by: Algorithm) -> list[Tile]:
    """The shapes that are asked for."""
    if text == 'all':
        return list(by.tiles(group))
    sizes = [tuple(int(n) for n in word.split('x')) for word in text.split(',')]
    return [(size[0], size[-1]) for size in sizes]


def smooth(values: np.ndarray, steps: int) -> np.ndarray:
    """A running mean over both axes of the image."""
    for _ in range(steps):
        values = (values + np.roll(values, 1, -1) + np.roll(values, -1, -1)) / 3
        values = (values + np.roll(values, 1, -2) + np.roll(values, -1, -2)) / 3
    return values


def data(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    noise = rng.standard_normal(shape)
    if kind == 'relu':
        noise = np.maximum(3 * smooth(noise, 1), 0)
    elif kind == 'image':
        noise = 128 + 400 * smooth(noise, 4) + noise
    return noise.astype(np.float32)


def kernel(group: Group, m: Tile, by: Algorithm) -> Kernel:
    schedule = by.schedule(group, best_isa(), m, 4, 1, 1, (1, 2, 4))
    return Kernel.load(build(generate(group, schedule), compiler_flags(schedule)), group)


def row(name: str, group: Group, m: Tile, wants: dict, by: Algorithm) -> dict:
    made = kernel(group, m, by)
    errors = {}
    for kind, (arrays, want) in wants.items():
        out = np.empty(group.output.shape, np.float32)
        made.run(arrays, made.pack(arrays), out)
        errors[kind] = float(np.abs(out - want).max() / np.abs(want).max())
    return {
        'layer': name,
        'tile': m,
        'f': by.geometry(group, m).name,
        'predicted': by.predicted(group, m),
        'measured': errors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n')[0])
    parser.add_argument('--layers', default='mopt/R2,mopt/R9,mopt/R4,mopt/R10')
    parser.add_argument('--tiles', default=TILES)
    parser.add_argument('--algorithm', choices=list(ALGORITHMS), default='winograd')
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    by = ALGORITHMS[given.algorithm]
    rows = []
    print(
        f'{"layer":10} {"F":20} {"predicted":>10}', *(f'{k:>10}' for k in KINDS), f'{"direct":>10}'
    )
    for name in given.layers.split(','):
        group = tw.parse(name)
        sizes = group.main.sizes
        wants = {}
        for number, kind in enumerate(KINDS):
            rng = np.random.default_rng(number)
            arrays = {
                t.name: data(kind if t.role == 'input' else 'random', t.shape, rng)
                for t in group.tensors
                if t.role in ('input', 'constant')
            }
            wants[kind] = arrays, reference(group, arrays)
        for m in tiles(given.tiles, group, by):
            reason = by.applies(group, m)
            if reason:
                print(f'{name:10} {reason}')
                continue
            rows.append(row(name, group, m, wants, by))
            figures = [rows[-1]['predicted'], *rows[-1]['measured'].values()]
            figures.append(direct_error(sizes['c'], sizes['r'], sizes['s']))
            print(f'{name:10} {rows[-1]["f"]:20}', *(f'{x:10.2e}' for x in figures), flush=True)
    if given.json:
        given.json.write_text(json.dumps({'rows': rows}, indent=1) + '\n')


if __name__ == '__main__':
    main()
