"""How fast AMX multiplies zeros and random numbers, from the first cache and from the second.

    python -m tilewright_lab.scripts.tile_data --json tile-data.json

Goes in: nothing. Comes out: nanoseconds of a product of two tiles of bf16 (16 x 16 sums of 32
products) with 2 x 2 tiles of sums, two of weights and two of the image loaded for each four
products, and with registers alone; the least of ten runs. Numbers that are not zero are multiplied
more slowly where power is what bounds a processor, and rows of tiles that lie in two lines are
loaded more slowly.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.kernels.cpu.isa.tiles import prologue
from tilewright.machine.compiler import build
from tilewright.machine.isa import ISAS, host_isas, host_tiles, tile_isa

RUNS, CALLS = 10, 20_000
NEAR, FAR, LINE = 8192, 512 << 10, 64  # bytes of weights, of a line
SOURCE = """\
#include <string.h>
#include <time.h>
@prologue@
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
double measured(const char *a, const char *b, long bytes, long calls, long loads)
{
    unsigned char own[64] __attribute__((aligned(64))) = {1};
    for (int t = 0; t < 8; t++)
        own[16 + 2 * t] = 64, own[48 + t] = 16;
    tiles_begin();
    TILE_CONFIG(own);
    TILE_LOAD(4, b, 64);
    TILE_LOAD(5, b + 1024, 64);
    TILE_LOAD(6, a, 64);
    TILE_LOAD(7, a + 1024, 64);
    const double begin = now();
    for (long i = 0, at = 0; i < calls; i++, at = (at + 2048) & (bytes - 1)) {
        if (loads) {
            TILE_LOAD(4, b + at, 64);
            TILE_LOAD(5, b + at + 1024, 64);
            TILE_LOAD(6, a + (at & 8191), 64);
        }
        TILE_DOT(0, 6, 4);
        TILE_DOT(1, 6, 5);
        if (loads)
            TILE_LOAD(7, a + (at & 8191) + 1024, 64);
        TILE_DOT(2, 7, 4);
        TILE_DOT(3, 7, 5);
    }
    const double took = now() - begin;
    tiles_end();
    return took;
}
"""


def measure() -> list[dict[str, Any]]:
    """A row for each kind of numbers and each place that weights come from."""
    base = next((name for name in host_isas() if host_tiles(name)), '')
    if not base:
        raise SystemExit('this host has no tiles')
    row = tile_isa(base)
    source = SOURCE.replace('@prologue@', prologue(row, 'bf16'))
    function = ctypes.CDLL(str(build(source, ISAS[row].compiler_flags))).measured
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_long] * 3]
    draw = np.random.default_rng(0)
    floats = draw.standard_normal(FAR // 2).astype(np.float32)
    numbers = {
        'zeros': np.zeros(FAR // 2, np.uint16),
        'random': (floats.view(np.uint32) >> 16).astype(np.uint16),
    }
    rows = []
    for place, size, loads, beyond in (
        ('registers', NEAR, 0, 0), ('first cache', NEAR, 1, 0), ('second cache', FAR, 1, 0),
        ('first cache, rows across lines', NEAR, 1, LINE // 2),
    ):  # fmt: skip
        for kind, array in numbers.items():
            weights, image = _placed(array, beyond), _placed(array[: NEAR // 2], beyond)
            took = [
                function(image.ctypes.data, weights.ctypes.data, size, CALLS, loads)
                for _ in range(RUNS)
            ]
            rows.append({'weights': place, 'numbers': kind, 'ns': 1e9 * min(took) / CALLS / 4})
    return rows


def _placed(array: np.ndarray, beyond: int) -> np.ndarray:
    """A copy that begins so many bytes behind the beginning of a line."""
    room = np.zeros(array.nbytes + 2 * LINE, np.uint8)
    first = -room.ctypes.data % LINE + beyond
    placed = room[first : first + array.nbytes].view(np.uint16)
    placed[:] = array
    return placed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--json', type=Path)
    chosen = parser.parse_args()
    rows = measure()
    for row in rows:
        print(f'weights from {row["weights"]}, {row["numbers"]}: {row["ns"]:.2f} ns')
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + '\n')


if __name__ == '__main__':
    main()
