"""Limits on vectors (ReLU, ReLU6): NaN, infinities and zeros come out right."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.stencil.space import stencil_schedule
from tilewright.kernels.cpu.vector_epilogue import VectorTexts
from tilewright.machine.isa import ISAS
from tilewright.ops.convolution import conv2d
from tilewright.ops.stage import call, const, read
from tilewright_lab.simulate.emulate import run_program

ODD = np.array([math.nan, math.inf, -math.inf, -0.0, 0.0, 5.5, 6.0, 6.5, -1.0], np.float32)


@pytest.mark.isa
@pytest.mark.parametrize('activation', ['relu', 'relu6'])
def test_odd_numbers_pass_or_stop_at_the_limits(isa, tools, activation):
    """A depthwise window of one weight, which is one, on vectors of every length."""
    group = conv2d(c=2, h=4, w=24, k=2, groups=2, r=1, s=1, activation=activation)
    image = np.resize(ODD, (1, 2, 4, 24))
    want = np.maximum(image, 0) if activation == 'relu' else np.clip(image, 0, 6)
    arrays = {
        t.name: image if t.role == 'input' else np.ones(t.shape, np.float32)
        for t in group.tensors
        if t.role in ('input', 'constant')
    }
    for lanes in (n for n in (2, 4, 8, 16) if n <= ISAS[isa].lanes):
        schedule = stencil_schedule(group, isa, lanes, 2, 2)
        source, flags = generate(group, schedule), compiler_flags(schedule)
        assert 'vec_max_number' in source
        for out in run_program(group, source, arrays, tools(isa), flags):
            np.testing.assert_array_equal(out, want)


def test_only_numbers_are_limits():
    """A maximum of two vectors may have NaN in either, and so may a limit that is NaN."""
    cases = {
        'max_number': call('max', read(0), const(0.0)),
        'min_number': call('min', read(0), const(6.0)),
        'max': call('max', read(0), read(1)),
        'min': call('min', read(0), const(math.nan)),
    }
    for name, expr in cases.items():
        texts = VectorTexts()
        text = texts.text(expr, ['a_v', 'b_v'])
        assert text.startswith(f'vec_{name}(')
        assert texts.epilogue(text).called == (name,)
