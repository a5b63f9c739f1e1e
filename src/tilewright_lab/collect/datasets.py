"""Measured schedules to learn from: CNNOpt's published layout, and our own.

Goes in: a folder. Comes out: a `Data`: training problems, layers that are tested, what searches
propose of training problems, and what was left out of the files and why. Two layouts, found by what
the folder holds:

    CNNOpt's   dir_*/Reg.timesForProblemKxHxW_C_R.csv   every configuration of a layer
               dir_*/train_set*.csv, test_set*.csv      random problems, both to train on
               Columns of the RS kernel: K,H,W,C,R, outputs of a thread TK,TH,TW, threads BK (32
               lanes along k), BH,BW, CMult (split), Time in ms. Of the S kernel: K,H,W,C,R,
               TH,TW,TK, lanes WH,WW,WK, warps BH,BW,BK, Time. Case does not matter; a file without
               a head is known by the number of its columns. `st2` or `stride2` in a path: stride 2.
    ours       layers-KIND.csv.gz, train-KIND.csv.gz, proposed-KIND.csv.gz
               bench/results/h200/README.md

Lines that are not numbers, and times that are not above 0, are left out and counted; a file that
holds nothing else, or lacks a column, is refused, and so are files that disagree about the same
configurations, as those of two devices do. Repeated configurations count once, by the median
of their times. No training problem is one of the layers, whatever kernel it was measured with.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tilewright.errors import InputError
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.rank.counts import Array, Batch

Problem = tuple[int, int, int, int, int, int]  # k h w c r stride; h and w of the output
PROBLEM = ('k', 'h', 'w', 'c', 'r')
LEAST_ROWS = 20
LARGEST_LOSS = 0.5  # share of a file's lines that may be unreadable
# Two files are of one device if times of the same configurations, from so many on, differ by less
# than this factor in the middle.
SHARED, SAME_DEVICE = 5, 1.25
# Times below this share of what the products take at the peak of the GPU are impossible.
POSSIBLE = 0.5
# Names of the files' columns -> decisions; those that a file does not have are constant.
_RS = {'rk': 'tk', 'ry': 'th', 'rx': 'tw', 'tk': 'bk', 'wy': 'bh', 'wx': 'bw', 'split': 'cmult'}
_S = {
    'rk': 'tk', 'ry': 'th', 'rx': 'tw', 'tk': 'wk', 'ty': 'wh', 'tx': 'ww', 'wk': 'bk', 'wy': 'bh',
    'wx': 'bw',
}  # fmt: skip
_ONE = {
    'ty': 1, 'tx': 1, 'wk': 1, 'cb': 1, 'stages': 1, 'split': 1, 'join': 0,
}  # fmt: skip
_ORDER = ('rk', 'ry', 'rx', 'tk', 'ty', 'tx', 'wk', 'wy', 'wx', 'cb', 'stages', 'split', 'join')
_HEADS = {
    'rs': (*PROBLEM, 'tk', 'th', 'tw', 'bk', 'bh', 'bw', 'cmult', 'time'),
    's': (*PROBLEM, 'th', 'tw', 'tk', 'wh', 'ww', 'wk', 'bh', 'bw', 'bk', 'time'),
}
_OURS = re.compile(r'(layers|train|proposed)-([a-z]+)(?:-(\w+))?\.csv\.gz')


@dataclass(frozen=True)
class Measured:
    """Schedules of one problem and schema with their times."""

    problem: Problem
    batch: Batch
    seconds: Array = field(repr=False)

    @property
    def kind(self) -> str:
        tail = '' if self.batch.intrinsic == 'fma' else f'-{self.batch.intrinsic}'
        return self.batch.schema + tail

    def __len__(self) -> int:
        return len(self.seconds)

    def over(self, seconds: float) -> Measured | None:
        """The schedules that take at least as long; None where there are none."""
        rows = np.flatnonzero(self.seconds >= seconds)
        if len(rows) == len(self):
            return self
        if not len(rows):
            return None
        return replace(self, batch=self.batch.take(rows), seconds=self.seconds[rows])


@dataclass(frozen=True)
class Data:
    """What a folder holds. `notes`: what was left out, a sentence each. `proposed`: of training
    problems what searches propose, for models that searches ask; drawn otherwise than `train`.
    """

    train: tuple[Measured, ...]
    layers: tuple[Measured, ...]
    notes: tuple[str, ...]
    proposed: tuple[Measured, ...] = ()

    def of(self, kinds: Iterable[str], stride: int | None = None) -> Data:
        """The part with certain kinds of kernels, and a stride if one is given."""
        wanted = set(kinds)

        def part(sets: Iterable[Measured]) -> tuple[Measured, ...]:
            return tuple(
                m for m in sets
                if m.kind in wanted and (stride is None or m.problem[5] == stride)
            )  # fmt: skip

        found = {name: part(getattr(self, name)) for name in ('train', 'layers', 'proposed')}
        return replace(self, **found)

    @property
    def kinds(self) -> list[str]:
        return sorted({m.kind for m in (*self.train, *self.layers, *self.proposed)})


def rows_in(sets: Iterable[Measured]) -> int:
    return sum(len(m) for m in sets)


def digest_of(sets: Iterable[Measured]) -> str:
    """A hash of every configuration and time: what a model was trained on."""
    found = hashlib.sha256()
    for m in sorted(sets, key=lambda m: (m.problem, m.kind)):
        found.update(f'{m.problem} {m.kind} {list(m.batch.tiles)}'.encode())
        for column in (*m.batch.tiles.values(), m.seconds):
            found.update(np.ascontiguousarray(column, '<f8').tobytes())
    return found.hexdigest()


def read_data(folder: Path) -> Data:
    """[folder in one of the two layouts] -> [Data]"""
    if not folder.is_dir():
        raise InputError(f'{folder} is not a directory; name one with measured configurations')
    ours = sorted(p for p in folder.iterdir() if _OURS.fullmatch(p.name))
    theirs = sorted(folder.glob('*/*.csv'))
    if not ours and not theirs:
        raise InputError(
            f'{folder} holds no measured configurations: neither dir_*/*.csv as CNNOpt published '
            f'them nor layers-*.csv.gz; name another directory'
        )
    notes: list[str] = []
    sets = _read_ours(ours, notes) if ours else _read_theirs(theirs, notes)
    train, layers, proposed = (sets.get(name, []) for name in ('train', 'layers', 'proposed'))
    tested = {m.problem for m in layers}
    shared = [m for m in (*train, *proposed) if m.problem in tested]
    if shared:
        names = ', '.join(sorted({shape_text(m.problem) for m in shared}))
        notes.append(f'{rows_in(shared)} training rows of tested layers ({names}) are left out')
    kept, asked = (tuple(m for m in some if m.problem not in tested) for some in (train, proposed))
    return Data(kept, tuple(layers), tuple(notes), asked)


def shape_text(problem: Problem) -> str:
    k, h, w, c, r, stride = problem
    return f'{k}x{h}x{w} of {c} channels, {r}x{r}' + (f' stride {stride}' if stride > 1 else '')


def group_of(problem: Problem, pad: int = 0) -> Group:
    """The convolution with outputs h x w; without `pad` its input was padded before."""
    k, h, w, c, r, stride = problem
    height, width = (n * stride if pad else (n - 1) * stride + r for n in (h, w))
    return conv2d(c=c, h=height, w=width, k=k, r=r, s=r, stride=stride, pad=pad)


def _read_theirs(paths: Sequence[Path], notes: list[str]) -> dict[str, list[Measured]]:
    """Rows by the set that they belong to."""
    train: list[Measured] = []
    layers: list[Measured] = []
    sources: dict[tuple[Problem, str], list[tuple[Path, Measured]]] = {}
    for path in paths:
        with open(path, newline='', errors='replace') as file:
            lines = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
        schema, names, body = _headed(path, lines)
        numbers = _numbers(path, body, len(names), names.index('time'), notes)
        columns = dict(zip(names, numbers.T, strict=True))
        stride = 2 if re.search(r'st2|stride2', f'{path.parent.name}/{path.name}') else 1
        decisions = _RS if schema == 'rs' else _S
        tiles = {
            name: columns[decisions[name]] if name in decisions
            else np.full(len(numbers), _ONE[name])
            for name in _ORDER
        }  # fmt: skip
        into = layers if path.name.startswith('Reg.') else train
        problems = np.column_stack(
            [*(columns[name] for name in PROBLEM), np.full(len(numbers), stride)]
        )
        for m in _sets(problems, 0, schema, 'fma', tiles, columns['time'] * 1e-3):
            into.append(m)
            sources.setdefault((m.problem, m.kind), []).append((path, m))
    _check_one_device(sources.values())
    return {'train': _merged(train), 'layers': layers}


def _headed(path: Path, lines: list[list[str]]) -> tuple[str, tuple[str, ...], list[list[str]]]:
    """(kernel, names of the columns, lines below the head)."""
    if not lines:
        raise InputError(f'{path} is empty; restore it or leave it out')
    first = tuple(cell.lower() for cell in lines[0])
    if _is_number(first[0]):
        for schema, head in _HEADS.items():
            if len(first) == len(head):
                return schema, head, lines
        raise InputError(
            f'{path} has {len(first)} columns and no head; the RS kernel has '
            f'{len(_HEADS["rs"])}, the S kernel {len(_HEADS["s"])}'
        )
    schema = 'rs' if 'cmult' in first else 's'
    missing = [name for name in _HEADS[schema] if name not in first]
    if missing:
        raise InputError(
            f'{path} lacks the columns {", ".join(name.upper() for name in missing)}; a file of '
            f'the {schema.upper()} kernel has {",".join(_HEADS[schema]).upper()}'
        )
    return schema, first, lines[1:]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _numbers(
    path: Path, body: Sequence[Sequence[str]], width: int, time: int, notes: list[str]
) -> Array:
    """The lines that are numbers, with whole ones for sizes, and a time above 0."""
    rows, garbled, slow = [], 0, 0
    for line in body:
        if len(line) != width or not all(_is_number(cell) for cell in line):
            garbled += 1
            continue
        row = [float(cell) for cell in line]
        sizes = row[:time] + row[time + 1 :]
        if any(value != int(value) or value < 0 for value in sizes) or row[time] <= 0:
            slow += 1
            continue
        rows.append(row)
    bad = garbled + slow
    if bad > LARGEST_LOSS * len(body) or not rows:
        raise InputError(
            f'{path}: {bad} of {len(body)} lines are no measurements (text, missing cells, sizes '
            f'that are not whole, times that are not above 0); restore the file or leave it out'
        )
    if bad:
        notes.append(
            f'{path.parent.name}/{path.name}: {garbled} of {len(body)} lines are not numbers and '
            f'{slow} have impossible sizes or times; they are left out'
        )
    return np.array(rows)


def _sets(
    problems: Array, pad: int, schema: str, intrinsic: str, tiles: Mapping[str, Array],
    seconds: Array,
) -> list[Measured]:  # fmt: skip
    """Rows by problem; repeated configurations count once."""
    found = []
    distinct, of = np.unique(problems.astype(int), axis=0, return_inverse=True)
    for number, shape in enumerate(distinct.tolist()):
        mine = np.flatnonzero(of.reshape(-1) == number)
        table = np.column_stack([column[mine] for column in tiles.values()]).astype(int)
        configurations, back = np.unique(table, axis=0, return_inverse=True)
        times = seconds[mine]
        back = back.reshape(-1)
        if len(configurations) < len(table):
            medians = [np.median(times[back == i]) for i in range(len(configurations))]
        else:
            medians = times[np.argsort(back)]
        k, h, w, c, r, stride = shape
        problem: Problem = (k, h, w, c, r, stride)
        columns = dict(zip(tiles, configurations.T, strict=True))
        batch = Batch(group_of(problem, pad), schema, intrinsic, columns)
        found.append(Measured(problem, batch, np.asarray(medians)))
    return found


def _check_one_device(sources: Iterable[Sequence[tuple[Path, Measured]]]) -> None:
    """Raise InputError where two files have other times of the same configurations."""
    ratios: dict[tuple[Path, Path], list[float]] = {}
    for found in sources:
        times = [(path, _by_configuration(m)) for path, m in found]
        for (first, one), (second, other) in itertools.combinations(times, 2):
            both = [one[key] / other[key] for key in one if key in other]
            ratios.setdefault((first, second), []).extend(both)
    for (first, second), both in ratios.items():
        factor = float(np.median(both)) if len(both) >= SHARED else 1.0
        if not 1 / SAME_DEVICE <= factor <= SAME_DEVICE:
            raise InputError(
                f'{first.parent.name}/{first.name} and {second.parent.name}/{second.name} have '
                f'{len(both)} configurations in common, and the times of the one are {factor:.2g} '
                f'times those of the other: they are of several devices; give each device a '
                f'folder of its own'
            )


def _by_configuration(m: Measured) -> dict[tuple, float]:
    rows = zip(*(column.tolist() for column in m.batch.tiles.values()), strict=True)
    return dict(zip(rows, m.seconds.tolist(), strict=True))


def possible(data: Data, machine: GpuMachine) -> Data:
    """[Data] without rows that are faster than the GPU can multiply; raises InputError where they
    are most of them.
    """
    few = data
    for name in ('train', 'layers', 'proposed'):
        kept = [m.over(POSSIBLE * least_seconds(m, machine)) for m in getattr(data, name)]
        few = replace(few, **{name: tuple(m for m in kept if m is not None)})
    total, left = (rows_in((*one.train, *one.layers, *one.proposed)) for one in (data, few))
    if left < (1 - LARGEST_LOSS) * total:
        raise InputError(
            f'{total - left} of {total} times are impossible: {machine.name} with '
            f'{1e-3 * machine.peak_gflops:.3g} TFLOP/s needs longer for the products alone; give '
            f'times in the unit of the layout, and the GPU that they were measured on'
        )
    if left == total:
        return data
    note = f'{total - left} rows are faster than {machine.name} can multiply; they are left out'
    return replace(few, notes=(*data.notes, note))


def least_seconds(m: Measured, machine: GpuMachine) -> float:
    """What the products of a problem take at the peak of a GPU; 0 for kernels that have fewer of
    them or multiply by other units.
    """
    if m.batch.intrinsic != 'fma' or m.batch.schema == 'winograd':
        return 0.0
    return m.batch.group.flops / (1e9 * machine.peak_gflops)


def _merged(sets: Iterable[Measured]) -> list[Measured]:
    """Sets of one problem and kind from several files, as one."""
    by_problem: dict[tuple, list[Measured]] = {}
    for m in sets:
        by_problem.setdefault((m.problem, m.kind), []).append(m)
    return [
        members[0] if len(members) == 1 else _joined(members) for members in by_problem.values()
    ]


def _joined(members: Sequence[Measured]) -> Measured:
    first = members[0]
    tiles = {
        name: np.concatenate([m.batch.tiles[name] for m in members]) for name in first.batch.tiles
    }
    seconds = np.concatenate([m.seconds for m in members])
    table = np.tile(np.array(first.problem), (len(seconds), 1))
    again = _sets(table, 0, first.batch.schema, first.batch.intrinsic, tiles, seconds)[0]
    return replace(again, batch=replace(again.batch, group=first.batch.group))


def _read_ours(paths: Sequence[Path], notes: list[str]) -> dict[str, list[Measured]]:
    """Rows by the set that they belong to."""
    sets: dict[str, list[Measured]] = {}
    for path in paths:
        which, schema, intrinsic = _OURS.fullmatch(path.name).groups()  # pyright: ignore
        try:
            text = gzip.decompress(path.read_bytes()).decode()
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise InputError(f'{path} cannot be read ({error}); restore it') from None
        rows = list(csv.reader(io.StringIO(text)))
        names = rows[0] if rows else []
        needed = (*PROBLEM, 'stride', 'pad', 'status', 'time_us')
        missing = [name for name in needed if name not in names]
        if missing:
            raise InputError(f'{path} lacks the columns {", ".join(missing)}; measure it again')
        status, time = names.index('status'), names.index('time_us')
        decisions = names[names.index('pad') + 1 : status]
        body = [
            [*row[:status], row[time]] for row in rows[1:] if row[status : status + 1] == ['ok']
        ]
        if not body:
            notes.append(f'{path.name}: no row worked; the file is left out')
            continue
        numbers = _numbers(path, body, status + 1, status, notes)
        columns = dict(zip([*names[:status], 'time_us'], numbers.T, strict=True))
        into = sets.setdefault(which, [])
        for pad in np.unique(columns['pad']):
            mine = columns['pad'] == pad
            problems = np.column_stack([columns[name][mine] for name in (*PROBLEM, 'stride')])
            tiles = {name: columns[name][mine] for name in decisions}
            seconds = columns['time_us'][mine] * 1e-6
            into += _sets(problems, int(pad), schema, intrinsic or 'fma', tiles, seconds)
    return sets
