"""Pointwise stages that follow a main stage: bias, residual, activation. All are data, no code."""

from __future__ import annotations

from tilewright.errors import SpecError
from tilewright.ops.stage import Access, Dim, Expr, Stage, call, const, read, var

LEAKY_SLOPE = 0.01  # the default of PyTorch's leaky_relu and of ONNX's LeakyRelu

ACTIVATIONS: dict[str, Expr] = {
    'relu': call('max', read(0), const(0.0)),
    'relu6': call('min', call('max', read(0), const(0.0)), const(6.0)),
    'leaky_relu': call('max', read(0), call('mul', read(0), const(LEAKY_SLOPE))),
    'sigmoid': call('sigmoid', read(0)),
    'tanh': call('tanh', read(0)),
    'silu': call('mul', read(0), call('sigmoid', read(0))),
}


def check_activation(name: str | None) -> None:
    if name is not None and name not in ACTIVATIONS:
        raise SpecError(f'activation {name!r} is not known; use one of {", ".join(ACTIVATIONS)}')


def pointwise(
    name: str, dims: tuple[Dim, ...], out: str, source: str, expr: Expr, *others: Access
) -> Stage:
    """`out[dims] = expr(source[dims], others...)` over parallel dimensions."""
    here = tuple(var(d.name) for d in dims)
    return Stage(name, dims, Access(out, here), (Access(source, here), *others), expr)
