"""Networks in tiles, which plain C computes here: bf16 by `precision=`, int8 from a QDQ model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import zoo
from tilewright.machine.detect import describe_host
from tilewright.machine.machine import Machine
from tilewright.machine.measure import nominal_machine

SMALL = {'image': 67, 'width': 8}


@pytest.fixture
def with_tiles() -> Machine:
    """This host in portable C, as if it had tiles: peaks that make them worth while."""
    plain = nominal_machine(describe_host(), 'portable')
    peaks = {'tile_one_gops': 4e3, 'tile_all_gops': 8e3}
    return replace(plain, **peaks, bf16_one_gflops=2e3, bf16_all_gflops=4e3)


def schemas(net: tw.Network) -> set[str]:
    return {kernel.schedule.schema for kernel in net.kernels.values()}


def test_a_network_in_bf16_is_near_fp32(with_tiles: Machine) -> None:
    pytest.importorskip('ml_dtypes', reason='numpy has no bf16 without the package ml_dtypes')
    model = zoo.onnx_model('alexnet', **SMALL)
    inputs = zoo.inputs(zoo.network('alexnet', **SMALL))
    net = tw.compile(model, machine=with_tiles, threads=2, precision='bf16')
    assert 'tiles' in schemas(net)
    (got,), (want,) = (
        n.run(inputs).values() for n in (net, tw.compile(model, machine=with_tiles, threads=2))
    )
    assert got.dtype == want.dtype == np.float32
    assert np.abs(got - want).max() <= 0.03 * np.abs(want).max()


def test_a_quantised_network_in_tiles_has_the_integers_of_vectors(
    with_tiles: Machine, tmp_path: Path
) -> None:
    pytest.importorskip('onnxruntime', reason='models are quantised by onnxruntime')
    from tilewright_lab.scripts.integer_networks import quantise

    path = quantise('alexnet', tmp_path / 'small.onnx', **SMALL)
    inputs = zoo.inputs(zoo.network('alexnet', **SMALL))
    net = tw.compile(path, machine=with_tiles, threads=2)
    plain = replace(with_tiles, tile_one_gops=0.0, tile_all_gops=0.0)
    isas = {kernel.schedule.isa for kernel in net.kernels.values()}
    assert 'portabletiles' in isas
    (got,), (want,) = (
        n.run(inputs).values() for n in (net, tw.compile(path, machine=plain, threads=2))
    )
    assert np.array_equal(got, want)


def test_a_machine_without_tiles_or_narrow_weights_says_what_it_has(with_tiles: Machine) -> None:
    plain = nominal_machine(describe_host(), 'portable')
    with pytest.raises(tw.TilewrightError, match='it has fp32'):
        tw.compile('squeezenet', machine=plain, precision='bf16')
    with pytest.raises(tw.TilewrightError, match='it has fp32, bf16'):
        tw.compile('squeezenet', machine=with_tiles, precision='fp16')
