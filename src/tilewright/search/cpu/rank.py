"""From a group to ranked schedules of one algorithm, by modelling alone: nothing is timed here.

Goes in: a group, a machine, a thread count. Comes out: `Candidate`s of every schema that applies,
best predicted first. Deterministic. A schema ranks its own schedules by a hook, or gives so few
choices that each of them is priced.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import InputError
from tilewright.kernels.cpu.schema import SCHEMAS, CpuSchema
from tilewright.machine.isa import ISAS, half_isa, tile_isa
from tilewright.machine.machine import Machine
from tilewright.model.cpu.predict import predict
from tilewright.model.cpu.prediction import Prediction
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.registry import resolve
from tilewright.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule with what the model says about it.

    `solver_bound_s` is the least dual of all tile problems that were solved for this group, so that
    it holds for all of them; 0 where none was solved.
    """

    schedule: Schedule
    prediction: Prediction
    solver_bound_s: float = 0.0


def rank(
    group: Group, machine: Machine, threads: int, top: int, algorithm: str = 'direct',
    max_rel_err: float = DEFAULT_LIMIT, every_size: bool = False, front: bool = False,
) -> tuple[Candidate, ...]:  # fmt: skip
    """At most `top` candidates of an algorithm, whatever their schema; none where none applies.
    With `every_size` those alone whose kernels may serve other sizes, with `front` those whose
    kernels may compute what comes before the products.

    Schemas of last resort are asked where no other has a candidate. A schema without a model of its
    own keeps its best one among several: a rough price is no reason to leave it unmeasured.
    """
    if top < 1:
        raise InputError(f'top={top}; ask for at least one candidate')
    schemas = _offering(group, machine, algorithm)
    schemas = [s for s in schemas if not (every_size and s.fixed) and (s.front or not front)]
    for last in (False, True):
        asked = [s for s in schemas if s.last_resort == last]
        found = [rank_schema(s, group, machine, threads, top, max_rel_err) for s in asked]
        # Each is in order, and knows better than a digest what comes first where times are equal.
        ranked = sorted((c for each in found for c in each), key=lambda c: c.prediction.seconds)
        if ranked:
            rough = [each[0] for s, each in zip(asked, found, strict=True) if each and not s.time]
            return keep_best(ranked, rough, top)
    return ()


def keep_best(ranked: list[Candidate], best: list[Candidate], top: int) -> tuple[Candidate, ...]:
    """The first `top`, those of `best` among them: in place of the last, the very first aside."""
    kept = ranked[:top]
    missing = [c for c in best if c not in kept][: top - 1]
    return tuple(kept[: len(kept) - len(missing)] + missing)


def rank_schema(
    schema: CpuSchema, group: Group, machine: Machine, threads: int, top: int, max_rel_err: float
) -> tuple[Candidate, ...]:
    """At most `top` candidates of one schema, best predicted first."""
    if schema.why_not(group):
        return ()
    if schema.rank:
        return resolve(schema.rank)(group, machine, threads, top, max_rel_err)
    assert schema.choices is not None
    tiled = flatten(group) if schema.flattens else group
    found = [
        Candidate(schedule, predict(tiled, schedule, machine))
        for schedule in schema.choices(tiled, machine.isa, threads, len(machine.caches))
        if schema.error is None or schema.error(tiled, schedule) <= max_rel_err
    ]
    return tuple(sorted(found, key=lambda c: (c.prediction.seconds, c.schedule.digest))[:top])


def _offering(group: Group, machine: Machine, algorithm: str) -> list[CpuSchema]:
    """The schemas of an algorithm that offer the dtypes and storage that are asked for.

    InputError where no schema of any algorithm does.
    """
    isa, dot = ISAS[machine.isa], machine.dot
    floats = (isa.dtype, isa.accumulation)
    integers = (dot.dtype, 'i32') if dot else floats
    halves = ISAS[half_isa(machine.isa)] if machine.half else None
    tiles = ISAS[tile_isa(machine.isa)] if machine.bf16 else None

    def lacking(schema: CpuSchema) -> str:
        if schema.tiles:
            if tiles is None:
                return f'{machine.name} has no tiles, which multiply bf16'
            return schema.lacks(group, tiles, (tiles.dtype, tiles.accumulation))
        if not schema.half:
            return schema.lacks(group, isa, integers if schema.integer else floats)
        if halves is None:
            return f'{machine.name} has no arithmetic of f16'
        return schema.lacks(group, halves, (halves.dtype, halves.accumulation))

    lacks = {s.name: lacking(s) for s in SCHEMAS.values()}
    if all(lacks.values()):
        raise InputError(f'{group.label}: {next(iter(lacks.values()))}')
    return [s for s in SCHEMAS.values() if s.algorithm == algorithm and not lacks[s.name]]
