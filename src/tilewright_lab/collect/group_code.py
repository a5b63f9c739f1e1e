"""Families of schedules -> machine code: one kernel for all splits of the same tiles.

Goes in: a group and some `Family`s. Comes out: `Compiled`: machine code of all of them by one run
of the compiler, and how each schedule launches it. Nothing here needs a GPU.

Kernels whose blocks share a tile's sum differ, between one number of parts and another, in three
numbers of their source: pieces of a part, parts to wait for, parts to add up. `loosened` makes
parameters of them,

    begin = BLOCK_Z * 5; .. arrived[0] != 3.0f .. part < 4;       4 parts of 5 pieces each
    begin = BLOCK_Z * share; .. (float)(parts - 1) .. part < parts;

and kernels that are the same then are compiled once. Putting the numbers back gives the text that
was generated, so that what is measured is what is generated, but for what a compiler makes of loops
whose length it knows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from tilewright.errors import ScheduleError, TilewrightError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import Array, Kernel, Scalar
from tilewright.kernels.gpu.module import Buffer, Module, Step
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.group_sample import Family
from tilewright_lab.compare.gpu_measure import Compiled, Launch, Part, Translate, Variant

Sized = TypeVar('Sized', Array, Buffer)

_SHARE = re.compile(r'\bbegin = BLOCK_Z \* (\d+);')


def loosened(kernel: Kernel, split: int, most: int) -> tuple[Kernel, tuple[tuple[str, int], ...]]:
    """(kernel with parameters in the place of its split, their values).

    `most` parts have room in its workspace. A kernel that does not depend on the split comes back
    as it is.
    """
    if split == 1:
        return kernel, ()
    body, numbers = kernel.body, {}
    share = _SHARE.search(body)
    if share:
        for text in (r'\bbegin = BLOCK_Z \* ', r'\bbegin \+ '):
            body = re.sub(f'({text}){share[1]}\\b', r'\1share', body)
        numbers['share'] = int(share[1])
    loose = body.replace(
        f'arrived[0] != {float(split - 1)!r}f', 'arrived[0] != (float)(parts - 1)'
    ).replace(f'part < {split};', 'part < parts;')
    if loose != body:
        numbers['parts'] = split
    args = (
        *(_roomy(a, most) if isinstance(a, Array) else a for a in kernel.args),
        *(Scalar(name) for name in numbers),
    )
    grid = (*kernel.grid[:2], 1) if share else kernel.grid
    return replace(kernel, body=loose, args=args, grid=grid), tuple(numbers.items())


def _roomy(array: Sized, most: int) -> Sized:
    """The workspace of a split, with room for `most` parts."""
    return replace(array, sizes=(most, *array.sizes[1:])) if array.name == 'partial' else array


class _Kernels:
    """Distinct kernels of a compilation, each under a name of its own."""

    def __init__(self) -> None:
        self.places: dict[Kernel, int] = {}

    def place(self, kernel: Kernel) -> int:
        return self.places.setdefault(kernel, len(self.places))

    @property
    def named(self) -> list[Kernel]:
        return [replace(kernel, name=f'{kernel.name}_{i}') for kernel, i in self.places.items()]


def compile_families(
    group: Group, families: Sequence[Family], translate: Translate
) -> list[Compiled[str]]:  # fmt: skip
    """[Family] -> [Compiled]; schedules that cannot be generated or compiled are `refused`.

    One compilation for all families; where it fails, one for each.
    """
    digest = families[0].digest
    kernels = _Kernels()
    made: list[Part] = []
    fine: list[Family] = []
    refused: list[tuple[GpuSchedule, str]] = []
    for family in families:
        try:
            made.append(_part(group, family, kernels))
            fine.append(family)
        except TilewrightError as error:
            refused += [(schedule, str(error)) for schedule in family.schedules]
    if not made:
        return [Compiled(digest, b'', (), (), tuple(refused))]
    named = kernels.named
    try:
        binary, resources = translate(named)
    except TilewrightError as error:
        if len(fine) == 1:
            refused += [(schedule, str(error)) for schedule in fine[0].schedules]
            return [Compiled(digest, b'', (), (), tuple(refused))]
        alone = [one for family in fine for one in compile_families(group, (family,), translate)]
        return [*alone, *([Compiled(digest, b'', (), (), tuple(refused))] if refused else [])]
    taken = tuple((kernel, resources[kernel.name]) for kernel in named)
    return [Compiled(digest, binary, taken, tuple(made), tuple(refused))]


def _part(group: Group, family: Family, kernels: _Kernels) -> Part:
    """How the schedules of a family launch kernels; buffers are those of the most parts."""
    splits = [dict(schedule.tiles).get('split', 1) for schedule in family.schedules]
    most = max(splits)
    modules = [generate(group, schedule) for schedule in family.schedules]
    if any(module.ahead != modules[0].ahead for module in modules):
        raise ScheduleError(
            f'{group.label}: what runs ahead depends on the split; measure it alone'
        )
    buffers = {b.name: _roomy(b, most) for module in modules for b in module.buffers}
    variants = []
    for schedule, split, module in zip(family.schedules, splits, modules, strict=True):
        steps = tuple(_launch(step, split, most, kernels) for step in module.steps)
        variants.append(Variant(schedule, steps, steps[_main(module)].kernel))
    ahead = tuple(_launch(step, 1, most, kernels) for step in modules[0].ahead)
    return Part(tuple(buffers.values()), ahead, tuple(variants))


def _launch(step: Step, split: int, most: int, kernels: _Kernels) -> Launch:
    kernel, numbers = loosened(step.kernel, split, most)
    grid = step.kernel.grid if kernel.grid != step.kernel.grid else None
    return Launch(kernels.place(kernel), step.buffers, numbers, grid)


def _main(module: Module) -> int:
    """The step that does the work: not one that zeroes or finishes a result."""
    names = [step.kernel.name for step in module.steps]
    return next((i for i, name in enumerate(names) if not name.startswith('cnnopt_')), 0)
