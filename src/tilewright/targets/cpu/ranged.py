"""Kernels of a network for a range of sizes: few schedules, each built for many sizes at once.

[families]          -> anchors   -> [choices at some points]    as for one size, at few points
[choices]           -> certify   -> [more anchors, Certificate] by the model (certify.py)
[choices, points]   -> build     -> [libraries by their form]   kernels/cpu/sized.py
[point]             -> bind      -> [Network]                   no search, no compiler

At a point each group has the schedule of that anchor which the model predicts to be the fastest
there. Its tiles are cut to the sizes of the point.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tilewright.errors import CompilerError, ScheduleError
from tilewright.graph.memory import plan
from tilewright.graph.program import Program
from tilewright.graph.ranges import Box, Point
from tilewright.kernels.cpu.generate import compiler_flags, planned
from tilewright.kernels.cpu.nest import EVERY, part_extents
from tilewright.kernels.cpu.operand import packed_tile
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.kernels.cpu.schemas.chain.plan import tiled_stage
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.cpu.schemas.outer.plan import LARGE_BYTES, LEAST_TILES
from tilewright.kernels.cpu.sized import SizedSource, SourceAtSize, joined, read_source
from tilewright.machine.compiler import build
from tilewright.machine.machine import Machine
from tilewright.model.cpu.predict import predict
from tilewright.model.cpu.prediction import Prediction, bound_times
from tilewright.ops.core import core
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.runtime.cpu.loaded import Compiled
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.cpu.rooms import SharedMemory
from tilewright.runtime.measure import Progress
from tilewright.runtime.pool import usable_cores
from tilewright.schedule.choice import Choice
from tilewright.schedule.schedule import Level, Schedule
from tilewright.store.choices import code_version
from tilewright.store.network_checks import check_group
from tilewright.store.ranges_file import PlannedFamily, SavedRanges, Shown, checked_program
from tilewright.targets.cpu.choose import choose_every_size, source_of
from tilewright.targets.target import Report

SMALL = 4  # the first sizes of an axis, which are all looked at
LOOKED_AT = 9  # further sizes along a line at which sources are generated ahead
HALVED = 6  # the same of a line that is all there is: between them changes are found by halving
STAGGERED = 12  # sizes of an axis that are looked at beside others
LONG = 40  # sizes of an axis; of longer ones some along lines are looked at, of a line not all
FEW = 40  # points of a box that are all looked at
SHORT = 20_000  # characters of a source that is made quickly, and is looked at oftener
ENOUGH = 3  # points in a row at which kernels have to serve that were not made for them


def best_choice(one: PlannedFamily, number: int, group: Group, machine: Machine) -> Choice:
    """Of the anchors' choices for a group that which is predicted to be the fastest here."""
    return best_moved(one, number, group, machine)[0]


def best_moved(
    one: PlannedFamily, number: int, group: Group, machine: Machine
) -> tuple[Choice, Schedule]:
    """The same, and the schedule as its anchor has it."""
    threads = max(choice.schedule.threads for choice in one.anchors[0].choices)
    found = {
        moved.schedule.digest: (moved, anchor.choices[number].schedule)
        for anchor in reversed(one.anchors)
        for moved in _moved(anchor.choices[number], group, machine, threads)
    }
    for choice, origin in sorted(found.values(), key=lambda pair: pair[0].predicted_s):
        if _is_legal(group, choice.schedule):
            return choice, origin
    raise ScheduleError(f'{group.label}: no schedule of another size computes it')


def _moved(choice: Choice, group: Group, machine: Machine, threads: int) -> Iterator[Choice]:
    """A choice for another size of its group: cut to it, and, some schemas ask for that, whole.
    Few rows have sums in one piece.

    The general schema tiles nothing but what each thread gets, and so has schedules of its own: for
    one thread and for all of them.
    """
    if choice.schedule.schema == 'general':
        tiled, isa = tiled_form(group, choice.schedule.reg.tile), choice.schedule.isa
        caches = len(choice.schedule.levels) - 1
        ways = dict.fromkeys((1, threads))
        schedules = tuple(general_schedule(tiled, isa, count, caches) for count in ways)
    else:
        small = cut(choice.schedule, group)
        if small.schema == 'outer':
            schedules = (unbroken(small, group) if _has_few_rows(small, group) else small,)
        else:
            schedules = (small, choice.schedule) if small is not choice.schedule else (small,)
    for schedule in schedules:
        said = _predicted(group, schedule, machine)
        if said is not None:
            bound = max(bound_times(said.flops_done, said.moved, machine, threads).values())
            yield Choice(schedule, said.seconds, bound, said.limit)


@lru_cache(maxsize=1 << 14)
def _is_legal(group: Group, schedule: Schedule) -> bool:
    """Whether it can be planned: code with its register tile was generated for its anchor."""
    try:
        planned(group, schedule)
    except ScheduleError:
        return False
    return True


@lru_cache(maxsize=1 << 14)
def _predicted(group: Group, schedule: Schedule, machine: Machine) -> Prediction | None:
    """None where the model refuses the schedule."""
    try:
        return predict(core(group), schedule, machine)
    except (ScheduleError, KeyError, StopIteration):
        return None


def of_every_size(
    choices: Sequence[Choice], groups: Sequence[Group], machine: Machine, max_rel_err: float
) -> list[Choice]:
    """The choices; where kernels of a schema are of one size, the best direct one of others."""
    served = list(choices)
    fixed = [n for n, c in enumerate(choices) if SCHEMAS[c.schedule.schema].fixed]
    threads = [choices[n].schedule.threads for n in fixed]
    found = choose_every_size([groups[n] for n in fixed], threads, machine, max_rel_err)
    for n, others in zip(fixed, found, strict=True):
        legal = (other for other in others if _is_legal(groups[n], other.schedule))
        served[n] = next(legal, choices[n])
    return served


def for_sizes(choice: Choice, small: Group, large: Group) -> Choice:
    """The choice with loops and remainders of every size for the dimensions that vary between two
    sizes of its group: one library then serves all sizes.
    """
    schedule = choice.schedule
    if not _takes_every(schedule):
        return choice
    stages = [_tiled_stage(group, schedule) for group in (small, large)]
    rooms = dict.fromkeys(stages[1].sizes, 1)
    if schedule.pack:
        rooms = packed_tile(schedule, part_extents(stages[1], schedule))
    varying = tuple(
        (f'{EVERY}{d}', rooms[d])
        for d, size in stages[1].sizes.items()
        if stages[0].sizes.get(d) != size
    )
    plain = tuple(option for option in schedule.options if not option[0].startswith(EVERY))
    return replace(choice, schedule=replace(schedule, options=plain + varying))


def _takes_every(schedule: Schedule) -> bool:
    """Whether kernels of its schema have code for every remainder where they are asked to."""
    return schedule.schema in ('outer', 'winograd', 'stencil', 'strassen') or (
        schedule.schema == 'chain' and bool(schedule.vector)
    )


def _tiled_stage(group: Group, schedule: Schedule) -> Stage:
    """The stage that a schedule tiles."""
    if schedule.schema == 'winograd':
        return SCHEMAS[schedule.schema].stage(group, schedule)
    if schedule.schema == 'chain':
        return tiled_stage(group)
    return tiled_form(group, schedule.reg.tile).main


def cut(schedule: Schedule, group: Group) -> Schedule:
    """Tiles of caches that are no larger than the group, but for that of vectors."""
    reg = schedule.reg.tile
    sizes = tiled_form(group, reg).main.sizes
    large = any(t > sizes.get(d, t) for d, t in schedule.levels[-1].tiles if d != schedule.vector)
    if sizes.keys() != reg.keys() or not large:
        return schedule
    return replace(
        schedule,
        levels=tuple(
            Level.of(
                level.name, level.order,
                {
                    d: t if d == schedule.vector else max(reg[d], min(t, sizes[d]))
                    for d, t in level.tiles
                },
            )
            for level in schedule.levels
        ),
    )  # fmt: skip


def _has_few_rows(schedule: Schedule, group: Group) -> bool:
    """Whether so few register tiles share weights, which no cache keeps, that these are read about
    once.
    """
    stage, reg = tiled_form(group, schedule.reg.tile).main, schedule.reg.tile
    weights = sum(tensor.bytes for tensor in group.with_role('constant'))
    if stage.sizes.keys() != reg.keys() or weights < LARGE_BYTES * schedule.threads:
        return False
    rows = (d for d in stage.parallel if d != schedule.vector)
    return math.prod(-(-stage.sizes[d] // reg[d]) for d in rows) < LEAST_TILES


def unbroken(schedule: Schedule, group: Group) -> Schedule:
    """Sums in one piece, so that weights are read in the order in which they lie: cores that see a
    run of lines ask for more behind its end, which a piece of a sum would not use.
    """
    stage = tiled_form(group, schedule.reg.tile).main
    whole = {d: stage.sizes[d] for d in stage.reduction}
    levels = (Level.of(u.name, u.order, u.tile | whole) for u in schedule.levels[1:])
    return replace(schedule, levels=(schedule.reg, *levels))


_Form = tuple[str, tuple[str, ...]]  # of a source, with the compiler's flags
_Source = tuple[SourceAtSize, tuple[str, ...]]


def _numbers(kernels: Iterable[SizedSource], source: SourceAtSize) -> tuple[int, ...] | None:
    """What the first of these kernels that computes a source is told to do so."""
    return next((n for n in (made.numbers(source) for made in kernels) if n is not None), None)


class SizedKernels:
    """Libraries by the form of their source; those of sizes that were not foreseen are added."""

    def __init__(self) -> None:
        self.forms: dict[_Form, list[tuple[SizedSource, Path]]] = {}
        self.late = 0
        self.shown: tuple[Shown, ...] = ()  # of each family

    def build(self, batches: Iterable[Sequence[_Source]], progress: Report | None) -> None:
        """One library for each form among the sources of a batch, built while the next batch is
        made; sources that a library of an earlier batch computes have it.
        """
        known: dict[_Form, list[SizedSource]] = {}
        waiting: list[tuple[_Form, list[SourceAtSize], SizedSource, Future[Path]]] = []
        with ThreadPoolExecutor(usable_cores()) as pool:
            for batch in batches:
                members: dict[_Form, dict[tuple, SourceAtSize]] = {}
                for source, flags in batch:
                    numbers = (source.numbers, source.scratch_bytes, source.tables, source.zeros)
                    members.setdefault((source.form, flags), {})[numbers] = source
                for key, some in members.items():
                    there = known.setdefault(key, [])
                    left = [one for one in some.values() if _numbers(there, one) is None]
                    for part in joined(left):
                        made = SizedSource.of(part)
                        there.append(made)
                        waiting.append((key, part, made, pool.submit(build, made.source, key[1])))
            for done, (key, part, made, library) in enumerate(waiting, 1):
                built = self.forms.setdefault(key, [])
                try:
                    built.append((made, library.result()))
                except CompilerError:  # a number that C wants to be constant
                    each = [SizedSource.of([source]) for source in part]
                    built += [(one, build(one.source, key[1])) for one in each]
                if progress is not None:
                    progress(
                        Progress('build', 'kernels of many sizes', done, len(waiting), 0.0, None)
                    )

    def compiled(self, group: Group, choice: Choice) -> Compiled:
        """The kernel of a group, from a library that is there."""
        source = read_source(source_of(group, choice.schedule))
        flags = compiler_flags(choice.schedule)
        there = self.forms.setdefault((source.form, flags), [])
        fitting = ((lib, made.numbers(source)) for made, lib in there)
        library, numbers = next((pair for pair in fitting if pair[1] is not None), (None, None))
        if library is None or numbers is None:
            self.late += 1
            warnings.warn(
                f'{group.label} needs a kernel that was not built ahead; it is compiled now',
                stacklevel=2,
            )
            alone = SizedSource.of([source])
            library, numbers = build(alone.source, flags), (source.scratch_bytes,)
            there.append((alone, library))
        return Compiled(
            group, choice.schedule, library, choice.predicted_s, choice.bound_s, choice.limit,
            source.call(numbers),
        )  # fmt: skip

    def sources(self) -> dict[Path, tuple[SizedSource, tuple[str, ...]]]:
        """The source of each library, and its compiler's flags."""
        return {
            library: (made, flags)
            for (_, flags), some in self.forms.items()
            for made, library in some
        }


def build_ahead(
    planned: Sequence[PlannedFamily], machine: Machine, progress: Report | None = None
) -> SizedKernels:
    """Every library that the points of these families need, as far as they were looked at."""
    looks = [_Look(one, machine) for one in planned]
    kernels = SizedKernels()
    kernels.build(_batches(looks), progress)
    kernels.shown = tuple(Shown(code_version(), tuple(look.shown)) for look in looks)
    return kernels


def _batches(looks: Sequence[_Look]) -> Iterator[list[_Source]]:
    """Sources that libraries are to be made from; those of groups that may share kernels come
    together, those that take a compiler longest first.
    """
    clusters: dict[_Form, list[tuple[_Look, int]]] = {}
    for look in looks:
        for number in range(len(look.one.family.groups)):
            for point in look.known(number) or dict.fromkeys(_corners(look.one.family.box)):
                look.at(number, point)
            one = [(look, number)]
            forms = look.forms(number)
            for some in {id(c): c for c in map(clusters.get, forms) if c is not None}.values():
                one += some
                clusters |= dict.fromkeys((f for f, c in clusters.items() if c is some), one)
            clusters |= dict.fromkeys(forms, one)
    whole = {id(cluster): cluster for cluster in clusters.values()}.values()
    for cluster in sorted(whole, key=lambda c: -max(look.characters[n] for look, n in c)):
        for look, number in cluster:
            if not look.known(number):
                _look_further(look, number)
        for look in {id(look): look for look, _ in cluster}.values():
            look.settle([number for one, number in cluster if one is look])
        yield [source for look, number in cluster for source in look.sources(number)]


def _look_further(look: _Look, number: int) -> None:
    """Sources at all points of a small box; at points that show every size of short axes, and along
    lines of longer ones, or of the smallest sizes, where most kernels differ; more of them wherever
    a kernel of those that are there would not serve.
    """
    box = look.one.family.box
    if math.prod(map(len, box)) <= FEW:
        for point in itertools.product(*box):
            look.at(number, point)
        return
    wide = [sizes for sizes in box if len(sizes) > 1]
    along = len(wide) < 2 or max(map(len, wide)) > LONG
    # One axis is a line, which is looked at from end to end.
    for point in dict.fromkeys((*_smallest(box), *_staggered(box, 0))) if len(wide) > 1 else ():
        look.at(number, point)
    quick = look.characters[number] <= SHORT
    lines = list(_lines(box)) if along or quick else []
    least = tuple(sizes[0] for sizes in box)
    late = [] if along else [line for line in lines if line[0] != least]
    for line in lines:
        if line not in late:
            _refine(look, number, line, len(wide) == 1)
    held = 0
    for point in (*_staggered(box, 1), *_diagonal(box)):
        held = held + 1 if look.at(number, point) else 0
        if not held:
            for line in late:
                _refine(look, number, line, len(wide) == 1)
            late = []
        if held >= ENOUGH:
            break
    _look_back(look, number)


def _look_back(look: _Look, number: int) -> None:
    """Of a kernel that the largest sizes alone have shown, one more source along each axis: numbers
    that were seen once seem to be constant, and large sizes may have two kernels by turns, one of
    them where parts are equal.
    """
    largest = look.one.family.largest
    form = look.form(number, largest)
    if look.forms(number).count(form) > 1:
        return
    for axis, sizes in enumerate(look.one.family.box):
        for size in sizes[-2 : -2 - STAGGERED : -1]:
            point = (*largest[:axis], size, *largest[axis + 1 :])
            look.at(number, point)
            if look.form(number, point) == form:
                break


class _Look:
    """Sources of groups at points, and whether those before would have served.

    shown   group and point of those that were not served: libraries are made from them, since the
            others have no number that they would not be told
    """

    def __init__(self, one: PlannedFamily, machine: Machine) -> None:
        self.one, self.machine = one, machine
        self.groups: dict[tuple[int, Point], Group] = {}
        self.found: dict[int, dict[str, tuple[Point, _Source]]] = {}
        self.characters: dict[int, int] = {}  # of a group's longest source
        self.shown: dict[tuple[int, Point], _Source] = {}
        self._known: dict[int, list[Point]] = {}
        if one.shown is not None and one.shown.version == code_version():
            for number, point in one.shown.points:
                self._known.setdefault(number, []).append(point)
        self._members: dict[_Form, list[SourceAtSize]] = {}
        self._merged: dict[_Form, list[SizedSource]] = {}

    def known(self, number: int) -> Sequence[Point]:
        """Points that an earlier look has found to be enough, if there was one; a group that shares
        all kernels with others is looked at where the first of them is.
        """
        return self._known.get(number, (self.one.family.largest,)) if self._known else ()

    def forms(self, number: int) -> list[_Form]:
        return [(source.form, flags) for _, (source, flags) in self.found[number].values()]

    def sources(self, number: int) -> list[_Source]:
        """Of a group, those that libraries are to be made from."""
        return [source for (of, _), source in self.shown.items() if of == number]

    def at(self, number: int, point: Point) -> bool:
        """Whether kernels of the sources so far compute this group at this point, too."""
        if (number, point) not in self.groups:
            self.groups[number, point] = self.one.family.group_at(number, point)
            check_group(self.groups[number, point])
        group = self.groups[number, point]
        found = self.found.setdefault(number, {})
        if group.digest in found:
            return True
        schedule = best_choice(self.one, number, group, self.machine).schedule
        text, flags = source_of(group, schedule), compiler_flags(schedule)
        self.characters[number] = max(len(text), self.characters.get(number, 0))
        found[group.digest] = (point, (read_source(text), flags))
        return self._is_served(number, *found[group.digest])

    def form(self, number: int, point: Point) -> _Form:
        """That of a source that was looked at."""
        _, (source, flags) = self.found[number][self.groups[number, point].digest]
        return source.form, flags

    def settle(self, numbers: Sequence[int]) -> None:
        """Look again at all sources of these groups: kernels have been joined in other ways since,
        where tables differ.
        """
        found = [(n, *one) for n in numbers for one in self.found[n].values()]
        before = -1
        while before < len(self.shown):
            before = len(self.shown)
            for one in found:
                self._is_served(*one)

    def _is_served(self, number: int, point: Point, source: _Source) -> bool:
        """Whether the kernels so far compute a source; from now on they do."""
        form = (source[0].form, source[1])
        members = self._members.setdefault(form, [])
        if form not in self._merged:
            self._merged[form] = [SizedSource.of(part) for part in joined(members)]
        if _numbers(self._merged[form], source[0]) is not None:
            return True
        members.append(source[0])
        self.shown[number, point] = source
        del self._merged[form]
        return False


def _refine(look: _Look, number: int, line: Sequence[Point], alone: bool) -> None:
    """Some sizes of a line, and those in the middle between two until kernels serve there; all of
    a short line that is all there is. On a long one also the sizes where one kernel gives way to
    another: what is constant for the sizes of a kernel that were seen may change up to there. Steps
    are odd: even ones would show one remainder by the lengths of vectors and tiles alone.
    """
    step = -(-len(line) // (HALVED if alone else LOOKED_AT))
    step = 1 if alone and len(line) <= LONG else step - 1 + step % 2
    some = {*range(min(SMALL, len(line))), *range(0, len(line), step)}
    ends = sorted({*some, len(line) - 1})
    for at in ends:
        look.at(number, line[at])
    waiting = list(itertools.pairwise(ends))
    while waiting:
        low, high = waiting.pop()
        middle = (low + high) // 2
        if high - low < 2:
            continue
        served = look.at(number, line[middle])
        for pair in ((low, middle), (middle, high)):
            first, last = (look.form(number, line[at]) for at in pair)
            if not served or (alone and first != last):
                waiting.append(pair)


def _corners(box: Box) -> Iterator[Point]:
    yield from itertools.product(*(dict.fromkeys((s[-1], s[0])) for s in box))


def _smallest(box: Box) -> Iterator[Point]:
    """The smallest sizes in all company: loops and vectors vanish there, each in its way."""
    if len(box) == 2:
        yield from itertools.product(*(sizes[: SMALL - 1] for sizes in box))


def _diagonal(box: Box) -> Iterator[Point]:
    """Points whose sizes are equal, where tables and strides may be, too."""
    axes = [_evenly(sizes, LONG // 2) for sizes in box]
    return zip(*axes, strict=False)


def _staggered(box: Box, turn: int) -> Iterator[Point]:
    """Points that have each size of each axis once, as queens on a board do; for another turn the
    same sizes in other company. At most `STAGGERED` sizes of an axis: the first, and others evenly.
    """
    axes = [_evenly(sizes, STAGGERED) for sizes in box]
    for i in range(max(map(len, axes))):
        yield tuple(
            sizes[(i * _coprime(2 + 5 * axis + 3 * turn, len(sizes)) + axis * turn) % len(sizes)]
            for axis, sizes in enumerate(axes)
        )


def _coprime(number: int, size: int) -> int:
    return next(n for n in itertools.count(number) if math.gcd(n, size) == 1)


def _evenly(sizes: range, most: int) -> list[int]:
    if len(sizes) <= most:
        return list(sizes)
    rest = (round(i * (len(sizes) - 1) / (most - 1)) for i in range(most))
    return [sizes[i] for i in sorted({*range(SMALL), *rest})[:most]]


def _lines(box: Box) -> Iterator[list[Point]]:
    """All sizes of each axis, the others at their smallest and at their largest."""
    for axis, sizes in enumerate(box):
        for end in (0, -1)[: len(box)]:
            others = tuple(other[end] for other in box)
            if len(sizes) > 1:
                yield [(*others[:axis], size, *others[axis + 1 :]) for size in sizes]


@dataclass(frozen=True)
class RangedPlans:
    """All that the networks of the points of a range are made from."""

    saved: SavedRanges
    kernels: SizedKernels
    machine: Machine
    threads: int

    def bound(self, point: Point, memory: SharedMemory) -> Network:
        """The network of one point."""
        program, choices = at_point(self.saved, point, self.machine)
        groups = {task.group.digest: task.group for task in program.tasks}
        made = {g: self.kernels.compiled(groups[g], choices[g]) for g in groups}
        return Network(program, plan(program), made, self.threads, memory)


def at_point(
    saved: SavedRanges, point: Point, machine: Machine
) -> tuple[Program, dict[str, Choice]]:
    """The program of a point, and the choice for each of its groups."""
    one = next(one for one in saved.families if one.family.holds(point))
    program = checked_program(one.family, point)
    return program, {
        group.digest: best_choice(one, number, group, machine)
        for number, group in one.groups(program).items()
    }
