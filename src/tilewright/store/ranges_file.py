"""`.tw` files of networks for ranges of sizes: programs by their sizes, schedules.

Goes in: `SavedRanges`. Comes out: a file of the same format as that of one size
(store/network_file.py), with `ranges` and `families` in its header instead of a program; from it,
the same again. Arrays that several families have are written once. Every program that is made of a
family is checked as that of a file of one size, when it is made (`checked_program`).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.family import ProgramFamily
from tilewright.graph.graph import Value
from tilewright.graph.program import Program
from tilewright.graph.program_json import values_of
from tilewright.graph.ranges import Point, Ranges
from tilewright.ops.group import Group
from tilewright.schedule.choice import Choice
from tilewright.store.network_checks import (
    check_choices,
    check_group,
    check_plain,
    check_program,
    check_whole,
)
from tilewright.store.network_file import (
    RefusedError,
    Saved,
    algorithm_of,
    array_at,
    read_file,
    saved_of,
    site_of,
    stored_type,
    write_file,
)


@dataclass(frozen=True, slots=True)
class Anchor:
    """A point at which schedules were searched: the choice for each group of a family."""

    point: Point
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Certificate:
    """How much longer than with a plan of its own a size may take.

    loss     the largest predicted share, at the point `at`, of `points` that were looked at
    unseen   by how much kernels differ that the model prices alike
    """

    loss: float
    at: Point
    points: int
    unseen: float = 0.0

    @property
    def within(self) -> float:
        """What is certified."""
        return (1 + self.loss) * (1 + self.unseen) - 1

    def __str__(self) -> str:
        return (
            f'within {max(1, math.ceil(100 * self.within - 1e-6))}% of a plan of its own: '
            f'{100 * self.loss:.1f}% predicted at {self.points} sizes, {100 * self.unseen:.0f}% '
            f'for what the model does not see'
        )

    def to_json(self) -> dict:
        return {
            'within': self.within, 'loss': self.loss, 'at': list(self.at), 'points': self.points,
            'unseen': self.unseen,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping) -> Certificate:
        return cls(
            float(data['loss']), tuple(map(int, data['at'])), int(data['points']),
            float(data['unseen']),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shown:
    """Groups, by number, and points whose sources show all that libraries have to be told.

    version   of the code that wrote these sources: another may write others
    """

    version: str
    points: tuple[tuple[int, Point], ...]

    def to_json(self) -> dict:
        return {'version': self.version, 'points': [[n, *point] for n, point in self.points]}

    @classmethod
    def from_json(cls, data: Mapping) -> Shown:
        return cls(str(data['version']), tuple((n, tuple(point)) for n, *point in data['points']))


@dataclass(frozen=True, slots=True)
class PlannedFamily:
    """A family and the anchors whose schedules its points have."""

    family: ProgramFamily
    anchors: tuple[Anchor, ...]
    certificate: Certificate = Certificate(0.0, (), 0)
    shown: Shown | None = None

    def groups(self, program: Program) -> dict[int, Group]:
        """The groups of one of its programs by their number in the family."""
        return {
            entry['group']: task.group
            for entry, task in zip(self.family.body['tasks'], program.tasks, strict=True)
        }


@dataclass(frozen=True)
class SavedRanges:
    """What a file holds, as `network_file.Saved` for one size."""

    ranges: Ranges
    families: tuple[PlannedFamily, ...]
    machine: Any
    threads: int
    max_rel_err: float
    algorithm: str = 'auto'
    target: str = 'cpu'

    @property
    def choices(self) -> dict[str, Choice]:
        """Every choice by the digest of its schedule."""
        return {
            choice.schedule.digest: choice
            for one in self.families
            for anchor in one.anchors
            for choice in anchor.choices
        }


def checked_program(family: ProgramFamily, point: Point) -> Program:
    """The program of a point, whoever wrote the family."""
    program = family.at(point)
    for group in {id(task.group): task.group for task in program.tasks}.values():
        check_group(group)
    check_program(program)
    return program


def write(path: str | os.PathLike[str], saved: SavedRanges) -> None:
    """Write a file; it appears under its name only when it is complete."""
    arrays: dict[str, np.ndarray] = {}
    numbers: dict[int, str] = {}  # by identity: families share arrays that are equal
    families = []
    for one in saved.families:
        values = values_of(_at_largest(one.family))
        held = []
        for name, array in one.family.constants.items():
            if id(array) not in numbers:
                numbers[id(array)] = str(len(arrays))
                kind = stored_type(values[name].dtype)
                arrays[numbers[id(array)]] = np.ascontiguousarray(array, kind)
            held.append([name, numbers[id(array)], list(array.shape), values[name].dtype])
        families.append(
            {
                'box': [[s.start, s.stop, s.step] for s in one.family.box],
                'program': one.family.body,
                'groups': [_plain(tree) for tree in one.family.groups],
                'arrays': held,
                'anchors': [
                    {'point': list(a.point), 'choices': [c.to_json() for c in a.choices]}
                    for a in one.anchors
                ],
                'certificate': one.certificate.to_json(),
                **({'shown': one.shown.to_json()} if one.shown else {}),
            }
        )
    about = {
        'machine': saved.machine.to_json(), 'threads': saved.threads,
        'max_rel_err': saved.max_rel_err, 'algorithm': saved.algorithm,
        'ranges': saved.ranges.to_json(), 'families': families,
    }  # fmt: skip
    write_file(path, about, arrays)


def _at_largest(family: ProgramFamily) -> Mapping:
    return family.body_at(family.largest)


def _plain(tree: Any) -> Any:
    """A group's JSON whose label may stand in a file."""
    if isinstance(tree, str):
        return re.sub(r'[^A-Za-z0-9_.+@:,=#>/ -]', '_', tree)
    if isinstance(tree, Mapping):
        return {k: _plain(v) if k in ('label', 'word') else v for k, v in tree.items()}
    return [_plain(item) for item in tree] if isinstance(tree, list) else tree


def read_any(path: str | os.PathLike[str]) -> Saved | SavedRanges:
    """Read a file of one size or of ranges; whatever is wrong with it is one sentence."""
    return read_file(
        path, lambda *held: _saved(*held) if 'ranges' in held[1] else saved_of(*held)
    )  # fmt: skip


def _saved(where: Path, header: dict, data: np.ndarray) -> SavedRanges:
    machine, threads, budget, target = site_of(where, header)
    if target != 'cpu':
        raise RefusedError(f'{where} holds ranges for target {target!r}; they are for the CPU')
    ranges = Ranges.from_json(header['ranges'])
    offsets = {item['name']: item['offset'] for item in header['constants']}
    families = tuple(_family(item, offsets, data) for item in header['families'])
    saved = SavedRanges(ranges, families, machine, threads, budget, algorithm_of(where, header))
    check_choices(saved.choices, target, threads)
    for one in families:
        if len(one.family.box) != len(ranges.box):
            raise ModelError('a family has other axes than its ranges')
        for point in (one.family.largest, tuple(sizes[0] for sizes in one.family.box)):
            groups = one.groups(checked_program(one.family, point))
            if any(len(a.choices) != len(groups) for a in one.anchors) or not one.anchors:
                raise ModelError('its groups have other choices than it says')
    return saved


def _family(item: dict, offsets: Mapping[str, int], data: np.ndarray) -> PlannedFamily:
    check_plain(item['groups'])
    check_plain(item['anchors'])
    constants = {
        name: array_at(data, offsets[number], Value(name, tuple(shape), dtype))
        for name, number, shape, dtype in item['arrays']
    }
    box = tuple(range(*bounds) for bounds in item['box'])
    family = ProgramFamily(box, item['program'], item['groups'], constants)
    anchors = []
    for anchor in item['anchors']:
        check_whole('an anchor', anchor['point'])
        choices = tuple(Choice.from_json(choice) for choice in anchor['choices'])
        anchors.append(Anchor(tuple(anchor['point']), choices))
    return PlannedFamily(
        family, tuple(anchors), Certificate.from_json(item['certificate']), _shown(family, item)
    )


def _shown(family: ProgramFamily, item: dict) -> Shown | None:
    """What a file says of it, if that can be."""
    if 'shown' not in item:
        return None
    check_plain(item['shown'])
    for entry in item['shown']['points']:
        check_whole('a source', entry)
        number, *point = entry
        if not 0 <= number < len(family.groups) or len(point) != len(family.box):
            raise ModelError(f'{entry} is not a group and a point of its family')
        if not family.holds(tuple(point)):
            raise ModelError(f'{point} is not a point of {family.box}')
    return Shown.from_json(item['shown'])
