"""ONNX's backend node tests: every case of every operator that docs/operators.md lists."""

from __future__ import annotations

import os
import unittest
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import pytest
from onnx.backend.base import Backend
from onnx.backend.test import BackendTest
from onnx_backend import CompiledBackend, ReferenceBackend
from onnx_cases import OPERATORS, REASONS, all_cases, operator_of, our_cases, page, why_not

# All cases take some minutes to compile: TILEWRIGHT_CONFORMANCE=all pytest tests/conformance
ALL = os.environ.get('TILEWRIGHT_CONFORMANCE') == 'all'
MANY = (
    'Conv', 'ConvTranspose', 'MaxPool', 'AveragePool', 'MatMul', 'Gemm', 'Resize', 'LSTM', 'GRU',
    'RNN',
)  # fmt: skip
PAGE = Path(__file__).parents[2] / 'docs' / 'operators.md'
RUNNING = {name for name, case in our_cases().items() if why_not(case) is None}


def node_tests(backend: type[Backend], names: Iterable[str]) -> type[unittest.TestCase]:
    """ONNX's runner with our cases; it would compute all of them again."""
    cases = {'node': [our_cases()[name] for name in names]}
    with mock.patch(f'{BackendTest.__module__}.load_model_tests', lambda kind: cases.get(kind, ())):
        runner = BackendTest(backend, __name__)
    offered = runner.test_cases['OnnxBackendNodeModelTest']
    tests = {name: getattr(offered, f'{name}_cpu') for name in sorted(names)}
    return type('Nodes', (unittest.TestCase,), tests)


def sample(names: Iterable[str]) -> set[str]:
    """Cases that are also compiled in every run: a third of the contractions and windows, and one
    of each other operator, the first by name. The others have the same few kinds of stages.
    """
    chosen, seen = set(), Counter()
    for name in sorted(names):
        operator = operator_of(our_cases()[name])
        if operator and (not seen[operator] or (operator in MANY and seen[operator] % 3 == 0)):
            chosen.add(name)
        seen[operator] += 1
    return chosen


TestByReference = node_tests(ReferenceBackend, RUNNING)
TestCompiled = node_tests(CompiledBackend, RUNNING if ALL else sample(RUNNING))


def test_every_operator_is_tested() -> None:
    """Operators without a case of their own are those that the standard has none for."""
    tested = {operator_of(our_cases()[name]) for name in RUNNING}
    tested |= {node.op_type for name in RUNNING for node in our_cases()[name].model.graph.node}
    untested = {op for op in OPERATORS if op not in tested}
    # Beside those that ONNX has: tests/networks/test_training.py and test_integer_networks.py
    ours = {op for op in untested if op.startswith('tilewright::')}
    assert untested - ours <= {'GlobalLpPool', 'com.microsoft::QLinearAdd'}
    assert len(RUNNING) > 1100
    assert len(all_cases()) > len(our_cases())


def test_cases_are_left_out_for_the_listed_reasons_only() -> None:
    found = {why_not(case) for case in our_cases().values()} - {None}
    assert found <= set(REASONS)


def test_the_page_of_operators_is_current(request: pytest.FixtureRequest) -> None:
    if request.config.getoption('--update-golden'):
        PAGE.write_text(page())
    assert PAGE.read_text() == page()
