"""The kernels of a network: one library for each distinct group, built several at a time.

[Group, Choice] -> generate -> [C source] -> build -> [library]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tilewright.graph.program import Program
from tilewright.kernels.cpu.generate import compiler_flags
from tilewright.knobs import debug
from tilewright.machine.compiler import build
from tilewright.ops.group import Group
from tilewright.runtime.cpu.loaded import Compiled
from tilewright.runtime.measure import Progress
from tilewright.runtime.pool import usable_cores
from tilewright.schedule.choice import Choice
from tilewright.store import built
from tilewright.targets.cpu.choose import source_of

Report = Callable[[Progress], object]


def distinct(program: Program) -> dict[str, Group]:
    """The groups of a program by digest, each once."""
    return {task.group.digest: task.group for task in program.tasks}


def build_all(
    program: Program, chosen: Mapping[str, Choice], report: Report | None = None
) -> dict[str, Compiled]:
    """The kernel of every distinct group, by its digest."""
    groups = distinct(program)
    made = build_each([(groups[digest], chosen[digest]) for digest in groups], report)
    return dict(zip(groups, made, strict=True))


def build_each(
    wanted: Sequence[tuple[Group, Choice]], report: Report | None = None
) -> list[Compiled]:
    """A kernel for each pair of group and choice, in the order given."""
    pool = ThreadPoolExecutor(usable_cores())
    try:
        futures = [pool.submit(_kernel, group, choice) for group, choice in wanted]
        made = []
        for future, (group, _) in zip(futures, wanted, strict=True):
            made.append(future.result())
            if report is not None:
                report(Progress('build', group.label, len(made), len(wanted), 0.0, None))
        return made
    finally:
        pool.shutdown(cancel_futures=True)
        source_of.cache_clear()


def _kernel(group: Group, choice: Choice) -> Compiled:
    library = built.find(group, choice.schedule)
    if library is None:
        source = source_of(group, choice.schedule)
        debug(4, source)
        library = build(source, compiler_flags(choice.schedule))
        built.remember(group, choice.schedule, library)
    return Compiled(
        group, choice.schedule, library, choice.predicted_s, choice.bound_s, choice.limit
    )
