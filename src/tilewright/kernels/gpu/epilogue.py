"""Pointwise stages behind and before the main one for devices, with every function there is.

Goes in: a group. Comes out: its `Epilogue` (kernels/cpu/pointwise.py has the addresses of what it
reads), its `Front` (kernels/cpu/front.py), and `helpers`, the definitions of what both call, for
the kernels in which they stand.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernels.cpu.expression import Typed
from tilewright.kernels.cpu.front import Front, plan_front
from tilewright.kernels.cpu.pointwise import Epilogue, plan_epilogue, typed_text
from tilewright.kernels.gpu.typed import GpuTyped, definitions, narrow
from tilewright.ops.group import Group
from tilewright.ops.stage import Expr


def gpu_epilogue(group: Group) -> Epilogue:
    """[Group] -> [Epilogue]; a main stage without a sum has its functions in it, too."""
    typed = GpuTyped.of(group)
    planned = plan_epilogue(group, lambda stage, texts: device_text(typed, stage.expr, texts))
    if group.main.combiner is None:
        device_text(typed, group.main.expr, [''] * len(group.main.reads))
    return replace(planned, functions=tuple(typed.functions))


def gpu_front(group: Group) -> Front | None:
    """[Group] -> [Front]; None where nothing comes before the main stage."""
    return plan_front(group, GpuTyped.of(group), device_text)


def device_text(typed: Typed, expr: Expr, operands: list[str]) -> str:
    """A float32 expression over float32 operands, in CUCL."""
    return narrow(typed_text(typed, expr, operands))


def helpers(group: Group, epilogue: Epilogue, front: Front | None = None) -> str:
    """What kernels of the group have to define first: types and functions."""
    pointwise = group.epilogue or group.main.combiner is None or front is not None
    called = dict.fromkeys((*(front.functions if front else ()), *epilogue.functions))
    return definitions(called) if pointwise else ''
