"""The names of the package: all there, imported when they are used and not before."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright


@pytest.mark.parametrize('name', tilewright.__all__)
def test_a_public_name_is_found_where_it_is_defined(name):
    value = getattr(tilewright, name)
    assert getattr(sys.modules[value.__module__], name) is value
    assert name in dir(tilewright)


def test_another_name_is_refused():
    with pytest.raises(AttributeError, match="module 'tilewright' has no attribute 'optimise'"):
        tilewright.optimise  # noqa: B018


def test_a_worker_starts_without_what_it_does_not_need():
    code = 'import sys, tilewright.runtime.worker; print(*sys.modules)'
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert 'tilewright.runtime.worker' in loaded
    assert not {'tilewright.network.compile', 'tilewright.graph.lower', 'onnx', 'casadi'} & {
        *loaded
    }


def test_kernels_of_gpus_and_networks_are_not_loaded_for_a_layer_on_a_cpu():
    code = (
        'import sys; from tilewright import targets; targets.target_of("cpu"); print(*sys.modules)'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert 'tilewright.targets.cpu.target' in loaded
    assert not {'tilewright.kernels.gpu.registry', 'tilewright.graph.lower'} & {*loaded}


CONTRACTS = Path(__file__).parents[2] / 'docs' / 'contracts.md'
WRITTEN = re.findall(
    r'^\| `tw\.([a-z]\w*)(\([^`]*=[^`]*\)|\(\*[^`]*\))`', CONTRACTS.read_text(), re.M
)


@pytest.mark.parametrize(('name', 'arguments'), WRITTEN, ids=[name for name, _ in WRITTEN])
def test_calls_are_written_as_they_can_be_made(name, arguments):
    """Positional where they are positional, by keyword alone where they are."""
    spoken = ast.parse(f'def call{arguments}: ...').body[0].args
    real = inspect.signature(getattr(tilewright, name)).parameters
    for kind, listed in (
        (inspect.Parameter.KEYWORD_ONLY, spoken.kwonlyargs),
        (inspect.Parameter.POSITIONAL_OR_KEYWORD, spoken.args),
        (inspect.Parameter.POSITIONAL_ONLY, spoken.posonlyargs),
    ):
        for argument in listed:
            assert real[argument.arg].kind is kind, argument.arg


def test_the_calls_of_the_contract_are_found():
    assert {'conv2d', 'matmul', 'optimize', 'compile', 'load', 'export'} <= dict(WRITTEN).keys()
