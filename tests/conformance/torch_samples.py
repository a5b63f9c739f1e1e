"""PyTorch's own samples of convolutions and poolings (OpInfo), as functions of their tensors.

They come from `torch.testing._internal.common_methods_invocations`, which PyTorch tests itself by.
"""

from __future__ import annotations

import random
import sys
import types
import unittest
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

CONVOLUTIONS = tuple(
    f'nn.functional.{name}{n}d' for name in ('conv', 'conv_transpose') for n in (1, 2, 3)
)
POOLINGS = tuple(
    f'nn.functional.{name}{n}d'
    for name in ('max_pool', 'avg_pool', 'adaptive_avg_pool', 'adaptive_max_pool')
    for n in (1, 2, 3)
)
OPERATORS = (*CONVOLUTIONS, *POOLINGS)
# Beside these PyTorch has samples of fractional poolings, which draw random windows, of max_unpool,
# which scatters, and of the backward passes of poolings.


def load(names: Collection[str] = OPERATORS) -> dict[str, Any]:
    """name -> OpInfo, of the first variant of each."""
    if 'expecttest' not in sys.modules:
        try:
            import expecttest  # noqa: F401
        except ImportError:
            # PyTorch's helpers name its classes for tests of their own, which do not run here.
            module: Any = types.ModuleType('expecttest')
            module.TestCase = unittest.TestCase
            module.assert_expected_inline = None
            sys.modules['expecttest'] = module
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        from torch.testing._internal import common_utils
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.opinfo import core
    # They look for a test of PyTorch's own on the stack, for every sample: half of the time.
    for module in (common_utils, core):
        module.extract_test_fn = lambda: None
    common_utils.set_rng_seed = _set_seed
    return {info.name: info for info in reversed(op_db) if info.name in names}


def _set_seed(seed: int) -> None:
    """Every generator of the CPU. PyTorch would ask absent devices too, and format the stack for
    each: most of the time that a sample takes.
    """
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


HERE = '<tensor>'  # the place of a tensor among the arguments


@dataclass(frozen=True)
class Sample:
    """One call: the function, its arguments with the places of tensors, and the tensors."""

    operator: str
    function: Any
    arguments: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...]
    tensors: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, info: Any, sample: Any) -> Sample:
        given, named = (sample.input, *sample.args), dict(sample.kwargs)
        tensors = [a.detach() for a in (*given, *named.values()) if isinstance(a, torch.Tensor)]
        places = tuple(HERE if isinstance(a, torch.Tensor) else a for a in given)
        words = {k: HERE if isinstance(a, torch.Tensor) else a for k, a in named.items()}
        return cls(info.name, info.op, places, tuple(words.items()), tuple(tensors))

    @property
    def key(self) -> str:
        """What makes it another sample: shapes and numbers, not data."""
        shapes = [list(tensor.shape) for tensor in self.tensors]
        return f'{self.operator}{self.arguments}{dict(self.named)} of {shapes}'

    def call(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The function on tensors in the places of its own; results as a tuple."""
        left = iter(tensors)
        arguments = [next(left) if a is HERE else a for a in self.arguments]
        named = {k: next(left) if a is HERE else a for k, a in self.named}
        result = self.function(*arguments, **named)
        return result if isinstance(result, tuple) else (result,)


class Samples(torch.nn.Module):
    """Many samples in one module, so that one trace serves all."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__()
        # Without their tensors: those of a module's attributes are not what it is called with.
        self.calls = [(replace(sample, tensors=()), len(sample.tensors)) for sample in samples]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = []
        left = list(tensors)
        for sample, count in self.calls:
            results += sample.call(left[:count])
            left = left[count:]
        return tuple(results)


def samples(info: Any) -> list[Sample]:
    """The distinct float32 samples of an operator."""
    found = (Sample.of(info, s) for s in info.sample_inputs('cpu', torch.float32))
    return list({sample.key: sample for sample in found}.values())


def errors(info: Any) -> list[tuple[Sample, type, str]]:
    """Calls that PyTorch refuses: with the error, and what its text matches."""
    if info.error_inputs_func is None:
        return []
    return [
        (Sample.of(info, e.sample_input), e.error_type, e.error_regex)
        for e in info.error_inputs('cpu')
    ]
