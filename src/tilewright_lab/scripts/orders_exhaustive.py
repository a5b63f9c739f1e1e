"""All loop orders x all integer tiles against the derived classes (MOpt Sec. 4), small problems.

    python -m tilewright_lab.scripts.orders_exhaustive [--capacity-share 0.25] [--json FILE]

For each problem every permutation of its loops is costed for every integer tile, with the traffic
model of `model/cpu/traffic.py`, twice: `real` (trips are N/T, the paper's expressions) and `exact`
(ceilings and true remainders; a loop with one trip does not exist). Tiles are split by capacity:
those whose footprint (Eq. 4) fits a cache of `capacity-share` of all the problem's data, and the
rest. `worst excess` is the largest relative amount by which, for one tile, the best of the derived
classes (one representative each) exceeds the best of all orders: 0 says that no order beats the
classes for any tile at all, not only at the optimum. `best` are the optima under the capacity.

The model's assumption holds throughout: two adjacent tiles together exceed the cache, so nothing is
reused across more than the loops that the order allows (Sec. 3.1). Exit code 1 when an order wins.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from pathlib import Path

import numpy as np

from tilewright.model.cpu.orders import order_classes
from tilewright.model.cpu.traffic import capacity, volume
from tilewright.ops.convolution import conv2d
from tilewright.ops.matmul import matmul
from tilewright.ops.stage import Access, Stage


def problems() -> dict[str, Stage]:
    """Five small problems with every kind of reuse: partial, full, none, strided, in windows."""
    return {
        '3x3 dense': conv2d(n=2, c=4, k=4, h=7, w=6, r=3, s=3).main,
        '1x1': conv2d(n=3, c=6, k=6, h=5, w=6, r=1, s=1).main,
        'depthwise 3x3': conv2d(n=3, c=6, k=6, h=8, w=7, r=3, s=3, groups=6).main,
        'matmul': matmul(m=18, n=20, k=24).main,
        '3x3 stride 2': conv2d(n=2, c=3, k=4, h=11, w=9, r=3, s=3, stride=2).main,
    }


def all_tiles(stage: Stage) -> dict[str, np.ndarray]:
    """Every integer tile: one array for each dimension, all of one length."""
    ranges = [np.arange(1, d.size + 1) for d in stage.dims]
    grids = np.meshgrid(*ranges, indexing='ij')
    return {d.name: grid.ravel() for d, grid in zip(stage.dims, grids, strict=True)}


def costs_by_order(
    stage: Stage, orders: list[tuple[str, ...]], tiles: dict[str, np.ndarray], exact: bool
) -> np.ndarray:
    """Least volume of any of the orders, for every tile.

    One access's volume sees of an order only its own loops, and between them the set (not the
    order) of the others; equal views are costed once.
    """
    known: dict[tuple, np.ndarray] = {}

    def cost(number: int, access: Access, order: tuple[str, ...]) -> np.ndarray:
        view, others = [], set()
        for name in order:
            if name in access.names:
                view.append((frozenset(others), name))
                others = set()
            else:
                others.add(name)
        key = (number, *view)
        if key not in known:
            written = access is stage.write
            moved = volume(access, order, tiles, stage.sizes, written=written, exact=exact)
            known[key] = np.asarray(moved, float) + np.zeros(len(tiles[order[0]]))
        return known[key]

    least = np.full(len(tiles[stage.dims[0].name]), np.inf)
    for order in orders:
        total = sum(cost(i, access, order) for i, access in enumerate(stage.accesses))
        np.minimum(least, total, out=least)
    return least


def compare(stage: Stage, share: float) -> dict:
    """One problem: the derived classes against every order, over every tile."""
    classes = order_classes(stage)
    active = tuple(d.name for d in stage.dims if d.size > 1)
    idle = tuple(d.name for d in stage.dims if d.size == 1)
    orders = [(*idle, *order) for order in itertools.permutations(active)]
    tiles = all_tiles(stage)
    words = capacity(stage, stage.sizes)
    limit = int(share * words)
    fits = capacity(stage, tiles) <= limit
    row = {
        'dims': len(active),
        'orders': len(orders),
        'tiles': int(fits.size),
        'tiles_under_capacity': int(fits.sum()),
        'capacity_words': limit,
        'classes': [str(c) for c in classes],
    }
    for name, exact in (('real', False), ('exact', True)):
        everything = costs_by_order(stage, orders, tiles, exact)
        derived = costs_by_order(stage, [c.representative() for c in classes], tiles, exact)
        row[name] = {
            'best_all_words': float(everything[fits].min()),
            'best_classes_words': float(derived[fits].min()),
            'worst_excess': float(((derived - everything) / everything).max()),
        }
    return row


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='all orders against classes')
    parser.add_argument('--capacity-share', type=float, default=0.25)
    parser.add_argument('--json', metavar='FILE')
    options = parser.parse_args(arguments)
    rows = {}
    print(
        f'{"problem":14} {"orders":>6} {"classes":>7} {"tiles":>7} {"fit":>7} {"capacity":>8} ',
        end='',
    )
    print('model   best of all  best of classes  worst excess')
    for name, stage in problems().items():
        start = time.perf_counter()
        row = rows[name] = compare(stage, options.capacity_share)
        row['time_s'] = time.perf_counter() - start
        for kind in ('real', 'exact'):
            r = row[kind]
            print(
                f'{name:14} {row["orders"]:6} {len(row["classes"]):7} {row["tiles"]:7} '
                f'{row["tiles_under_capacity"]:7} {row["capacity_words"]:8}  {kind:5} '
                f'{r["best_all_words"]:13.1f} {r["best_classes_words"]:16.1f} '
                f'{r["worst_excess"]:13.2%}'
            )
        print(f'{"":14} {" ".join(row["classes"])}')
    if options.json:
        text = json.dumps({'capacity_share': options.capacity_share, 'problems': rows}, indent=1)
        if options.json == '-':
            print(text)
        else:
            Path(options.json).write_text(text + '\n')
    beaten = any(
        not math.isclose(row[kind]['best_all_words'], row[kind]['best_classes_words'])
        for row in rows.values()
        for kind in ('real', 'exact')
    )
    return 1 if beaten else 0


if __name__ == '__main__':
    sys.exit(main())
