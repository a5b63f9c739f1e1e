"""Checks a certificate: recomputes every claim from the JSON alone, without search or solver.

Goes in: what `Plan.certificate` wrote. Comes out: what was verified, in sentences, or a CheckError
that names the first number that does not follow. Only the standard library is used and nothing of
the models, so that a mistake there is not repeated here. What is claimed (docs/report.md):

    bound      max( operations / peak, (bytes - held) / bandwidth by boundary )      a time that no
               kernel of the algorithm can beat, if the machine's figures are what it can do. Only
               products of stored values count, and only words that are read: padding may be skipped
    gap        time - bound, and parts that add up to it
    movement   min-max tile sizes of MOpt (Sec. 5): by weak duality no tiles with these loop orders
               and this register tile move their data, as the model counts it, in less than `bound`

    log t* >= sum_i w_i log f_i(x) + sum_j u_j log c_j(x) + v.x + min over the box of its tangent
    with sum w = 1, u, v >= 0, f (times) and c (fills) posynomials, so convex in x = log tile
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from tilewright.errors import CheckError, InputError

FORMAT = 1
KIND = 'tilewright certificate'
TOLERANCE = 1e-9  # relative, of numbers that are computed in floating point
FEASIBLE = 1e-6  # how far the solver's tiles may overfill a cache
MARGIN = 0.9  # share of a cache that tiles may fill
MOST_POINTS = 1 << 22  # of a padded window that is walked
BYTES = {
    'bool': 1, 'i8': 1, 'u8': 1, 'i16': 2, 'u16': 2, 'f16': 2, 'bf16': 2, 'i32': 4, 'u32': 4,
    'f32': 4, 'i64': 8, 'u64': 8, 'f64': 8,
}  # fmt: skip
LEAVES = ('read', 'const', 'whole', 'index')


def seal(body: Mapping[str, Any]) -> dict[str, Any]:
    """The certificate with the digest of everything in it."""
    return {**body, 'digest': _digest(body)}


def _digest(body: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in body.items() if name != 'digest'}
    text = json.dumps(kept, sort_keys=True, separators=(',', ':'))
    return hashlib.sha256(text.encode()).hexdigest()


def check(data: Any) -> list[str]:
    """What was verified of a certificate; CheckError where a claim does not follow."""
    if not isinstance(data, dict) or data.get('kind') != KIND:
        raise InputError(f'this is not a certificate: "kind" is not {KIND!r}; write one by certify')
    if data.get('format') != FORMAT:
        raise InputError(
            f'the certificate has format {data.get("format")!r}, this checker knows {FORMAT}; '
            f'write it again'
        )
    try:
        if data['digest'] != _digest(data):
            raise CheckError('the certificate was changed after it was written: its digest differs')
        found = [*_check_work(data), *_check_bound(data), *_check_gap(data)]
        return found + (_check_movement(data) if data['movement'] else [])
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise InputError(f'the certificate cannot be read: {error!r}; write it again') from None


def _same(what: str, claimed: float, found: float) -> None:
    if not math.isclose(claimed, found, rel_tol=TOLERANCE, abs_tol=1e-18):
        raise CheckError(f'the certificate claims {what} = {claimed!r}; it is {found!r}')


def main_stage(group: Mapping[str, Any]) -> dict[str, Any]:
    """The stage that reduces over most points, else the first."""
    reducing = [s for s in group['stages'] if s['combiner']]
    return max(reducing, key=_points) if reducing else group['stages'][0]


def _points(stage: Mapping[str, Any]) -> int:
    return math.prod(size for _, size, _ in stage['dims'])


def _functions(expr: Sequence[Any]) -> int:
    return (expr[0] not in LEAVES) + sum(map(_functions, expr[2]))


# --- operations and words, from the group's own description


def needed_points(group: Mapping[str, Any], stage: Mapping[str, Any]) -> int:
    """Points of a stage all of whose reads are inside their tensors."""
    sizes = {name: size for name, size, _ in stage['dims']}
    shapes = {name: shape for name, _, shape, *_ in group['tensors']}
    padded: dict[tuple[str, ...], list[Callable[[dict[str, int]], bool]]] = {}
    for tensor, index, *indirect in stage['reads']:
        tables = dict(map(tuple, indirect[0])) if indirect else {}
        looked_up = {axis for axis, _ in indirect[1]} if indirect else set()
        for axis, ((terms, const), extent) in enumerate(zip(index, shapes[tensor], strict=True)):
            if axis in looked_up:
                continue
            inside = _inside(terms, const, extent, tables.get(axis))
            reach = const + sum(c * (sizes[n] - 1) for n, c in terms)
            if axis in tables or const < 0 or reach >= extent:
                padded.setdefault(tuple(sorted(n for n, _ in terms)), []).append(inside)
    names = [name for group_of in padded for name in group_of]
    if len(set(names)) < len(names):  # windows that share a dimension are counted as one
        padded = {tuple(sorted(set(names))): [f for fs in padded.values() for f in fs]}
    count = math.prod(size for name, size in sizes.items() if name not in names)
    for dims, tests in padded.items():
        ranges = [range(sizes[d]) for d in dims]
        if math.prod(map(len, ranges)) > MOST_POINTS:
            raise InputError(f'a window over {dims} is too large to be counted; there is no bound')
        walked = (dict(zip(dims, at, strict=True)) for at in itertools.product(*ranges))
        count *= sum(all(test(at) for test in tests) for at in walked)
    return count


def _inside(
    terms: Sequence, const: int, extent: int, table: Sequence[int] | None
) -> Callable[[dict[str, int]], bool]:
    def test(at: dict[str, int]) -> bool:
        value = const + sum(c * at[n] for n, c in terms)
        return 0 <= (value if table is None else table[value]) < extent

    return test


def touched_words(group: Mapping[str, Any]) -> dict[str, int]:
    """tensor -> elements of it that are read or written: at least those of one access."""
    found: dict[str, int] = {}
    kept = {name: (shape, role) for name, _, shape, role, *_ in group['tensors'] if role != 'inner'}
    for stage in group['stages']:
        sizes = {name: size for name, size, _ in stage['dims']}
        for tensor, index, *indirect in (stage['write'], *stage['reads']):
            if tensor not in kept:
                continue
            tables = dict(map(tuple, indirect[0])) if indirect else {}
            looked_up = {axis for axis, _ in indirect[1]} if indirect else set()
            seen = [n for terms, _ in index for n, _ in terms]
            if len(set(seen)) < len(seen):  # a diagonal: at least as many as one axis has
                looked_up |= set(range(1, len(index)))
            words = 1
            for axis, (terms, const) in enumerate(index):
                if axis in looked_up:
                    continue  # which of them depends on data: one at least
                values = _values(terms, const, sizes)
                if axis in tables:
                    values = {tables[axis][value] for value in values}
                words *= sum(0 <= value < kept[tensor][0][axis] for value in values)
            found[tensor] = max(found.get(tensor, 0), words)
    return found


def _values(terms: Sequence, const: int, sizes: Mapping[str, int]) -> set[int]:
    values = {const}
    for name, coefficient in terms:
        values = {v + coefficient * i for v in values for i in range(sizes[name])}
    return values


def _algorithm_operations(data: Mapping[str, Any], direct: int) -> int:
    """Operations that the algorithm cannot do without: at the points of its tiles, or `direct`."""
    algorithm, stage = data['assumes']['algorithm'], main_stage(data['group'])
    if algorithm['name'] == 'direct':
        return direct
    if algorithm['name'] == 'strassen':  # seven products of blocks for every eight
        return direct * 7 ** algorithm['levels'] // 8 ** algorithm['levels']
    sizes = {name: size for name, size, _ in stage['dims']}
    rows, columns = stage['reads'][0][1][2:]
    points, tiles = [], sizes['n'] * sizes.get('g', 1) * sizes['k'] * sizes['c']
    for m, out, tap, (terms, _) in zip(
        algorithm['tile'], 'hw', 'rs', (rows, columns), strict=True
    ):  # fmt: skip
        stride, taps = dict(map(tuple, terms))[out], sizes[tap]
        outputs = m if taps > 1 or algorithm['name'] == 'fft' else 1
        tiles *= -(-sizes[out] // outputs)
        points.append(min(stride, taps) * (outputs - 1) + taps)
    if algorithm['name'] == 'winograd':
        return 2 * tiles * math.prod(points)
    if algorithm['name'] == 'fft':  # three real products for a complex one, half the rows
        down, across = points
        return 2 * tiles * (2 * (3 * across // 2 - 1) + (down // 2 - 1) * 3 * across)
    raise CheckError(f'the checker does not know the algorithm {algorithm["name"]!r}')


def _check_work(data: Mapping[str, Any]) -> list[str]:
    group, work = data['group'], data['work']
    stage = main_stage(group)
    each = _functions(stage['expr']) + (stage['combiner'] is not None)
    _same('operations of the definition', work['operations'], each * _points(stage))
    needed = each * needed_points(group, stage)
    _same('operations on stored values', work['needed'], needed)
    _same('operations of the algorithm', work['algorithm'], _algorithm_operations(data, needed))
    words = touched_words(group)
    if set(words) != set(work['words']):
        raise CheckError(f'the certificate counts {sorted(work["words"])}, the group {[*words]}')
    for name, count in words.items():
        _same(f'words of {name}', work['words'][name], count)
    sizes = {name: BYTES[dtype] for name, _, _, _, dtype in group['tensors']}
    moved = sum(sizes[name] * count for name, count in words.items())
    _same('bytes', work['bytes'], moved)
    return [
        f'{work["algorithm"]:,} operations and {work["bytes"]:,} bytes follow from the description '
        f'of {data["label"]}'
    ]


# --- the bound


def _rates(assumes: Mapping[str, Any]) -> tuple[float, list[tuple[str, float, float]]]:
    """(operations a second or 0, [(boundary, bytes held inside it, bytes a second)])."""
    machine, threads = assumes['machine'], assumes['threads']
    if assumes['target'] != 'cpu':
        peak = 2e9 * machine['multiprocessors'] * machine['lanes'] * machine['clock_ghz']
        return peak, [
            ('L2', 0, 1e9 * machine['l2_gbps']),
            ('DRAM', machine['l2_bytes'], 1e9 * machine['global_gbps']),
        ]
    cores = machine['cores']
    one, every = machine['peak_one'], machine['peak_all']
    peak = one if threads <= 1 else every * min(threads, cores) / cores
    boundaries = []
    for number, cache in enumerate(machine['caches']):
        held = -(-threads // cache['shared_by']) * cache['bytes']
        boundaries.append((cache['name'], held, 1e9 * _bandwidth(machine, number + 1, threads)))
    return 1e9 * peak, boundaries


def _bandwidth(machine: Mapping[str, Any], boundary: int, threads: int) -> float:
    """GB/s over a boundary for so many cores together."""
    one, every = machine['bandwidth_one_gbps'][boundary], machine['bandwidth_all_gbps'][boundary]
    cores = machine['cores']
    if threads <= 1 or cores == 1:
        return one
    return one + (every - one) * (min(threads, cores) - 1) / (cores - 1)


def _check_bound(data: Mapping[str, Any]) -> list[str]:
    bound, work = data['bound'], data['work']
    peak, boundaries = _rates(data['assumes'])
    times = {'compute': work['algorithm'] / peak} if peak else {}
    held_bytes = {name: held for name, held, _ in boundaries}
    times |= {name: max(work['bytes'] - held, 0) / rate for name, held, rate in boundaries}
    for name, held in held_bytes.items():
        _same(f'bytes held inside {name}', bound['held_bytes'][name], held)
    if set(times) != set(bound['times_s']):
        raise CheckError(f'the certificate bounds {sorted(bound["times_s"])}, not {sorted(times)}')
    for name, seconds in times.items():
        _same(f'seconds by {name}', bound['times_s'][name], seconds)
    _same('the bound', bound['seconds'], max(times.values()))
    if not math.isclose(times[bound['by']], max(times.values()), rel_tol=TOLERANCE):
        raise CheckError(f'the certificate says that {bound["by"]} binds; another takes longer')
    direct = dict(times)
    if peak:
        direct['compute'] = work['needed'] / peak
    _same('the bound of direct kernels', bound['direct_s'], max(direct.values()))
    return [f'no kernel of the algorithm takes less than {_us(bound["seconds"])} ({bound["by"]})']


def _check_gap(data: Mapping[str, Any]) -> list[str]:
    time, gap, bound = data['time'], data['gap'], data['bound']['seconds']
    seconds = time['predicted_s']
    _same('the sum of the predicted parts', seconds, math.fsum(s for _, s in time['parts_s']))
    if time['samples_ms']:
        seconds = statistics.median(time['samples_ms']) / 1e3
    _same('the time', time['seconds'], seconds)
    if seconds < bound * (1 - TOLERANCE):
        raise CheckError(
            f'the time of {_us(seconds)} is below the bound of {_us(bound)}: the machine can do '
            f'more than its file says, so measure it again'
        )
    _same('the gap', gap['seconds'], seconds - bound)
    _same("the gap's share", gap['share'], 1 - bound / seconds)
    total = math.fsum(s for _, s in gap['parts_s'])
    if abs(total - gap['seconds']) > TOLERANCE * seconds:
        raise CheckError(f"the gap's parts add up to {total!r}, not to {gap['seconds']!r}")
    how = 'measured' if time['samples_ms'] else 'predicted (the model, unchecked)'
    return [
        f'the {how} time of {_us(seconds)} is {_us(gap["seconds"])} above the bound; its parts add '
        f'up'
    ]


def _us(seconds: float) -> str:
    return f'{1e6 * seconds:.2f} us'


# --- data movement: posynomials of the tile sizes, and weak duality

Posynomial = dict[tuple[int, ...], Fraction]  # exponents -> coefficient


def _times(a: Posynomial, b: Posynomial) -> Posynomial:
    made: Posynomial = {}
    for (p, x), (q, y) in itertools.product(a.items(), b.items()):
        powers = tuple(i + j for i, j in zip(p, q, strict=True))
        made[powers] = made.get(powers, Fraction(0)) + x * y
    return made


def _plus(*parts: Posynomial) -> Posynomial:
    made: Posynomial = {}
    for part in parts:
        for powers, x in part.items():
            made[powers] = made.get(powers, Fraction(0)) + x
    return made


class _Tiling:
    """Sizes of tiles, level by level, as posynomials in the tile sizes of the caches."""

    def __init__(self, movement: Mapping[str, Any], schedule: Mapping[str, Any]) -> None:
        self.stage = movement['stage']
        self.sizes: dict[str, int] = movement['part']
        (_, _, tile), *levels = schedule['levels']
        self.unit: dict[str, int] = dict(map(tuple, tile))
        self.orders = [movement['register_order'], *(order for _, order, _ in levels)]
        self.reg = {d: min(self.unit[d], s) for d, s in self.sizes.items()}
        whole = movement['whole']
        self.names = [d for d, s in self.sizes.items() if d not in whole and s > self.reg[d]]
        self.caches = len(levels)
        self.width = self.caches * len(self.names)

    def number(self, value: Fraction | int) -> Posynomial:
        return {(0,) * self.width: Fraction(value)}

    def tile(self, level: int, dim: str, power: int = 1) -> Posynomial:
        """Level 0 is registers, 1 the first cache; beyond the last: all that a thread owns."""
        if 0 < level <= self.caches and dim in self.names:
            at = (level - 1) * len(self.names) + self.names.index(dim)
            return {tuple(power * (i == at) for i in range(self.width)): Fraction(1)}
        size = Fraction(self.reg[dim] if level == 0 else self.sizes[dim])
        return self.number(size**power)

    def turns(self, level: int, dim: str) -> bool:
        """Whether there is a loop over tiles of this level: more than one inside the next."""
        return self.tile(level, dim) != self.tile(level + 1, dim)

    def words(self, terms: Sequence, sizes: Mapping[str, Posynomial]) -> Posynomial:
        """Distinct values of an index over a tile: p*A + q*(B - p) where B is a number."""
        zero = (0,) * self.width
        if all(set(sizes[n]) == {zero} for n, _ in terms):
            plain = {n: int(sizes[n][zero]) for n, _ in terms}
            return self.number(len(_values(terms, 0, plain)))
        if len(terms) == 1:
            return sizes[terms[0][0]]
        if len(terms) > 2:
            raise CheckError(f'an index of {len(terms)} dimensions has no posynomial here')
        (a, c1), (b, c2) = terms
        if set(sizes[b]) != {zero}:
            (a, c1), (b, c2) = (b, c2), (a, c1)
        common = math.gcd(c1, c2)
        p, q = c1 // common, c2 // common
        if set(sizes[b]) != {zero}:
            if self.sizes[b] <= p or self.sizes[a] <= q:  # it never overlaps
                return _times(sizes[a], sizes[b])
            raise CheckError(f'tiles of {a} and {b} overlap, which is not a posynomial')
        fixed = sizes[b][zero]
        if fixed <= p:
            return _times(sizes[a], sizes[b])
        return _plus(_times(sizes[a], self.number(p)), self.number(q * (fixed - p)))

    def footprint(self, index: Sequence, level: int) -> Posynomial:
        made = self.number(1)
        for terms, _ in index:
            made = _times(made, self.words(terms, {n: self.tile(level, n) for n, _ in terms}))
        return made

    def volume(self, index: Sequence, level: int, order: Sequence[str]) -> Posynomial:
        """Words of one access over the boundary that fills `level`, for all of the part.

        Loops inside R, the innermost that turns and moves the access, leave its words in place;
        along R only new words come, but for registers; every other loop starts over.
        """
        present = {n for terms, _ in index for n, _ in terms}
        turning = [d for d in order if self.turns(level, d)]
        moving = [d for d in turning if d in present]
        r = moving[-1] if moving else None
        inside = set(order[order.index(r) + 1 :]) if r else set(order)
        if sum(len(terms) for terms, _ in index) > len(present):
            raise CheckError('an index that names a dimension twice has no volume here')

        def outer(dim: str) -> bool:  # counted by outer tiles: what happens inside does not matter
            return dim in inside or not self.turns(level, dim)

        made = self.number(1)
        for dim in order:
            if dim not in present:
                at = level + 1 if outer(dim) else level
                made = _times(made, _times(self.number(self.sizes[dim]), self.tile(at, dim, -1)))
        for terms, _ in index:
            sizes = {}
            for dim, _ in terms:
                swept = dim == r and level > 0
                at = level + 1 if swept or outer(dim) else level
                sizes[dim] = self.tile(at, dim)
                made = _times(made, _times(self.number(self.sizes[dim]), self.tile(at, dim, -1)))
            made = _times(made, self.words(terms, sizes))
        return made


def _logs(terms: Posynomial, x: Sequence[float], scale: float) -> tuple[float, list[float]]:
    """log of a posynomial over `scale` at x = log tile, and its gradient."""
    if any(c <= 0 for c in terms.values()):
        raise CheckError('a data volume has a negative term, so that the bound would not hold')
    parts = {
        p: float(c) * math.exp(math.fsum(i * v for i, v in zip(p, x, strict=True)))
        for p, c in terms.items()
    }
    total = math.fsum(parts.values())
    slope = [
        math.fsum(p[i] * value for p, value in parts.items()) / total for i in range(len(x))
    ]  # fmt: skip
    return math.log(total / scale), slope


def _check_movement(data: Mapping[str, Any]) -> list[str]:
    movement, assumes = data['movement'], data['assumes']
    machine, tiling = assumes['machine'], _Tiling(movement, data['schedule'])
    ways = dict(map(tuple, data['schedule']['parallel']))
    threads = math.prod(ways.values())
    _check_part(data, tiling, ways)
    caches, dims = tiling.caches, len(tiling.names)
    if caches != len(machine['caches']):
        raise CheckError(f'{caches} loop orders for {len(machine["caches"])} caches')
    accesses = [tiling.stage['write'], *tiling.stage['reads']]
    x = [math.log(tile[d]) for tile in movement['tiles'] for d in tiling.names]
    rooms, speeds = _room(machine, threads), _speeds(machine, threads)
    times, fills = [], []
    for level in range(caches + 1):
        order = tiling.orders[level]
        if sorted(order) != sorted(tiling.sizes):
            raise CheckError(f'loop order {order} does not name every dimension once')
        moved = [tiling.volume(a[1], level, order) for a in accesses]
        moved[0] = _times(moved[0], tiling.number(2 if tiling.stage['combiner'] else 1))
        times.append(_logs(_plus(*moved), x, speeds[level]))
        if level:
            held = _plus(*(tiling.footprint(a[1], level) for a in accesses))
            fills.append(_logs(held, x, rooms[level - 1]))
    for level, (value, _) in enumerate(times):
        _same(f'seconds over boundary {level}', movement['times_s'][level], math.exp(value))
    for level, (value, _) in enumerate(fills):
        _same(f'the fill of cache {level}', movement['fills'][level], math.exp(value))
    attained = math.exp(max(value for value, _ in times))
    if max((value for value, _ in fills), default=0.0) > FEASIBLE:
        raise CheckError('the tiles of the certificate do not fit their caches')
    _same('seconds of the tiles', movement['attained_s'], attained)
    bound = _dual(movement['weights'], times, fills, x, tiling, dims)
    _same('the bound on data movement', movement['bound_s'], min(math.exp(bound), attained))
    near = attained / movement['bound_s'] - 1
    return [
        f"the solver's tiles move their data in {_us(attained)}, and by weak duality none do in "
        f'less than {_us(movement["bound_s"])}, with these loop orders and this register tile: '
        f'optimal within {near:.2g}'
    ]


def _dual(
    weights: Mapping[str, Any], times: Sequence, fills: Sequence, x: list[float], tiling: _Tiling,
    dims: int,
) -> float:  # fmt: skip
    """The logarithm of the bound: the Lagrangian's tangent at x, at its least over the box."""
    on_time, on_fill, on_nest = weights['times'], weights['fills'], weights['nest']
    given = [*on_time, *on_fill, *itertools.chain(*on_nest)]
    if any(not w >= 0 for w in given) or not math.isclose(sum(on_time), 1, rel_tol=1e-12):
        raise CheckError('weights of times must add up to 1, and none may be negative')
    if len(on_time) != len(times) or len(on_fill) != len(fills) or len(on_nest) != len(fills) - 1:
        raise CheckError('the certificate has another number of weights than of constraints')
    linear = [0.0] * len(x)
    for level, row in enumerate(on_nest):
        for at, weight in enumerate(row):
            linear[level * dims + at] += weight
            linear[(level + 1) * dims + at] -= weight
    rows = [*zip(on_time, times, strict=True), *zip(on_fill, fills, strict=True)]
    value = math.fsum(
        [w * v for w, (v, _) in rows] + [c * v for c, v in zip(linear, x, strict=True)]
    )
    slope = [c + math.fsum(w * g[i] for w, (_, g) in rows) for i, c in enumerate(linear)]
    names = tiling.names * (len(x) // max(dims, 1))
    for at, (name, s) in enumerate(zip(names, slope, strict=True)):
        low, high = math.log(tiling.reg[name]), math.log(tiling.sizes[name])
        value += min(s * (low - x[at]), s * (high - x[at]))
    return value


def _check_part(data: Mapping[str, Any], tiling: _Tiling, ways: Mapping[str, int]) -> None:
    """The stage computes what the group does, and a thread's part is the largest of its cut."""
    main, stage = main_stage(data['group']), tiling.stage
    if _points(main) != _points(stage) or len(main['reads']) != len(stage['reads']):
        raise CheckError('the stage whose tiles were solved for is not the one of the group')
    for mine, other in zip(
        (main['write'], *main['reads']), (stage['write'], *stage['reads']), strict=True
    ):  # fmt: skip
        counts = [
            math.prod(
                len(_values(terms, 0, {n: s for n, s, _ in one['dims']})) for terms, _ in access[1]
            )
            for access, one in ((mine, main), (other, stage))
        ]
        if mine[0] != other[0] or counts[0] != counts[1]:
            raise CheckError(f'the stage whose tiles were solved for reads another {mine[0]}')
    for name, size, _ in stage['dims']:
        count, units = ways.get(name, 1), -(-size // tiling.unit[name])
        cuts = [min(units * i // count * tiling.unit[name], size) for i in range(count + 1)]
        _same(f'the part of {name}', tiling.sizes[name], max(_steps(cuts)))


def _steps(cuts: Iterable[int]) -> list[int]:
    return [b - a for a, b in itertools.pairwise(cuts)]


def _room(machine: Mapping[str, Any], threads: int) -> list[float]:
    """Words of every cache that a thread may fill."""
    return [
        MARGIN * (c['usable_bytes'] // min(max(threads, 1), c['shared_by'])) / 4
        for c in machine['caches']
    ]


def _speeds(machine: Mapping[str, Any], threads: int) -> list[float]:
    """Words a second of a thread over every boundary, registers first."""
    count = len(machine['caches']) + 1
    return [_bandwidth(machine, b, threads) / threads * 1e9 / 4 for b in range(count)]
