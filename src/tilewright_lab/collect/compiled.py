"""Families of schedules -> machine code: one kernel for all splits of the same tiles.

Goes in: a group and some `Family`s, schedules that differ in their split alone. Comes out:
`Compiled`: machine code of all of them by one run of the compiler, and how each schedule launches
it. Nothing here needs a GPU.

Kernels whose blocks share a tile's sum differ, between one number of parts and another, in three
numbers of their source: pieces of a part, parts to wait for, parts to add up. `loosened` makes
parameters of them,

    begin = BLOCK_Z * 5; .. arrived[0] != 3.0f .. part < 4;       4 parts of 5 pieces each
    begin = BLOCK_Z * share; .. (float)(parts - 1) .. part < parts;

and kernels that are the same then are compiled once. Putting the numbers back gives the text that
was generated, so that what is measured is what is generated, but for what a compiler makes of loops
whose length it knows. A family of one schedule is compiled as it is generated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from tilewright.errors import ScheduleError, TilewrightError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import Array, Kernel, Scalar
from tilewright.kernels.gpu.module import Buffer, Module, Step
from tilewright.ops.group import Group
from tilewright.runtime.gpu.device import Resources
from tilewright.schedule.gpu import GpuSchedule

Of = TypeVar('Of')
Sized = TypeVar('Sized', Array, Buffer)
Translate = Callable[[Sequence[Kernel]], tuple[bytes, Mapping[str, Resources]]]

_SHARE = re.compile(r'\bbegin = BLOCK_Z \* (\d+);')


@dataclass(frozen=True, slots=True)
class Family(Generic[Of]):
    """Schedules of one subject that differ in their split alone where there are several.

    of   what they compute: a `Problem`, or the digest of a group
    """

    of: Of
    schedules: tuple[GpuSchedule, ...]

    @property
    def kind(self) -> tuple[str, str]:
        return self.schedules[0].schema, self.schedules[0].intrinsic


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel of a compiled family with its buffers and numbers."""

    kernel: int
    buffers: tuple[tuple[str, str], ...]
    numbers: tuple[tuple[str, int], ...] = ()
    grid: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """One schedule of a family: what a call launches, and which of its kernels is the main one."""

    schedule: GpuSchedule
    steps: tuple[Launch, ...]
    main: int


@dataclass(frozen=True, slots=True)
class Part:
    """One family: its buffers, what runs ahead, its schedules."""

    buffers: tuple[Buffer, ...]
    ahead: tuple[Launch, ...]
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Compiled(Generic[Of]):
    """Machine code of some families; `refused` are schedules with the sentence that says why."""

    of: Of
    binary: bytes
    kernels: tuple[tuple[Kernel, Resources], ...]
    parts: tuple[Part, ...]
    refused: tuple[tuple[GpuSchedule, str], ...] = ()

    @property
    def schedules(self) -> list[GpuSchedule]:
        made = [variant.schedule for part in self.parts for variant in part.variants]
        return [*(schedule for schedule, _ in self.refused), *made]

    def smaller(self) -> list[Compiled[Of]]:
        """The same, family by family, or schedule by schedule where there is one family."""
        if len(self.parts) > 1:
            pieces = [(part,) for part in self.parts]
        else:
            pieces = [(replace(p, variants=(v,)),) for p in self.parts for v in p.variants]
        return [replace(self, parts=piece, refused=()) for piece in pieces]


def refused(of: Of, reasons: Sequence[tuple[GpuSchedule, str]]) -> Compiled[Of]:
    """What stands for schedules that nobody compiled."""
    return Compiled(of, b'', (), (), tuple(reasons))


def cubins(architecture: str) -> Translate:
    """Translate by NVRTC."""
    from tilewright.runtime.gpu.cuda import compile_cubins

    def translate(kernels: Sequence[Kernel]) -> tuple[bytes, Mapping[str, Resources]]:
        binary, _, resources = compile_cubins(kernels, architecture)
        return binary, resources

    return translate


def untranslated(kernels: Sequence[Kernel]) -> tuple[bytes, dict[str, Resources]]:
    """No machine code: what a meter on the host takes."""
    return b'', {kernel.name: Resources() for kernel in kernels}


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

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.places: dict[Kernel, int] = {}

    def place(self, kernel: Kernel) -> int:
        return self.places.setdefault(kernel, len(self.places))

    @property
    def named(self) -> list[Kernel]:
        return [replace(k, name=f'{self.prefix}{k.name}_{i}') for k, i in self.places.items()]


def compile_families(
    group: Group, families: Sequence[Family[Of]], translate: Translate, prefix: str = ''
) -> list[Compiled[Of]]:
    """[Family] -> [Compiled]; schedules that cannot be generated or compiled are `refused`.

    One compilation for all families; where it fails, one for each. Names of kernels begin with
    `prefix`.
    """
    of = families[0].of
    kernels = _Kernels(prefix)
    made: list[Part] = []
    fine: list[Family[Of]] = []
    reasons: list[tuple[GpuSchedule, str]] = []
    for family in families:
        try:
            made.append(_part(group, family, kernels))
            fine.append(family)
        except TilewrightError as error:
            reasons += [(schedule, str(error)) for schedule in family.schedules]
    if not made:
        return [refused(of, reasons)]
    named = kernels.named
    try:
        binary, resources = translate(named)
    except TilewrightError as error:
        if len(fine) == 1:
            return [refused(of, [*reasons, *((s, str(error)) for s in fine[0].schedules)])]
        alone = [one for f in fine for one in compile_families(group, (f,), translate, prefix)]
        return [*alone, *([refused(of, reasons)] if reasons else [])]
    taken = tuple((kernel, resources[kernel.name]) for kernel in named)
    return [Compiled(of, binary, taken, tuple(made), tuple(reasons))]


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
    ahead = tuple(_launch(step, 1, most, kernels) for step in modules[0].ahead)
    variants = []
    for schedule, split, module in zip(family.schedules, splits, modules, strict=True):
        shared = split if len(splits) > 1 else 1
        steps = tuple(_launch(step, shared, most, kernels) for step in module.steps)
        variants.append(Variant(schedule, steps, steps[_main(module)].kernel))
    return Part(tuple(buffers.values()), ahead, tuple(variants))


def _launch(step: Step, split: int, most: int, kernels: _Kernels) -> Launch:
    kernel, numbers = loosened(step.kernel, split, most)
    grid = step.kernel.grid if kernel.grid != step.kernel.grid else None
    return Launch(kernels.place(kernel), step.buffers, numbers, grid)


def _main(module: Module) -> int:
    """The step that does the work: not one that zeroes or finishes a result."""
    names = [step.kernel.name for step in module.steps]
    return next((i for i, name in enumerate(names) if not name.startswith('cnnopt_')), 0)
