"""ONNX's own cases of Loop, If and Scan, through `fallback='onnxruntime'`."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_cases import all_cases, why_not

import tilewright as tw
from tilewright.fallback.subgraphs import graphs_of

pytest.importorskip('onnxruntime')
pytestmark = pytest.mark.filterwarnings('ignore:.*nominal figures.*')
# Tensors of f16 are passed on to ONNX Runtime; sequences, bf16 and the like are not taken at all,
# and operators of a domain that ONNX Runtime does not have are nobody's.
CASES = {
    name: case
    for name, case in all_cases().items()
    if any(True for node in case.model.graph.node for _ in graphs_of(node))
    and why_not(case) in (None, 'float16')
    and not any(node.domain for node in case.model.graph.node)
}


def test_there_are_cases_of_each() -> None:
    operators = {node.op_type for case in CASES.values() for node in case.model.graph.node}
    assert {'Loop', 'If', 'Scan'} <= operators
    assert len(CASES) > 20


@pytest.mark.parametrize('name', sorted(CASES))
def test_a_case_with_subgraphs(name: str) -> None:
    model, (given, want) = CASES[name].model, CASES[name].data_sets[0]
    arrays = {
        info.name: np.asarray(array) for info, array in zip(model.graph.input, given, strict=True)
    }
    shapes = {key: array.shape for key, array in arrays.items()}
    network = tw.compile(model, fallback='onnxruntime', shapes=shapes, threads=1)
    got = network.run(arrays)
    assert list(got) == [info.name for info in model.graph.output]
    for result, right in zip(got.values(), want, strict=True):
        assert result.dtype == np.asarray(right).dtype
        assert result.shape == np.shape(right)
        np.testing.assert_allclose(
            result, right, rtol=max(CASES[name].rtol, 1e-5), atol=CASES[name].atol + 1e-6
        )
