"""Damaged models: every one ends in a program or in one sentence."""

from __future__ import annotations

import itertools
from collections import Counter

from onnx_mutants import mutants, seeds, survive


def test_the_undamaged_models_are_lowered() -> None:
    assert [survive(data) for data in seeds()] == ['program'] * 3


def test_damaged_models() -> None:
    """The same 600 in every run; onnx_mutants.py itself goes on for as long as one wishes."""
    counts = Counter(survive(data) for data in itertools.islice(mutants(1), 600))
    assert set(counts) == {'error', 'program'}
    assert counts['error'] > 300
