"""Schedules for the groups of a network on a GPU: each distinct problem once, by the model alone.

Goes in: groups, a GPU. Comes out: for each group its best choices, best predicted first. Nothing is
timed, and the answer is the same every time. Epilogues do not decide a schedule, so that what is
searched is the core of a group (ops/core.py). Stages before the products do: a schema applies them
as it copies, or they are a kernel of their own, whichever is predicted to be faster. Four kinds of
groups:

    sums of products   all schemas of the design space, walked by `search.gpu_tune` with the model
                       (model/gpu/time.py) in the place of a stopwatch
    few rows           a matrix by a vector: every weight is read once, so that bandwidth decides;
                       many lanes along the weights of each result
    the rest           squares for transposes, else one thread a result, with lanes where results
                       are too few for the device
    chains             several reducing stages that are to stay on the chip: schemas that take all
                       of them at once, walked by the model from what they propose
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import contract, vector_candidates
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.precision import refined
from tilewright.kernels.gpu.registry import BESIDE, FALLBACK, GPU_SCHEMAS, schema_named
from tilewright.kernels.gpu.schema import DIRECT, GpuSchema
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.bounds import schedule_bounds
from tilewright.model.gpu.estimates import ESTIMATES, TIME
from tilewright.model.gpu.time import COSTS, GpuPrediction, predict_gpu
from tilewright.ops.chain import is_chained
from tilewright.ops.core import core
from tilewright.ops.front import has_front
from tilewright.ops.group import Group
from tilewright.ops.integer import is_integer_products
from tilewright.ops.parts import parts
from tilewright.runtime.pool import each
from tilewright.schedule.choice import Choice
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves, pays
from tilewright.search.gpu.tune import tune
from tilewright.store import choices

TRIALS = 240  # schedules of a group that the model looks at
# Decisions about how tiles come and when they are waited for: the model hardly tells them apart.
PIPELINE = frozenset({'bulk', 'late', 'near', 'queue', 'stages'})
SHORTCUT_SHARE = 3  # of the trials, those that an algorithm gets for itself: one in so many
NEARLY = 1.25  # times the best prediction: what another algorithm may take and be looked at
FEW_ROWS = 4  # rows of a matrix product up to which it is read as vectors
# Matrix instructions cut off sums: their errors reach this share of the largest result.
MATRIX_ERROR = 2e-5

Report = Callable[[Group, int, int], object]


def choose_all(
    groups: Sequence[Group],
    machine: GpuMachine,
    top: int,
    max_rel_err: float,
    report: Report | None = None,
    processes: int | None = None,
    trials: int | None = None,
    algorithm: str = 'auto',
    estimate: str = TIME,
) -> list[tuple[Choice, ...]]:
    """For each group its best choices, at least one and at most `top`, in the order given.

    `trials`: schedules of a group that the model looks at. `estimate`: what stands for the model
    (model/gpu/estimates.py).
    """
    looked = trials or TRIALS
    cores = [core(group, front=True) for group in groups]
    keys = [_key(one, machine, top, max_rel_err, looked, algorithm, estimate) for one in cores]
    found: dict[str, tuple[Choice, ...]] = {}
    left: dict[str, Group] = {}
    for key, one in zip(keys, cores, strict=True):
        kept = choices.recall_choices(key)
        if kept:
            found[key] = kept
        else:
            left[key] = one
    for done, (key, answer) in enumerate(
        _searched(left, machine, top, max_rel_err, processes, looked, algorithm, estimate),
        len(found) + 1,
    ):
        found[key] = answer
        choices.keep_choices(key, answer)
        if report is not None:
            report(left[key], done, len(found) + len(left))
    return [
        _legal(group, found[key], machine, top, max_rel_err)
        for group, key in zip(groups, keys, strict=True)
    ]


def _key(
    group: Group, machine: GpuMachine, top: int, max_rel_err: float, trials: int, algorithm: str,
    estimate: str,
) -> str:  # fmt: skip
    return choices.key_of(
        {
            'gpu': machine.to_json(), 'group': group.digest, 'top': top,
            'matrix': max_rel_err >= MATRIX_ERROR, 'error': max_rel_err, 'trials': trials,
            **({'algorithm': algorithm} if algorithm != 'auto' else {}),
            **({'estimate': estimate} if estimate != TIME else {}),
            **({'schemas': GPU_SCHEMAS.added} if GPU_SCHEMAS.added else {}),
        },
        choices.GPU_DECIDES,
    )  # fmt: skip


def _legal(
    group: Group, found: tuple[Choice, ...], machine: GpuMachine, top: int, max_rel_err: float
) -> tuple[Choice, ...]:
    """Those that also compute what follows the core; the general schema where none does."""
    good = tuple(c for c in found if is_legal(group, c.schedule, machine))
    return good or search(group, machine, top, max_rel_err, products=False)


def is_legal(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> bool:
    """Whether kernels can be generated, and their blocks fit the machine."""
    try:
        for kernel in generate(group, schedule).kernels:
            machine.fits(kernel.name, kernel.threads, kernel.shared_bytes)
    except ScheduleError:
        return False
    return machine.has(schedule.intrinsic)


def _searched(
    left: Mapping[str, Group],
    machine: GpuMachine,
    top: int,
    max_rel_err: float,
    processes: int | None,
    trials: int,
    algorithm: str,
    estimate: str,
) -> Iterable[tuple[str, tuple[Choice, ...]]]:
    """(key, choices) of every group: the long searches in processes, if there are several."""
    slow = [
        key for key, group in left.items()
        if is_chained(group) or (has_products(group) and not is_thin(group))
    ]  # fmt: skip
    for key, group in left.items():
        if key not in slow:
            yield key, search(group, machine, top, max_rel_err, True, trials, algorithm, estimate)
    pieces = [
        (left[key], machine, top, max_rel_err, True, trials, algorithm, estimate) for key in slow
    ]
    # Other processes do not know schemas that were registered in this one.
    yield from zip(slow, each(search, pieces, 1 if GPU_SCHEMAS.added else processes), strict=True)


def search(
    group: Group,
    machine: GpuMachine,
    top: int,
    max_rel_err: float,
    products: bool = True,
    trials: int = TRIALS,
    algorithm: str = 'auto',
    estimate: str = TIME,
) -> tuple[Choice, ...]:
    """The search itself, in this process, over so many schedules.

    Without `products` by schemas that move one element at a time.
    """
    if group.is_sequential or (is_chained(group) and not products):
        found = _special(group, machine) or _general(group, machine)
        right = (precise_one(group, c.schedule, max_rel_err) for c in found)
        found = tuple(
            choice_of(group, s, machine) for s in right if s and is_legal(group, s, machine)
        )
        best = sorted(found, key=lambda choice: choice.predicted_s)
        return tuple(best[:top]) if products else found[-1:]
    if is_chained(group):
        together = [
            schema.name
            for schema in GPU_SCHEMAS.values()
            if schema.whole and schema is not FALLBACK
        ]
        made = _by_model(group, machine, top, max_rel_err, trials, algorithm, estimate, together)
        if made:
            return tuple(made[:top])
    elif products and has_products(group):
        if is_thin(group):
            return _general(group, machine)[:top]
        made = _by_model(group, machine, top, max_rel_err, trials, algorithm, estimate)
        if algorithm == 'auto':
            made = _with_shortcuts(made, group, machine, top, max_rel_err, trials, estimate)
        elif algorithm != DIRECT and not made:
            made = _by_model(group, machine, top, max_rel_err, trials, DIRECT, estimate)
        return tuple(made[:top]) or _general(group, machine)[:top]
    found = (*_special(group, machine), *_general(group, machine))
    if not products:
        found = tuple(c for c in found if dict(c.schedule.tiles).get('run', 1) == 1)
    return found[:top]


def _special(group: Group, machine: GpuMachine) -> tuple[Choice, ...]:
    """By the schema that proposes something for this group, the last registered first."""
    for schema in reversed(tuple(GPU_SCHEMAS.values())):
        if schema is not FALLBACK:
            found = _proposed(schema, group, machine)
            if found:
                return found
    return ()


def _proposed(schema: GpuSchema, group: Group, machine: GpuMachine) -> tuple[Choice, ...]:
    found = schema.propose(group, machine) if schema.propose else ()
    return tuple(choice_of(group, s, machine) for s in found if is_legal(group, s, machine))


def has_products(group: Group) -> bool:
    """Whether other schemas than the general one may compute it."""
    whole = is_integer_products(group)
    if group.half or whole:
        return any(
            (one.integers if whole else one.half) and one.table is not None
            and one.table(group, kind)
            for one in GPU_SCHEMAS.values()
            for kind in one.intrinsics
        )  # fmt: skip
    return (
        group.is_plain
        and group.main.is_product_sum
        and (has_front(group) or parts(group) == (group,))
    )


def is_thin(group: Group) -> bool:
    """Whether it multiplies a matrix that is read once by few rows; half types and 8-bit numbers
    are not: matrix instructions read them sixteen bytes at a time.
    """
    found = vector_candidates(group, moving=True)
    if not found or group.half or is_integer_products(group):
        return False
    c = contract(group, found[0])
    rows = math.prod(group.main.sizes[d] for d in c.pixels)
    return rows <= FEW_ROWS and not c.batch


def is_precise(group: Group, schedule: GpuSchedule, max_rel_err: float) -> bool:
    """Whether errors of its sums, and of transforms where it has any, stay below a limit."""
    return precise_one(group, schedule, max_rel_err) == schedule


def precise_one(group: Group, schedule: GpuSchedule, max_rel_err: float) -> GpuSchedule | None:
    """A schedule whose errors stay below a limit: itself, or the same one with sums that matrix
    units begin anew after some terms; None where neither does.

    From `MATRIX_ERROR` on deep sums are left to what the space allows (`precise`).
    """
    own = schema_named(schedule.schema).error is not None
    if own or max_rel_err < MATRIX_ERROR:
        return refined(group, schedule, max_rel_err)
    return schedule


def _by_model(
    group: Group, machine: GpuMachine, top: int, max_rel_err: float, trials: int, algorithm: str,
    estimate: str, only: Sequence[str] | None = None,
) -> list[Choice]:  # fmt: skip
    """The best of all schemas that apply, or of some, in the order of an estimate."""

    def seconds(schedule: GpuSchedule) -> float | None:
        right = precise_one(group, schedule, max_rel_err)
        if right is None:
            return None
        try:
            return ESTIMATES[estimate](group, right, machine)
        except ScheduleError:
            return None

    space = moves(group, machine, only, algorithm)
    if not space.tables:
        return []
    starts = [
        schedule
        for name in only or ()
        if (propose := schema_named(name).propose) is not None
        for schedule in propose(group, machine)
        if (name, schedule.intrinsic) in space.tables
    ]
    # A chain's kernels take ten times as long to generate as others, which is how they are checked.
    if chained := is_chained(group):
        space = replace(space, checked=False)
    begun = {name for name, _ in space.tables}
    starts += [
        schedule
        for schema in GPU_SCHEMAS.values()
        if schema.starts is not None and schema.name in begun
        for schedule in schema.starts(group, machine)
        if (schema.name, schedule.intrinsic) in space.tables
    ]
    tried = tune(
        space, lambda schedules: [seconds(s) for s in schedules], trials=trials, starts=starts,
        seed=Random(group.digest).getrandbits(32), legal=space.legal if chained else None,
    )  # fmt: skip
    found = (precise_one(group, t.schedule, max_rel_err) for t in tried if t.seconds is not None)
    best = [schedule for schedule in found if schedule is not None]
    return [choice_of(group, schedule, machine) for schedule in varied(best, top)]


def _with_shortcuts(
    made: list[Choice], group: Group, machine: GpuMachine, top: int, max_rel_err: float,
    trials: int, estimate: str,
) -> list[Choice]:  # fmt: skip
    """`made` with the best of every other algorithm that pays, each searched by itself as well:
    among the many schedules of the direct algorithm few of its own are drawn. What is predicted
    to be not much slower comes second, so that it is measured where several are.
    """
    algorithms = {
        schema.algorithm
        for schema in GPU_SCHEMAS.values()
        if schema.shortcut is not None and pays(schema, group, machine)
    }
    for name in sorted(algorithms):
        share = max(trials // SHORTCUT_SHARE, 1)
        found = _by_model(group, machine, top, max_rel_err, share, name, estimate)[:1]
        others = [one for one in made if not found or one.schedule != found[0].schedule]
        best = others[0].predicted_s if others else math.inf
        if found and found[0].predicted_s < NEARLY * best:
            place = int(found[0].predicted_s >= best)
            made = [*others[:place], *found, *others[place:]]
    return made


def varied(schedules: Sequence[GpuSchedule], top: int) -> list[GpuSchedule]:
    """The first `top`, at most half of them of one schema and intrinsic, in clusters or not, and
    each of other tiles, if there are others: the model may favour one wrongly.
    """
    taken: list[GpuSchedule] = []
    counts: dict[tuple[str, str, int], int] = {}
    seen: set[tuple] = set()
    for schedule in schedules:
        kind = schedule.schema, schedule.intrinsic, dict(schedule.tiles).get('cluster', 0)
        shape = *kind, *((n, v) for n, v in schedule.tiles if n not in PIPELINE)
        if counts.get(kind, 0) < max(top // 2, 1) and shape not in seen:
            counts[kind] = counts.get(kind, 0) + 1
            seen.add(shape)
            taken.append(schedule)
    rest = [s for s in schedules if s not in taken]
    return [*taken, *rest][:top]


def _general(group: Group, machine: GpuMachine) -> tuple[Choice, ...]:
    """The schema that computes everything; at least one choice, or why not."""
    found = _proposed(FALLBACK, group, machine)
    if not found:
        generate(group, BESIDE)  # says why not
        raise ScheduleError(
            f'{group.label}: no block of the {FALLBACK.name} schema fits {machine.name}'
        )
    return found


@dataclass(frozen=True, slots=True)
class LaunchPrediction:
    """What is said of a schedule that the time model has no counts for: launches and its bound."""

    seconds: float
    limit: str

    def to_json(self) -> dict:
        return {'seconds': self.seconds, 'by': self.limit}


def prediction_of(
    group: Group, schedule: GpuSchedule, machine: GpuMachine
) -> GpuPrediction | LaunchPrediction:
    """What the time model says; a launch and the bytes that must move where it says nothing."""
    try:
        return predict_gpu(group, schedule, machine)
    except ScheduleError:
        bounds = schedule_bounds(group, schedule, machine)
        launches = COSTS.launch_s * len(generate(group, schedule).steps)
        return LaunchPrediction(launches + bounds.seconds, bounds.by)


def choice_of(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> Choice:
    """The choice of a schedule, with what is predicted of it."""
    said = prediction_of(group, schedule, machine)
    bound_s = schedule_bounds(group, schedule, machine).seconds
    return Choice(schedule, said.seconds, bound_s, said.limit)
