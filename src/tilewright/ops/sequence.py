"""Stages that run step by step along a sequential dimension.

Goes in: a stage whose domain has a sequential dimension, and the number of a step. Comes out: the
stage of that step alone, which the reference runs like any other. Neighbouring stages over the same
sequential dimension run interleaved: all of them at step 0, then all of them at step 1; so each may
read what any of them wrote in an earlier step, or what one before it wrote in the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.ops.stage import Access, Affine, Expr, Stage, whole


def in_turns(stages: Sequence[Stage]) -> Iterator[tuple[Stage, ...]]:
    """Stages in runs that are interleaved; one without steps is a run by itself."""
    start = 0
    for end, stage in enumerate(stages, 1):
        if end < len(stages) and stage.sequential and stages[end].sequential == stage.sequential:
            continue
        yield tuple(stages[start:end])
        start = end


def unrolled(run: tuple[Stage, ...]) -> Iterator[Stage]:
    """The stages of a run in the order in which they are computed, step after step."""
    if not run[0].sequential:
        yield from run
        return
    (name,) = run[0].sequential
    for step in range(run[0].sizes[name]):
        yield from (at_step(stage, name, step) for stage in run)


def at_step(stage: Stage, name: str, step: int) -> Stage:
    """The stage with a number in the place of one of its iterators."""
    return replace(
        stage,
        dims=tuple(d for d in stage.dims if d.name != name),
        write=_write_at(stage.write, name, step),
        reads=tuple(_read_at(stage, a, name, step) for a in stage.reads),
        expr=_expr_at(stage.expr, name, step),
    )


def _write_at(access: Access, name: str, step: int) -> Access:
    return replace(access, index=tuple(_fixed(e, name, step) for e in access.index))


def _read_at(stage: Stage, access: Access, name: str, step: int) -> Access:
    """Axes that depend on the step become tables of the few positions that are left of them."""
    index, tables = list(access.index), dict(access.tables)
    for axis, expression in enumerate(access.index):
        if name not in expression.names:
            continue
        at = _fixed(expression, name, step)
        if len(at.terms) > 1:
            index[axis] = at
            continue
        table = tables.get(axis)
        places = (
            [at.const + at.terms[0][1] * i for i in range(stage.sizes[at.names[0]])]
            if at.terms
            else [at.const]
        )
        tables[axis] = tuple(table[p] if table is not None else p for p in places)
        index[axis] = Affine(tuple((n, 1) for n in at.names))
    return replace(access, index=tuple(index), tables=tuple(sorted(tables.items())))


def _fixed(expression: Affine, name: str, step: int) -> Affine:
    rest = tuple((n, c) for n, c in expression.terms if n != name)
    return Affine(rest, expression.const + expression.coefficient(name) * step)


def _expr_at(expr: Expr, name: str, step: int) -> Expr:
    if expr.op == 'index' and expr.name == name:
        return whole(step)
    return replace(expr, args=tuple(_expr_at(a, name, step) for a in expr.args))
