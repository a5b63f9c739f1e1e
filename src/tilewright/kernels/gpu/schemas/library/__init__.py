"""Vendors' libraries as schemas: `CUDNN` and `CUBLASLT` compute a group by a call into a library.

Goes in: a group and a schedule. Comes out: a module whose first step is the call (calls.py), and,
where the library cannot do what stands behind the sums, a kernel of ours that does. cuDNN is asked
for float32, cuBLASLt for f16 and bf16 as well, with sums in float32. Nothing here needs the
library: it is asked for algorithms and loaded by runtime/gpu/libraries.

Decisions of a schedule, all of them proposed by the library itself:

    version    of the library, as it numbers itself: 91900 is cuDNN 9.19.0
    algorithm  a number of cuDNN's, or the place among what cuBLASLt's heuristics name
    workspace  bytes that it may use
    fused      1: bias, residual and relu are part of the call
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.module import Buffer, Module, Step, tensor_buffers, with_own_dims
from tilewright.kernels.gpu.schema import Detour, GpuSchema
from tilewright.kernels.gpu.schemas.general import GENERAL
from tilewright.kernels.gpu.schemas.library.behind import Behind, behind
from tilewright.kernels.gpu.schemas.library.calls import (
    CUBLASLT,
    CUDNN,
    TITLES,
    AnyCall,
    decided,
    step_of,
)
from tilewright.kernels.gpu.schemas.library.convolution import convolution_of, fused_convolution
from tilewright.kernels.gpu.schemas.library.product import fused_product, product_of
from tilewright.ops.group import Group, Tensor
from tilewright.ops.parts import parts
from tilewright.ops.stage import Access, Dim, Stage, read, var
from tilewright.schedule.gpu import GpuSchedule

AFTER = GpuSchedule.of(GENERAL.name, threads=256)  # what a library leaves is done by this
ROUNDED = 'RoundedBias'
FEWER_PRODUCTS = (4, 5, 6, 7)  # cuDNN's algorithms by Fourier's and Winograd's transforms


@dataclass(frozen=True, slots=True)
class Prepared:
    """A group's main stage as a call, without what a schedule decides; `fused`: with all behind."""

    part: Group
    call: AnyCall
    operands: Mapping[str, Tensor]
    fused: bool

    @property
    def result(self) -> Tensor:
        return self.part.output if self.fused else self.part.tensor(self.part.main.write.tensor)


def prepared(library: str, part: Group, fused: bool) -> Prepared:
    """The call of a group of one part; a ScheduleError says why there is none."""
    if library == CUDNN:
        call, operands = convolution_of(part)
        whole = (call.n, call.k, call.out_h, call.out_w)
        if part.tensor(part.main.write.tensor).shape != whole:
            raise ScheduleError(f'{part.label} writes a part of a larger tensor')
        if fused:
            found = _behind(part)
            words = fused_convolution(part, call, found)
            call = replace(call, bias='bias' in words, residual='z' in words, relu=found.relu)
            operands = operands | {word: operand.tensor for word, operand in words.items()}
        return Prepared(part, call, operands, fused)
    product = product_of(part)
    call, operands = product.call, dict(product.operands)
    if fused:
        call = replace(call, result=part.output.dtype)
        found = _behind(part)
        words = fused_product(part, product, found)
        call = replace(call, bias='bias' in words, residual='c' in words, relu=found.relu)
        operands |= {word: operand.tensor for word, operand in words.items()}
    return Prepared(part, call, operands, fused)


def _behind(part: Group) -> Behind:
    if not part.epilogue:
        raise ScheduleError(f'{part.label} has nothing behind its sums that could be fused')
    return behind(part)


def main_part(library: str, group: Group) -> Group:
    """The part of a group that a library would compute."""
    halves = library == CUBLASLT and group.half and group.output.dtype not in ('u8', 'i8')
    if not group.is_plain and not halves:
        kinds = 'float32, f16 or bf16' if library == CUBLASLT else 'float32'
        raise ScheduleError(f'{group.label} is not {kinds} at affine indices throughout')
    group = with_own_dims(group)
    return next(part for part in parts(group) if group.main in part.stages)


def calls_for(library: str, group: Group) -> tuple[Prepared, ...]:
    """The call with all that is behind it, where the library can, and without."""
    part = main_part(library, group)
    plain = prepared(library, part, False)
    try:
        return prepared(library, part, True), plain
    except ScheduleError:
        return (plain,)


def why_not(library: str, group: Group) -> str:
    """Why a library cannot compute a group, in one sentence; '' where it can."""
    try:
        calls_for(library, group)
    except ScheduleError as error:
        return f'{TITLES[library]} cannot compute it: {error}'
    return ''


def said_of(group: Group) -> dict[str, str]:
    """library -> what it can do of a group, in one sentence each."""
    found = {}
    for library, title in TITLES.items():
        sentence = why_not(library, group)
        if not sentence:
            first = calls_for(library, group)[0]
            whole = first.fused or not first.part.epilogue
            rest = 'all of it' if whole else 'its sums, and a kernel of ours what is behind them'
            sentence = f'{title} can compute {rest}'
        found[library] = sentence
    return found


def _generated(library: str, group: Group, schedule: GpuSchedule) -> Module:
    found = prepared(library, group, bool(schedule['fused']))
    bias, operands = found.operands.get('bias'), found.operands
    ahead: tuple[Step, ...] = ()
    rounded: tuple[Buffer, ...] = ()
    if bias is not None and bias.dtype != found.result.dtype:
        # A library adds biases of the type that it stores.
        rounding = _rounding(bias, found.result.dtype)
        operands = {**operands, 'bias': rounding.output}
        ahead = GENERAL.generate(rounding, AFTER).steps
        rounded = tensor_buffers(rounding)[1:]
    step, buffers = step_of(library, decided(found.call, schedule), operands, found.result)
    own = Module(group, (*tensor_buffers(group), *rounded, *buffers), (step,), ahead)
    if found.fused or not group.epilogue:
        return own
    rest = _rest(group)
    after = GENERAL.generate(rest, AFTER)
    between = tuple(b for b in after.buffers if b.name == found.result.name)
    return replace(own, buffers=(*own.buffers, *between), steps=(step, *after.steps))


def _rounding(bias: Tensor, dtype: str) -> Group:
    """A bias in another type, as a group that is computed ahead."""
    dims = tuple(Dim(name, size) for name, size in zip(bias.dims, bias.shape, strict=True))
    here = tuple(var(name) for name in bias.dims)
    stage = Stage('round', dims, Access(ROUNDED, here), (Access(bias.name, here),), read(0))
    tensors = (
        replace(bias, role='constant'),
        Tensor(ROUNDED, bias.dims, bias.shape, 'output', dtype),
    )
    return Group(f'{bias.name}/rounded', tensors, (stage,))


def _rest(part: Group) -> Group:
    """What is behind the sums, as a group that reads them."""
    read = {a.tensor for s in part.epilogue for a in s.accesses}
    sums = part.main.write.tensor
    tensors = tuple(
        replace(t, role='input') if t.name == sums else t for t in part.tensors if t.name in read
    )
    storage = tuple(pair for pair in part.storage if pair[0] in read - {sums})
    return Group(f'{part.label}/behind', tensors, part.epilogue, storage)


def _by_transforms(group: Group, schedule: GpuSchedule) -> Detour:
    """Algorithms by transforms have fewer products than the group; how many, only cuDNN knows."""
    return Detour(0 if schedule['algorithm'] in FEWER_PRODUCTS else group.flops, ())


def _by_matrix_units(group: Group, schedule: GpuSchedule) -> Detour:
    """Products of halves run on matrix units, those of fp32 on multiply-add units."""
    return Detour(group.flops, (), 'wgmma_half' if group.half else '')


def _cudnn(group: Group, schedule: GpuSchedule) -> Module:
    return _generated(CUDNN, group, schedule)


def _cublaslt(group: Group, schedule: GpuSchedule) -> Module:
    return _generated(CUBLASLT, group, schedule)


LIBRARIES = (
    GpuSchema(
        name=CUDNN, words='a call of cuDNN, and one kernel of ours for what it leaves',
        generate=_cudnn, detour=_by_transforms,
    ),
    GpuSchema(
        name=CUBLASLT, words='a call of cuBLASLt, and one kernel of ours for what it leaves',
        generate=_cublaslt, detour=_by_matrix_units, both=True,
    ),
)  # fmt: skip
