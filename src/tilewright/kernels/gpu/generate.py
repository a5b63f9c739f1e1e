"""[Group, GpuSchedule] -> [Module]: the table of schemas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.names import safe_iterators
from tilewright.kernels.gpu.module import Buffer, Module, Step
from tilewright.kernels.gpu.schemas.cnnopt import code as cnnopt
from tilewright.kernels.gpu.schemas.depthwise import code as depthwise
from tilewright.kernels.gpu.schemas.general import code as general
from tilewright.kernels.gpu.schemas.patch import code as patch
from tilewright.kernels.gpu.schemas.rows import code as rows
from tilewright.kernels.gpu.schemas.tiled import code as tiled
from tilewright.kernels.gpu.schemas.transposed import code as transposed
from tilewright.kernels.gpu.schemas.winograd import code as winograd
from tilewright.ops.group import Group
from tilewright.ops.parts import depends_on_inputs, parts
from tilewright.schedule.gpu import GpuSchedule

SCHEMAS = {
    'depthwise': depthwise.generate,
    'general': general.generate,
    'patch': patch.generate,
    'rs': cnnopt.generate,
    's': cnnopt.generate,
    'strip': patch.generate,
    'tiled': tiled.generate,
    'transposed': transposed.generate,
    'winograd': winograd.generate,
}

# How parts of a group are computed beside the one that a schedule is about.
OTHERS = GpuSchedule.of(general.NAME, threads=256)

# Identifiers that the schemas use themselves, and words of the target languages.
_WORDS = """
a acc acos acosh all arrived asin asinh asm at atan atanh b base begin bool break case ceil channel
char column const continue cos cosh counter default depth depths do double e else end erf exp expm1
extern fabs first flat float floor fmax fmin fmod for four from full goto group half high highs i if
image inline inner input inside int j joined kernel l lane lanes last left line local log log1p long
lookup low lows min mine next now offset out owner pair part partial piece pixel place plane point
pow private q register return rint rounds row row8 share short signed sin sinh sizeof slot sqrt
static step strip struct sums switch tan tanh team there tile to top two typedef u union unsigned
upper v value values visible void volatile warp weight while whole window x y
"""
_TAKEN = frozenset(_WORDS.split())


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """The kernels that compute `group` by `schedule`; deterministic.

    A group of several parts (ops/parts.py) becomes as many kernels or more, with buffers for what
    is stored between them: the schedule is that of the part with the main stage, the others are
    general. Parts that need no input run once, ahead.
    """
    group = with_own_dims(group)
    if schedule.schema == rows.NAME:  # the only one that takes all parts at once
        return rows.generate(group, schedule, _TAKEN)
    if schedule.schema not in SCHEMAS:
        known = ', '.join((*SCHEMAS, rows.NAME))
        raise ScheduleError(f'{schedule.schema!r} is not a GPU schema; choose one of {known}')
    if schedule.schema != general.NAME and not group.is_plain:
        raise ScheduleError(
            f'{group.label}: {schedule.schema} computes float32 at affine indices only; use '
            f'{general.NAME}'
        )
    cut = parts(group)
    main = next(i for i, part in enumerate(cut) if group.main in part.stages)
    rest = schedule if schedule.schema == general.NAME else OTHERS
    modules = [_one(p, schedule if i == main else rest) for i, p in enumerate(cut)]
    return modules[0] if len(modules) == 1 else _joined(group, modules)


def with_own_dims(group: Group) -> Group:
    """The group with a name of its own for every dimension of a tensor, as arguments need it."""
    if all(len(set(t.dims)) == len(t.dims) for t in group.tensors):
        return group
    tensors = tuple(
        replace(t, dims=tuple(f'd{axis}' for axis in range(len(t.dims))))
        if len(set(t.dims)) < len(t.dims)
        else t
        for t in group.tensors
    )
    return replace(group, tensors=tensors)


def _one(group: Group, schedule: GpuSchedule) -> Module:
    safe, _ = safe_iterators(group, _TAKEN)
    return replace(SCHEMAS[schedule.schema](safe, schedule), group=group)


def _joined(group: Group, modules: Sequence[Module]) -> Module:
    """Modules of a group's parts as one, each tensor a single buffer."""
    buffers: dict[str, Buffer] = {}
    steps: list[Step] = []
    ahead: list[Step] = []
    for module, moving in zip(modules, depends_on_inputs(group), strict=True):
        buffers |= {buffer.name: buffer for buffer in module.buffers}
        ahead += module.ahead
        (steps if moving else ahead).extend(module.steps)
    return Module(group, tuple(buffers.values()), tuple(steps), tuple(ahead))
