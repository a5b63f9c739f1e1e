"""The names of the package: all there, imported when they are used and not before."""

from __future__ import annotations

import subprocess
import sys

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
