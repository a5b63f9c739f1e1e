"""Winograd keeps its error budget where nothing is measured, whatever is behind the convolution."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tilewright.machine.measure import load_machine
from tilewright.ops.winograd_error import DEFAULT_LIMIT

SCRIPT = (
    Path(__file__).resolve().parents[2]
    / 'src'
    / 'tilewright_lab'
    / 'scripts'
    / 'winograd_budget.py'
)
SHRINKING = (
    'tanh', 'sigmoid', 'relu6', 'clip', 'hard_sigmoid', 'hard_swish', 'softsign', 'sine',
    'residual_relu6', 'gate_of_result', 'norm_tanh', 'exponential',
)  # fmt: skip


@pytest.fixture(scope='module')
def script():
    found = importlib.util.spec_from_file_location('winograd_budget', SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)  # where dataclasses look themselves up
        found.loader.exec_module(module)
        yield module


def test_every_activation_is_drawn(script):
    from tilewright.ops.pointwise import ACTIVATIONS

    drawn = {layer.epilogue for layer in script.draw(len(script.EPILOGUES), 1)}
    assert set(ACTIVATIONS) | set(SHRINKING) <= drawn == set(script.EPILOGUES)


@pytest.mark.parametrize('number', range(len(SHRINKING)))
def test_the_tiles_nearest_to_the_budget_are_within_it(script, number):
    """A fixed sample of what `src/tilewright_lab/scripts/winograd_budget.py` runs, one layer for
    each epilogue.
    """
    *_, layer = script.draw(number + 1, 3, SHRINKING)
    machine, _ = load_machine(measure=False)
    tried = script.schedules(layer.group, machine, DEFAULT_LIMIT)
    for row in script.errors(layer, dict(list(tried.items())[-1:])).values():
        assert row['predicted'] <= DEFAULT_LIMIT
        assert row['error'] <= DEFAULT_LIMIT
