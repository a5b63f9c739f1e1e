"""Dimension names that are safe in C: those that clash with a word of the generated source change.

a dimension called `b`, `out` or `for`  ->  `b_`, `out_`, `for_`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import replace

from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Affine, Expr, Stage
from tilewright.schedule.schedule import Level, Schedule

# Identifiers that the generators use themselves, and C's own words.
_WORDS = """
a acc accumulators args asm at auto b break buffer case char const constants continue count default
do double else end enum extent extern float for from front goto high if inline int inside lane lanes
last long low max_long min_long out packed panel panels part pixel pixels register restrict return
row rows short signed sizeof source static step struct switch tile to typedef union unsigned value
void volatile weights while width typeof linux unix
have moved number spot sum
expf fabsf fmaxf fminf memcpy memset powf sqrtf tanhf
"""
TAKEN = frozenset(_WORDS.split())
_PLAIN = re.compile(r'[A-Za-z][A-Za-z0-9]*')
_NUMBERED = re.compile(r'[eft][0-9]+')


def safe_names(group: Group, schedule: Schedule) -> tuple[Group, Schedule]:
    """The same group and schedule with names that can stand in C; unchanged where they already can.

    Only the main stage's iterators appear in C, so only they are renamed.
    """
    changed, names = safe_iterators(group, TAKEN)
    return (group, schedule) if changed is group else (changed, _rename_schedule(schedule, names))


def safe_iterators(group: Group, taken: Set[str]) -> tuple[Group, dict[str, str]]:
    """(group, old -> new): other names for iterators that are `taken` or cannot stand in C."""
    stage = group.main
    names = {d.name: _safe(d.name, number, taken) for number, d in enumerate(stage.dims)}
    if all(old == new for old, new in names.items()):
        return group, names
    stages = tuple(rename_stage(s, names) if s is stage else s for s in group.stages)
    return replace(group, stages=stages), names


def _safe(name: str, number: int, taken: Set[str]) -> str:
    if not _PLAIN.fullmatch(name):
        return f'd{number}_'
    return f'{name}_' if name in taken or _NUMBERED.fullmatch(name) else name


def _rename_access(access: Access, names: Mapping[str, str]) -> Access:
    index = (Affine(tuple((names[n], c) for n, c in e.terms), e.const) for e in access.index)
    return replace(access, index=tuple(index))


def rename_stage(stage: Stage, names: Mapping[str, str]) -> Stage:
    return replace(
        stage,
        dims=tuple(replace(d, name=names[d.name]) for d in stage.dims),
        write=_rename_access(stage.write, names),
        reads=tuple(_rename_access(a, names) for a in stage.reads),
        expr=_rename_expr(stage.expr, names),
    )


def _rename_expr(expr: Expr, names: Mapping[str, str]) -> Expr:
    if expr.op == 'index':
        return replace(expr, name=names[expr.name])
    return replace(expr, args=tuple(_rename_expr(a, names) for a in expr.args))


def _rename_schedule(schedule: Schedule, names: Mapping[str, str]) -> Schedule:
    def rename(name: str) -> str:
        return names.get(name, name)

    levels = tuple(
        Level.of(v.name, tuple(map(rename, v.order)), {rename(d): t for d, t in v.tiles})
        for v in schedule.levels
    )
    parallel = tuple((rename(d), ways) for d, ways in schedule.parallel)
    return replace(schedule, vector=rename(schedule.vector), levels=levels, parallel=parallel)
