"""Measurements of searches as rows to learn from: out of the store, or out of a file.

Goes in: a store that searches wrote into (each record has what rank/rows.py says of its schedule),
or a .csv.gz. Comes out: `StoredRows`, and a `Table` for training: rows of one group compete. Rows
of other features than today's, of other machines, or without a time are left out and counted.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.errors import InputError
from tilewright.rank.features import NAMES, VERSION
from tilewright.rank.rows import PROBLEM
from tilewright.store.records import Store
from tilewright_lab.train.forest import Table

GPU_THREADS = 0  # what the store calls threads is a matter of CPUs
_HEAD = ('machine', 'version', 'group', 'kind', *PROBLEM, 'time_us', 'base', 'predicted')


@dataclass(frozen=True)
class StoredRows:
    """Columns. `base` and `predicted`: logarithms of the two analytical times, in seconds.

    left_out   rows that are not here: how many, by why
    """

    machine: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    problem: tuple[tuple[int, ...], ...] = ()
    seconds: tuple[float, ...] = ()
    base: tuple[float, ...] = ()
    predicted: tuple[float, ...] = ()
    x: tuple[tuple[float, ...], ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()

    def __len__(self) -> int:
        return len(self.seconds)

    def __add__(self, other: StoredRows) -> StoredRows:
        return StoredRows(
            self.machine + other.machine, self.group + other.group, self.kind + other.kind,
            self.problem + other.problem, self.seconds + other.seconds, self.base + other.base,
            self.predicted + other.predicted, self.x + other.x, self.left_out + other.left_out,
        )  # fmt: skip

    @property
    def counted(self) -> Counter[str]:
        """Rows of each kind of kernels."""
        return Counter(self.kind)

    def table(self) -> Table:
        if len(set(self.machine)) > 1:
            raise InputError(
                f'the rows are of several devices ({", ".join(sorted(set(self.machine)))}); a '
                f'model is of one: name it by --machine'
            )
        groups = sorted(set(self.group))
        if len(groups) < 2:
            raise InputError(
                f'the rows are of {len(groups)} problem{"s" * (len(groups) != 1)}; a model needs '
                f'several to be validated: measure more'
            )
        number = {digest: i for i, digest in enumerate(groups)}
        group = np.array([number[digest] for digest in self.group])
        log_seconds = np.log(np.array(self.seconds))
        best = np.full(len(groups), np.inf)
        np.minimum.at(best, group, log_seconds)
        shapes = dict(zip(self.group, self.problem, strict=True))
        return Table(
            np.array(self.x, np.float32), np.array(self.base), log_seconds, group,
            np.exp(log_seconds - best[group]), tuple(shapes[digest] for digest in groups),
        )  # fmt: skip


def _of(rows: Sequence[tuple], left_out: Counter[str]) -> StoredRows:
    columns = zip(*rows, strict=True) if rows else [()] * 8
    return StoredRows(*map(tuple, columns), left_out=tuple(sorted(left_out.items())))


def rows_in_store(store: Store, machines: Collection[str] | None) -> StoredRows:
    """What searches have measured on a machine, by any of its names; None: on all of them."""
    rows, left_out = [], Counter[str]()
    for record in store.every(GPU_THREADS):
        said, time = record.features.get('learned') or {}, record.measurement.median_ms
        if not said or (machines is not None and said['machine'] not in machines):
            left_out['without features, or of another machine,'] += 1
        elif said['version'] != VERSION or len(said['x']) != len(NAMES):
            left_out['of other features'] += 1
        elif time is None or not 0 < time < math.inf:
            left_out['without a time'] += 1
        else:
            rows.append(
                (
                    said['machine'], record.group_digest, said['kind'], tuple(said['problem']),
                    1e-3 * time, said['base'], said['predicted'], tuple(said['x']),
                )
            )  # fmt: skip
    return _of(rows, left_out)


def write_rows(path: Path, rows: StoredRows) -> None:
    text = io.StringIO()
    out = csv.writer(text, lineterminator='\n')
    out.writerow([*_HEAD, *NAMES])
    for machine, group, kind, problem, seconds, base, predicted, x in zip(
        rows.machine, rows.group, rows.kind, rows.problem, rows.seconds, rows.base,
        rows.predicted, rows.x, strict=True,
    ):  # fmt: skip
        numbers = (f'{v:.6g}' for v in (1e6 * seconds, base, predicted, *x))
        out.writerow([machine, VERSION, group, kind, *problem, *numbers])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def read_rows(path: Path) -> StoredRows:
    """[file of `write_rows`] -> [StoredRows]"""
    try:
        lines = list(csv.reader(io.StringIO(gzip.decompress(path.read_bytes()).decode())))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f'{path} cannot be read ({error}); restore it') from None
    head = lines[0] if lines else []
    missing = [name for name in (*_HEAD, *NAMES) if name not in head]
    if missing:
        raise InputError(f'{path} lacks the columns {", ".join(missing)}; measure it again')
    at = {name: head.index(name) for name in (*_HEAD, *NAMES)}
    rows, left_out = [], Counter[str]()
    for line in lines[1:]:
        try:
            seconds = 1e-6 * float(line[at['time_us']])
            numbers = [float(line[at[name]]) for name in ('base', 'predicted', *NAMES)]
            problem = tuple(int(line[at[name]]) for name in PROBLEM)
            version = int(line[at['version']])
        except (ValueError, IndexError):
            left_out['without numbers'] += 1
            continue
        if version != VERSION:
            left_out['of other features'] += 1
        elif not 0 < seconds < math.inf or not all(map(math.isfinite, numbers)):
            left_out['with impossible times'] += 1
        else:
            words = (line[at[name]] for name in ('machine', 'group', 'kind'))
            rows.append((*words, problem, seconds, numbers[0], numbers[1], tuple(numbers[2:])))
    return _of(rows, left_out)
