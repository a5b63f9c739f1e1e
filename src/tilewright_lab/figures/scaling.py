"""Does cost grow as the work grows? Time against batch, channels and image size.

Goes in: a machine and a number of threads. Comes out: the measured time of the best kernel at every
size of three sweeps, for a 3x3 and a 1x1 convolution, and how far each point is from the trend of
its neighbours. A kernel that falls off a cliff at some size (a cache, a page, a tail) shows up as a
point that is slower than its neighbours say.

The trend is local and robust: the nanoseconds per multiply-add of a point are compared with a line
through its nearest neighbours in the logarithms of both, the point itself left out (Theil and Sen:
the median of the slopes of all pairs). Local, since small problems pay for the call and large ones
for memory, so that no one line holds for a whole sweep; robust, since a neighbour may be the one
that is off. Points that are off are measured again, from nothing. Beside a point that is off stand
the facts that may explain it: the same deviation of the predicted time, the algorithm, the share of
the bound.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from tilewright.errors import InputError
from tilewright.machine.machine import Machine
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.specs import parse_conv
from tilewright.pipeline import optimize
from tilewright.store.records import Store, open_store
from tilewright.targets.plan import Plan
from tilewright_lab.figures.figures import Options, place_of
from tilewright_lab.figures.pictures import aligned, canvas, save

TOP = 3
LIMIT = 0.15
NEIGHBOURS = 4
FILTERS = (3, 1)
# What a sweep changes, and the sizes that stay: every one passes through layers of real networks.
SWEEPS = {
    'batch': (1, 2, 4, 8, 16, 32, 64),
    'channels': (16, 32, 64, 128, 256, 512, 1024),
    'image': (7, 14, 28, 56, 112, 224, 512),
}
FIXED = {
    'batch': {'channels': 64, 'image': 28},
    'channels': {'batch': 1, 'image': 28},
    'image': {'batch': 1, 'channels': 64},
}


@dataclass(frozen=True, slots=True)
class Point:
    """One size of one sweep, measured."""

    sweep: str
    filter: int
    size: int
    label: str
    multiply_adds: int
    time_ms: float
    predicted_ms: float
    percent_of_bound: float
    schema: str
    spread: float | None = None

    @property
    def series(self) -> str:
        return f'{self.filter}x{self.filter}, {self.sweep}'

    @property
    def ns_per_multiply_add(self) -> float:
        return 1e6 * self.time_ms / self.multiply_adds

    @property
    def predicted_ns_per_multiply_add(self) -> float:
        return 1e6 * self.predicted_ms / self.multiply_adds


def problems() -> Iterator[tuple[str, int, int, Group]]:
    """(sweep, filter, size, group) of every point, sweep by sweep."""
    for taps in FILTERS:
        for sweep, sizes in SWEEPS.items():
            for size in sizes:
                wanted = FIXED[sweep] | {sweep: size}
                image, channels = wanted['image'], wanted['channels']
                group = conv2d(
                    n=wanted['batch'], c=channels, k=channels, h=image, w=image, r=taps, s=taps,
                    pad=taps // 2,
                )  # fmt: skip
                yield sweep, taps, size, group


def run(options: Options) -> dict[str, Any]:
    """Measure all points, or read those of an earlier run; comes out: points with their trend."""
    if options.data is not None:
        earlier = _read(options.data)
        return earlier | {'points': evaluate([_point(entry) for entry in earlier['points']])}
    if options.machine is None:
        raise InputError('scaling needs a machine to measure on; leave out --machine for this host')
    wanted = list(problems())
    options.report.plan(len(wanted))
    points: list[Point] = []
    interrupted = False
    with open_store() as store:
        try:
            for sweep, taps, size, group in wanted:
                options.report.begin(f'{taps}x{taps}, {sweep} {size}')
                plan = _measured(group, options, store)
                if plan.best.time_ms is None:
                    options.report.say(f'no candidate for {group.label} worked')
                else:
                    points.append(point_of(sweep, taps, size, plan))
                options.report.finish()
            points = _again(points, options)
        except KeyboardInterrupt:
            interrupted = True
        kept = '' if store.path is None else place_of(store.path)
    return _data(options.machine, options, points, len(wanted), interrupted, kept)


def _measured(group: Group, options: Options, store: Store) -> Plan:
    return optimize(
        group, options.machine, TOP, True, options.threads, store=store, seed=options.seed
    )


def _again(points: list[Point], options: Options) -> list[Point]:
    """The points, with those that are off the trend measured again from nothing.

    A cliff is there twice; a disturbance of the machine is not. The lower time counts, since
    disturbances only add to it.
    """
    off = {entry['label'] for entry in evaluate(points) if entry['flagged']}
    found = []
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store(Path(folder) / 'again.sqlite') as store,
    ):
        for point in points:
            if point.label in off:
                options.report.say(f'{point.series} {point.size} is off the trend: once more')
                plan = _measured(parse_conv(point.label), options, store)
                if plan.best.time_ms is not None and plan.best.time_ms < point.time_ms:
                    point = point_of(point.sweep, point.filter, point.size, plan)
            found.append(point)
    return found


def point_of(sweep: str, taps: int, size: int, plan: Plan) -> Point:
    """[Plan] -> [Point] of its best candidate, which must have been timed."""
    best = plan.best
    assert best.time_ms is not None
    return Point(
        sweep, taps, size, plan.group.label, plan.group.flops // 2, best.time_ms,
        1e3 * best.prediction.seconds, 100 * plan.algorithm_bound_ms / best.time_ms,
        best.schedule.schema, best.measurement.spread if best.measurement else None,
    )  # fmt: skip


def _data(
    machine: Machine, options: Options, points: list[Point], wanted: int, interrupted: bool,
    kept: str,
) -> dict[str, Any]:  # fmt: skip
    return {
        'figure': options.name, 'machine': machine.to_json(), 'threads': options.threads,
        'seed': options.seed, 'data': kept, 'limit': LIMIT, 'interrupted': interrupted,
        'complete': len(points) == wanted, 'points': evaluate(points),
    }  # fmt: skip


def evaluate(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Every point with the trend of its series at its place, and how far it is off, as shares.

    `off` above 0 is slower than the trend. `predicted_off` is the same of the predicted times:
    where it agrees, the model knows why.
    """
    found = []
    for series in dict.fromkeys(p.series for p in points):
        members = [p for p in points if p.series == series]
        sizes = [float(p.multiply_adds) for p in members]
        measured = [p.ns_per_multiply_add for p in members]
        predicted = [p.predicted_ns_per_multiply_add for p in members]
        for i, point in enumerate(members):
            trend = trend_at(i, sizes, measured)
            expected = trend_at(i, sizes, predicted)
            off = None if trend is None else measured[i] / trend - 1
            found.append(
                asdict(point)
                | {
                    'series': series,
                    'ns_per_multiply_add': measured[i],
                    'trend_ns_per_multiply_add': trend,
                    'off': off,
                    'predicted_off': None if expected is None else predicted[i] / expected - 1,
                    'flagged': off is not None and abs(off) > LIMIT,
                }
            )
    return found


def trend_at(index: int, sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """What the nearest others say of point `index`: a Theil-Sen line in logarithms.

    None for fewer than two others.
    """
    x, y = [math.log(s) for s in sizes], [math.log(v) for v in values]
    others = sorted((i for i in range(len(x)) if i != index), key=lambda i: abs(x[i] - x[index]))
    near = others[:NEIGHBOURS]
    slopes = [(y[b] - y[a]) / (x[b] - x[a]) for a, b in combinations(near, 2) if x[a] != x[b]]
    if not slopes:
        return None
    slope = statistics.median(slopes)
    return math.exp(statistics.median(y[i] + slope * (x[index] - x[i]) for i in near))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f'--data {path} cannot be read: {error}; name the JSON of reproduce scaling'
        ) from None
    if not isinstance(data, dict) or not isinstance(data.get('points'), list):
        raise InputError(f'--data {path} has no points; name the JSON of reproduce scaling')
    return data


def _point(entry: dict[str, Any]) -> Point:
    try:
        return Point(**{name: entry[name] for name in Point.__dataclass_fields__})
    except (KeyError, TypeError) as error:
        raise InputError(f'a point of the data cannot be read: {error!r}') from None


def text(data: dict[str, Any]) -> str:
    """A row for each point; those that are off the trend are marked."""
    rows = [['series', 'size', 'ms', 'ns/MAC', '% bound', 'off trend', 'model says', 'algorithm']]
    for point in data['points']:
        rows.append(
            [
                point['series'], str(point['size']), f'{point["time_ms"]:.3f}',
                f'{point["ns_per_multiply_add"]:.4f}', f'{point["percent_of_bound"]:.0f}',
                _share(point['off']) + (' !' if point['flagged'] else ''),
                _share(point['predicted_off']), point['schema'],
            ]
        )  # fmt: skip
    flagged = [p for p in data['points'] if p['flagged']]
    slower = sum(p['off'] > 0 for p in flagged)
    last = (
        f'{len(flagged)} of {len(data["points"])} points are more than {100 * data["limit"]:.0f}% '
        f'off the trend of their neighbours (!), {slower} of them slower'
    )
    return '\n'.join([*aligned(rows), last])


def _share(value: float | None) -> str:
    return '-' if value is None else f'{100 * value:+.0f}%'


def plot(data: dict[str, Any], path: Path) -> None:
    """Nanoseconds per multiply-add against size: a panel for each sweep, rings around flagged."""
    figure = canvas(12, 4)
    panels = figure.subplots(1, len(SWEEPS), sharey=True)
    for axes, sweep in zip(panels, SWEEPS, strict=True):
        for taps in FILTERS:
            points = [p for p in data['points'] if (p['sweep'], p['filter']) == (sweep, taps)]
            if not points:
                continue
            sizes = [p['size'] for p in points]
            values = [p['ns_per_multiply_add'] for p in points]
            (line,) = axes.plot(sizes, values, 'o-', label=f'{taps}x{taps}, measured')
            trend = [p['trend_ns_per_multiply_add'] or math.nan for p in points]
            axes.plot(sizes, trend, ':', color=line.get_color(), label='trend of neighbours')
            off = [p for p in points if p['flagged']]
            axes.plot(
                [p['size'] for p in off], [p['ns_per_multiply_add'] for p in off], 'o',
                markersize=14, fillstyle='none', color='red', linestyle='none',
            )  # fmt: skip
        fixed = ', '.join(f'{name} {size}' for name, size in FIXED[sweep].items())
        axes.set_title(f'{sweep} ({fixed})')
        axes.set_xscale('log', base=2)
        axes.set_yscale('log')
        axes.set_xlabel(sweep)
    panels[0].set_ylabel('ns per multiply-add')
    panels[0].legend()
    save(figure, path)
