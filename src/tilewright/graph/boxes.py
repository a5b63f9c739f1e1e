"""Slices along the last axis without copies: who reads or writes one does so in the larger value.

    copy x[.., 64:96] -> y;  conv(y) -> z        becomes    conv(x[.., 64:96]) -> z
    conv -> a;  copy a -> c[.., 0:64]            becomes    conv -> c[.., 0:64]

Goes in: a program whose images have their channels last (graph/half.py). Comes out: one with fewer
copies. Channels of such images are no run of memory, so that graph/concat.py finds no place for
them; a group's accesses follow them all the same, an offset in one index and a longer axis. As
there, concatenations are taken from the last to the first: where one is the beginning of a later
one, as in DenseNet, all who read it read the later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.graph.concat import Copy, copy_of
from tilewright.graph.levels import by_levels, levels_of
from tilewright.graph.program import Program, Task
from tilewright.ops.group import Group
from tilewright.ops.slices import into_slice, out_of_slice


def share(program: Program) -> Program:
    """[Program] -> [Program] with fewer copies; as it is where tasks could not be ordered then."""
    made = program
    for number in reversed(range(len(program.tasks))):
        copy = copy_of(made.tasks[number]) if number < len(made.tasks) else None
        if copy is not None and copy.keeps_axes:
            made = _read_slice(made, copy) or _in_place(made, copy) or made
    levels = levels_of(by_levels(made))
    return made if list(levels) == sorted(levels) else program


def _is_free(program: Program, value: str) -> bool:
    """Whether a value is nobody's but its tasks'."""
    apart = {*program.views, *program.views.values(), *program.inside, *program.inputs}
    apart |= {*program.constants, *(holder for holder, _ in program.inside.values())}
    return value not in apart and not program.is_output(value)


def _read_slice(program: Program, copy: Copy) -> Program | None:
    """Readers of a slice read the value that it is a slice of."""
    target, cut = copy.task.result, copy.read.cut
    if copy.task.writes_part or not copy.write.is_whole or len(cut) != 1:
        return None
    if not _is_free(program, target) or copy.source in program.views:
        return None
    return _moved(
        program, copy, target, copy.source, cut[0], copy.read.start[cut[0]],
        copy.read.shape[cut[0]], (),
    )  # fmt: skip


def _in_place(program: Program, copy: Copy) -> Program | None:
    """Who writes what is copied into a slice writes it there, and who reads it reads it there."""
    source, target, cut = copy.source, copy.task.result, copy.write.cut
    if not copy.read.is_whole or len(cut) != 1 or not _is_free(program, source):
        return None
    if target in program.views or target in program.inside:
        return None
    writers = [task for task in program.tasks if task.result == source]
    if not writers:
        return None
    return _moved(
        program, copy, source, target, cut[0], copy.write.start[cut[0]], copy.write.shape[cut[0]],
        writers,
    )  # fmt: skip


def _moved(
    program: Program, copy: Copy, value: str, holder: str, axis: int, offset: int, extent: int,
    writers: Sequence[Task],
) -> Program | None:  # fmt: skip
    """The program without a copy and without a value, which is a slice of `holder`."""
    tasks = []
    for task in program.tasks:
        if task is copy.task:
            continue
        group, operands, result = task.group, dict(task.operands), task.result
        for tensor in [t for t, v in operands.items() if v == value]:
            found = out_of_slice(group, tensor, axis, offset, extent)
            if found is None:
                return None
            group, operands[tensor] = found, holder
        part = task.writes_part
        if task in writers:
            if not _whole_epilogue(group):
                return None
            group, result, part = into_slice(group, axis, offset, extent), holder, True
        tasks.append(
            task
            if group is task.group
            else replace(task, group=group, operands=operands, result=result, writes_part=part)
        )
    values = {name: kind for name, kind in program.values.items() if name != value}
    return replace(program, tasks=tuple(tasks), values=values)


def _whole_epilogue(group: Group) -> bool:
    """Whether what a group writes may be a slice: its last stage writes all of its result."""
    return group.stages[-1].write.is_affine
