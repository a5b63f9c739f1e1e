"""Epilogues for devices: the pointwise stages behind the main one, with every function there is.

Goes in: a group. Comes out: its `Epilogue` (kernels/cpu/pointwise.py has the addresses of what it
reads), and `helpers`, the definitions of what it calls, for the kernels in which it stands.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.kernels.cpu.pointwise import Epilogue, plan_epilogue, typed_text
from tilewright.kernels.gpu.typed import GpuTyped, definitions, narrow
from tilewright.ops.group import Group
from tilewright.ops.stage import Expr


def gpu_epilogue(group: Group) -> Epilogue:
    """[Group] -> [Epilogue]; a main stage without a sum has its functions in it, too."""
    typed = GpuTyped()
    planned = plan_epilogue(group, partial(device_text, typed))
    if group.main.combiner is None:
        device_text(typed, group.main.expr, [''] * len(group.main.reads))
    return replace(planned, functions=tuple(typed.functions))


def device_text(typed: GpuTyped, expr: Expr, operands: list[str]) -> str:
    """A float32 expression over float32 operands, in CUCL."""
    return narrow(typed_text(typed, expr, operands))


def helpers(group: Group, epilogue: Epilogue) -> str:
    """What kernels of the group have to define first: types and functions."""
    pointwise = group.epilogue or group.main.combiner is None
    return definitions(epilogue.functions) if pointwise else ''
