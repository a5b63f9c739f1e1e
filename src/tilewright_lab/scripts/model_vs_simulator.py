"""Modelled against simulated data volume, for seeded random configurations of four operators.

    python -m tilewright_lab.scripts.model_vs_simulator [--samples 30] [--seed 7] [--json FILE]

What is sampled, before any predicate is asked: a random order at every level; cache tiles
log-uniform over all legal sizes, kept if their footprint (Eq. 4, in whole lines) is between 30% and
90% of the cache; a register tile with at most 32 accumulators, one step of each reduction. Sizes
need not divide the problem. With 16-word lines the channels (matmul: columns) are fastest in
memory, tiles along a fastest dimension are whole lines, and a register tile has a line of outputs:
what vector code does. With two caches the second is eight times the first.

For each cache, volumes are all tensors together, fills and write-backs. `claimed` is the share of
configurations that meet `predicate.claims`; `within` the share of those whose model is within 10%
of the simulation at every cache; `of all` the same without asking the predicate. MOpt's volumes are
claimed where also `predicate.mopt_agrees`. The caches are fully associative; `8-way` gives the LRU
model's share within 10% of an 8-way set-associative first cache of the same size. Exit code 1
unless within >= 90% and claimed > 70% for each operator.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tilewright.model.cpu.traffic import capacity, level_volumes
from tilewright.ops.convolution import conv2d
from tilewright.ops.matmul import matmul
from tilewright.ops.stage import Stage
from tilewright.schedule.schedule import Level
from tilewright_lab.simulate.cachesim import SimCache, simulate
from tilewright_lab.simulate.predicate import claims, mopt_agrees
from tilewright_lab.simulate.reuse import lru_volumes

TOLERANCE = 0.10
LEAST_SHARE, MOST_SHARE = 0.3, 0.9  # of the capacity, used by a sampled tile
CHANNELS_LAST = {'Out': 1, 'In': 1, 'Ker': 0}


@dataclass(frozen=True, slots=True)
class Case:
    """An operator, its memory, and what is sampled of it."""

    name: str
    stage: Stage
    capacities: tuple[int, ...]
    line: int
    layout: dict[str, int]


def cases() -> list[Case]:
    """Four operators x (words, one cache), (words, two caches), (lines, one cache)."""
    dense = conv2d(n=2, c=16, k=24, h=18, w=18, r=3, s=3).main
    depthwise = conv2d(n=2, c=24, k=24, h=26, w=26, r=3, s=3, groups=24).main
    strided = conv2d(n=2, c=16, k=16, h=33, w=29, r=3, s=3, stride=2).main
    product = matmul(m=96, n=80, k=112).main
    found = []
    for name, stage in (
        ('dense 3x3', dense),
        ('matmul', product),
        ('depthwise 3x3', depthwise),
        ('3x3 stride 2', strided),
    ):
        found.append(Case(name, stage, (1024,), 1, {}))
        found.append(Case(name, stage, (512, 4096), 1, {}))
    wide = conv2d(n=1, c=48, k=64, h=14, w=14, r=3, s=3).main
    deep = conv2d(n=2, c=96, k=96, h=18, w=18, r=3, s=3, groups=96).main
    found.append(Case('dense 3x3', wide, (8192,), 16, CHANNELS_LAST))
    found.append(Case('matmul', matmul(m=96, n=128, k=160).main, (8192,), 16, {}))
    found.append(Case('depthwise 3x3', deep, (8192,), 16, CHANNELS_LAST))
    return found


def sample(case: Case, rng: random.Random) -> list[Level]:
    """One configuration: the register tile, then a level for each cache."""
    names = [d.name for d in case.stage.dims]
    fastest = {name: _fastest(case, name) for name in names}
    while True:
        outer, tiles = dict(case.stage.sizes), []
        for words in reversed(case.capacities):
            tile = _cache_tile(case, outer, words, fastest, rng)
            if tile is None:
                break
            tiles.append(tile)
            outer = tile
        if len(tiles) == len(case.capacities):
            break
    tiles.append(_register_tile(case, tiles[-1], rng))
    levels = []
    for number, tile in enumerate(reversed(tiles)):
        order = names[:]
        rng.shuffle(order)
        levels.append(Level.of(f'l{number}' if number else 'reg', tuple(order), tile))
    return levels


def _fastest(case: Case, name: str) -> bool:
    """Whether a dimension is the fastest in memory in some tensor."""
    return any(
        name in access.index[case.layout.get(access.tensor, -1)].names
        for access in case.stage.accesses
    )


def _log_uniform(most: int, rng: random.Random) -> int:
    return min(most, max(1, round(math.exp(rng.uniform(0, math.log(most))))))


def _cache_tile(
    case: Case, outer: dict[str, int], words: int, fastest: dict[str, bool], rng: random.Random
) -> dict[str, int] | None:
    for _ in range(2000):
        tile = {}
        for name, size in outer.items():
            unit = case.line if fastest[name] and size % case.line == 0 else 1
            tile[name] = unit * _log_uniform(size // unit, rng)
        needed = capacity(case.stage, tile, line_words=case.line, layout=case.layout)
        if LEAST_SHARE * words <= needed <= MOST_SHARE * words:
            return tile
    return None


def _register_tile(case: Case, tile: dict[str, int], rng: random.Random) -> dict[str, int]:
    stage = case.stage
    vector = stage.write.index[case.layout.get(stage.write.tensor, -1)].names[0]
    while True:
        chosen = dict.fromkeys(tile, 1)
        for name in stage.parallel:
            chosen[name] = _log_uniform(min(tile[name], 8), rng)
        if math.prod(chosen.values()) > 32:
            continue
        if case.line > 1:
            chosen[vector] = case.line
        return chosen


def compare(case: Case, samples: int, seed: int) -> dict:
    """Every configuration of one case: modelled and simulated words, and the verdicts."""
    rng = random.Random(seed)
    stage, sizes = case.stage, case.stage.sizes
    how = {'line_words': case.line, 'layout': case.layout}
    rows = []
    for _ in range(samples):
        levels = sample(case, rng)
        caches = [SimCache(words // case.line) for words in case.capacities]
        simulated = simulate(stage, levels, caches, **how)
        first = SimCache(caches[0].lines, 8)
        ways = simulate(stage, levels, [first], **how)
        modelled = lru_volumes(stage, levels, sizes, case.capacities, **how)
        plain = level_volumes(stage, levels, sizes, **how)[1:]
        verdict = claims(stage, levels, sizes, case.capacities, **how)
        mopt = verdict and mopt_agrees(stage, levels, sizes, case.capacities, **how)
        rows.append(
            {
                'levels': [[v.name, list(v.order), v.tile] for v in levels],
                'simulated_words': [sum(simulated.words(i).values()) for i in range(len(caches))],
                'simulated_8way_words': sum(ways.words(0).values()),
                'modelled_words': [sum(v.values()) for v in modelled],
                'mopt_words': [sum(v.values()) for v in plain],
                'claimed': verdict.ok,
                'reason': verdict.reason,
                'mopt_claimed': mopt.ok,
                'mopt_reason': mopt.reason,
            }
        )
    return {
        'case': case.name,
        'capacities_words': list(case.capacities),
        'line_words': case.line,
        'samples': samples,
        'claimed': _share(row['claimed'] for row in rows),
        'within': _share(_near(row, 'modelled_words') for row in rows if row['claimed']),
        'within_of_all': _share(_near(row, 'modelled_words') for row in rows),
        'mopt_claimed': _share(row['mopt_claimed'] for row in rows),
        'mopt_within': _share(_near(row, 'mopt_words') for row in rows if row['mopt_claimed']),
        'mopt_within_of_all': _share(_near(row, 'mopt_words') for row in rows),
        'within_8way': _share(
            abs(row['modelled_words'][0] / row['simulated_8way_words'] - 1) <= TOLERANCE
            for row in rows
            if row['claimed']
        ),
        'configurations': rows,
    }


def _near(row: dict, key: str) -> bool:
    pairs = zip(row[key], row['simulated_words'], strict=True)
    return all(abs(model / truth - 1) <= TOLERANCE for model, truth in pairs)


def _share(answers) -> float:
    answers = list(answers)
    return sum(answers) / len(answers) if answers else float('nan')


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='model against simulator')
    parser.add_argument('--samples', type=int, default=30)
    parser.add_argument('--seed', type=int, default=7)
    parser.add_argument('--json', metavar='FILE')
    options = parser.parse_args(arguments)
    print(f'{"":13} {"caches":>11} {"":4}  {"--- LRU model ---":^24}  {"--- MOpt ---":^24}')
    print(
        f'{"operator":13} {"words":>11} {"line":>4}  {"claimed":>7} {"within":>7} {"of all":>7}  '
        f'{"claimed":>7} {"within":>7} {"of all":>7}  {"8-way":>6} {"s":>5}'
    )
    results = []
    for case in cases():
        start = time.perf_counter()
        result = compare(case, options.samples, options.seed)
        results.append(result)
        keys = ('claimed', 'within', 'within_of_all')
        ours = ' '.join(f'{result[k]:7.0%}' for k in keys)
        theirs = ' '.join(f'{result["mopt_" + k]:7.0%}' for k in keys)
        memory = '+'.join(map(str, case.capacities))
        print(
            f'{case.name:13} {memory:>11} {case.line:4}  {ours}  {theirs}  '
            f'{result["within_8way"]:6.0%} {time.perf_counter() - start:5.1f}',
            flush=True,
        )
    operators = {}
    for name in dict.fromkeys(r['case'] for r in results):
        rows = [c for r in results if r['case'] == name for c in r['configurations']]
        claimed = [c for c in rows if c['claimed']]
        within = _share(_near(c, 'modelled_words') for c in claimed)
        operators[name] = {'excluded': 1 - len(claimed) / len(rows), 'within': within}
        print(
            f'{name}: {1 - len(claimed) / len(rows):.0%} of {len(rows)} configurations excluded by '
            f'the predicate, {within:.0%} of the rest within {TOLERANCE:.0%}'
        )
    if options.json:
        document = {
            'tolerance': TOLERANCE,
            'seed': options.seed,
            'operators': operators,
            'results': results,
        }
        text = json.dumps(document, indent=1)
        if options.json == '-':
            print(text)
        else:
            Path(options.json).write_text(text + '\n')
    good = all(o['within'] >= 0.9 and o['excluded'] < 0.3 for o in operators.values())
    return 0 if good else 1


if __name__ == '__main__':
    sys.exit(main())
