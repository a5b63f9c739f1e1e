"""Optimisers: how a parameter follows from its gradient, element by element.

A rule is a frozen value. `slots` are the tensors that it keeps for every parameter, zeros at first;
`update` gives the new parameter and the new slots as results. Names, defaults and formulas are
PyTorch's (torch.optim), so that the same numbers give the same curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.errors import InputError
from tilewright.graph.lowering.build import pointwise
from tilewright.graph.lowering.result import Result
from tilewright.ops.functions import add, mul, sub
from tilewright.ops.stage import Expr, call, const, read, substituted

P, G, A, B = (read(i) for i in range(4))
TINY = 1e-30  # a beta of 0 has no logarithm; the powers of this one are as good as 0


class Optimizer(Protocol):
    """A rule; `lr` is only what a step begins with, since it is an input of every call."""

    @property
    def lr(self) -> float: ...

    @property
    def slots(self) -> tuple[str, ...]: ...

    def factors(self, lr: Result, step: Result) -> list[Result]:
        """What all parameters share: the rate first. `step` counts from 1."""
        ...

    def update(
        self, parameter: Result, gradient: Result, slots: Mapping[str, Result],
        factors: Sequence[Result],
    ) -> tuple[Result, dict[str, Result]]:  # fmt: skip
        """The new parameter, the new slots."""
        ...


def _checked(**numbers: float) -> None:
    for name, value in numbers.items():
        if not isinstance(value, int | float) or not value >= 0.0:
            raise InputError(f'{name} is {value!r}; it must be a number, at least 0')


def _computed(word: str, expr: Expr, operands: Sequence[Result]) -> Result:
    """An expression of those operands that it reads."""
    used = sorted(set(expr.reads()))
    numbers = [read(used.index(i)) if i in used else P for i in range(len(operands))]
    kept = [operands[i] for i in used]
    return pointwise(word, substituted(expr, numbers), kept, kept[0].dtype)


def _decayed(weight_decay: float) -> Expr:
    return add(G, mul(const(weight_decay), P)) if weight_decay else G


@dataclass(frozen=True, slots=True)
class SGD:
    """v = momentum v + g;  p = p - lr v, with g = gradient + weight_decay p."""

    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _checked(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        if self.nesterov and not self.momentum:
            raise InputError('nesterov needs a momentum above 0')

    @property
    def slots(self) -> tuple[str, ...]:
        return ('momentum_buffer',) if self.momentum else ()

    def factors(self, lr: Result, step: Result) -> list[Result]:
        return [lr]

    def update(
        self, parameter: Result, gradient: Result, slots: Mapping[str, Result],
        factors: Sequence[Result],
    ) -> tuple[Result, dict[str, Result]]:  # fmt: skip
        (lr,), g = factors, _decayed(self.weight_decay)
        if not self.momentum:
            moved = sub(P, mul(A, g))
            return _computed('sgd', moved, [parameter, gradient, lr]), {}
        speed = add(mul(const(self.momentum), A), g)
        new = _computed('momentum', speed, [parameter, gradient, slots['momentum_buffer']])
        by = add(g, mul(const(self.momentum), A)) if self.nesterov else A
        moved = _computed('sgd', sub(P, mul(B, by)), [parameter, gradient, new, lr])
        return moved, {'momentum_buffer': new}


@dataclass(frozen=True, slots=True)
class Adam:
    """Kingma and Ba 2015, Algorithm 1; `decoupled` decays weights beside it (AdamW)."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def __post_init__(self) -> None:
        _checked(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        if len(self.betas) != 2 or not all(0.0 <= b < 1.0 for b in self.betas):
            raise InputError(f'betas are {self.betas!r}; give two numbers, from 0 to below 1')

    @property
    def slots(self) -> tuple[str, ...]:
        return ('exp_avg', 'exp_avg_sq')

    def factors(self, lr: Result, step: Result) -> list[Result]:
        """The rate, 1 - beta1^step and 1 - beta2^step, of which float32 would lose the last digits
        by subtracting: in the first step 1 - 0.999 is off by 1.3e-5 of itself."""
        logs = [math.log(max(beta, TINY)) for beta in self.betas]
        rests = [call('neg', call('expm1', mul(const(log), P))) for log in logs]
        return [lr, *(pointwise('rest', rest, [step], step.dtype) for rest in rests)]

    def update(
        self, parameter: Result, gradient: Result, slots: Mapping[str, Result],
        factors: Sequence[Result],
    ) -> tuple[Result, dict[str, Result]]:  # fmt: skip
        one, two = self.betas
        g = G if self.decoupled else _decayed(self.weight_decay)
        average = add(mul(const(one), A), mul(const(1.0 - one), g))
        square = add(mul(const(two), A), mul(const(1.0 - two), mul(g, g)))
        m = _computed('average', average, [parameter, gradient, slots['exp_avg']])
        v = _computed('square', square, [parameter, gradient, slots['exp_avg_sq']])
        # reads: parameter, m, v, lr, 1 - beta1^t, 1 - beta2^t
        root = add(call('div', call('sqrt', A), call('sqrt', read(5))), const(self.eps))
        moved = call('div', call('mul', B, call('div', G, read(4))), root)
        kept = P
        if self.decoupled and self.weight_decay:
            kept = mul(P, sub(const(1.0), mul(B, const(self.weight_decay))))
        new = _computed('adam', sub(kept, moved), [parameter, m, v, *factors])
        return new, {'exp_avg': m, 'exp_avg_sq': v}


def AdamW(  # noqa: N802
    lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> Adam:  # fmt: skip
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), by PyTorch's defaults."""
    return Adam(lr, betas, eps, weight_decay, decoupled=True)
