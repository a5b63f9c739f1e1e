"""How ncnn and MNN, the libraries of phones and Arm boards, run a network on a CPU.

Goes in: a `NetworkJob`. Comes out: `NetworkVariant`; contestants.py has the table. Both libraries
read files of their own, which their converters (pnnx, MNN's) make of the ONNX file when a variant
is built; the files are gone as soon as they are loaded.

`ncnn` and `mnn` compute in float32. `ncnn-low` and `mnn-low` use what the libraries call low
precision: fp16 or bf16 where the processor and the library have it, else float32 again.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright_lab.peers.contestants import NetworkJob, NetworkVariant, NetworkVariants

_FP16 = ('use_fp16_packed', 'use_fp16_storage', 'use_fp16_arithmetic')
_BF16 = ('use_bf16_packed', 'use_bf16_storage')
# Not through MNN.tools: that module installs a package and reports each conversion to a server.
_CONVERT_TO_MNN = 'import sys, _tools; sys.exit(not _tools.mnnconvert(sys.argv))'
# MNN's Interpreter::HintMode: how much memory Winograd may take, 0 (none) to 3.
_WINOGRAD_HINT = 3


def ncnn_variants() -> NetworkVariants:
    yield from _ncnn_settings({'fp16': False, 'bf16': False})


def ncnn_low_variants() -> NetworkVariants:
    for fp16 in (True, False):
        yield from _ncnn_settings({'fp16': fp16, 'bf16': not fp16})


def _ncnn_settings(types: Mapping[str, bool]) -> NetworkVariants:
    for winograd, sgemm in itertools.product((True, False), repeat=2):
        settings = {
            **types, 'winograd': winograd, 'sgemm': sgemm, 'lightmode': True,
            'converter': f'pnnx {version("pnnx")}',
        }  # fmt: skip
        yield settings, lambda job, settings=settings: _ncnn(job, settings)


def _ncnn(job: NetworkJob, settings: Mapping[str, Any]) -> NetworkVariant:
    """Images one after the other: ncnn's arrays have no batch dimension."""
    ncnn: Any = import_module('ncnn')

    batch = _batch(job)
    net = ncnn.Net()
    options = net.opt
    options.num_threads = job.threads
    options.lightmode = settings['lightmode']
    options.use_winograd_convolution = settings['winograd']
    options.use_sgemm_convolution = settings['sgemm']
    for name in _FP16:
        setattr(options, name, settings['fp16'])
    for name in _BF16:
        setattr(options, name, settings['bf16'])
    # As in ncnn's own benchmark: memory of one call serves the next.
    blobs, workspace = ncnn.UnlockedPoolAllocator(), ncnn.PoolAllocator()
    with tempfile.TemporaryDirectory() as folder:
        _convert_to_ncnn(job, Path(folder), settings['fp16'])
        if net.load_param(f'{folder}/a.ncnn.param') or net.load_model(f'{folder}/a.ncnn.bin'):
            raise InputError(f'ncnn cannot load what pnnx made of {job.model.name}')
    # Copies: ncnn may compute in place in arrays that only it refers to.
    images = [
        [ncnn.Mat(np.ascontiguousarray(array[i])).clone() for array in job.inputs.values()]
        for i in range(batch)
    ]
    results = list(job.outputs.values())

    def run() -> None:
        for i, image in enumerate(images):
            with net.create_extractor() as extractor:
                extractor.set_blob_allocator(blobs)
                extractor.set_workspace_allocator(workspace)
                for number, mat in enumerate(image):
                    extractor.input(f'in{number}', mat)
                for number, result in enumerate(results):
                    failed, found = extractor.extract(f'out{number}')
                    if failed:
                        raise InputError(f'ncnn cannot compute output {number}: code {failed}')
                    result[i] = np.asarray(found).reshape(result[i].shape)

    return NetworkVariant(job, run, lambda: job.outputs)


def _batch(job: NetworkJob) -> int:
    """The number of images; every input and output has to have it as its first size."""
    sizes = {array.shape[:1] for array in (*job.inputs.values(), *job.outputs.values())}
    if len(sizes) != 1 or () in sizes:
        raise InputError(
            f'ncnn takes one image at a time, and the first sizes of {job.model.name} are '
            f'{sorted(sizes)}; they have to be the same batch size'
        )
    return sizes.pop()[0]


def _convert_to_ncnn(job: NetworkJob, folder: Path, fp16: bool) -> None:
    """pnnx writes many files beside the model; so the model is linked into `folder`.

    The program is run without importing its package, which would bring PyTorch and its threads.
    """
    found = find_spec('pnnx')
    assert found is not None
    assert found.origin is not None
    (folder / 'a.onnx').symlink_to(job.model.resolve())
    shapes = ','.join(
        f'[{",".join(map(str, array.shape))}]f32' for array in job.inputs.values()
    )  # fmt: skip
    program = Path(found.origin).with_name('pnnx')
    words = [str(program), 'a.onnx', f'inputshape={shapes}', f'fp16={int(fp16)}']
    _convert('pnnx', words, folder, folder / 'a.ncnn.bin')


def _convert(name: str, words: list[str], folder: Path, made: Path) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, errors='replace')
    if done.returncode or not made.exists():
        said = (done.stderr + done.stdout).split('\n')
        last = next((line.strip() for line in reversed(said) if line.strip()), 'nothing')
        raise InputError(f'{name} cannot convert the model (exit code {done.returncode}): {last}')


def convert_to_mnn(model: Path, made: Path, *more: str) -> None:
    """An ONNX file as MNN's, by further words of its converter where they are given."""
    words = ['-f', 'ONNX', '--modelFile', str(model), '--MNNModel', str(made), '--bizCode', 'bench']
    _convert('MNN', [sys.executable, '-c', _CONVERT_TO_MNN, *words, *more], made.parent, made)


def mnn_variants() -> NetworkVariants:
    yield from _mnn_settings('high')


def mnn_low_variants() -> NetworkVariants:
    yield from _mnn_settings('low')


def _mnn_settings(precision: str) -> NetworkVariants:
    for power, winograd in itertools.product(('high', 'normal'), (3, 0)):
        settings = {'precision': precision, 'power': power, 'winograd_memory': winograd}
        yield settings, lambda job, settings=settings: _mnn(job, settings)


def _mnn(job: NetworkJob, settings: Mapping[str, Any]) -> NetworkVariant:
    nn, expr = import_module('MNN.nn'), import_module('MNN.expr')

    chosen = {key: settings[key] for key in ('precision', 'power')}
    manager = nn.create_runtime_manager(
        ({'backend': 'CPU', 'numThread': job.threads, 'memory': 'high', **chosen},)
    )
    manager.set_hint(_WINOGRAD_HINT, settings['winograd_memory'])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'a.mnn')
        convert_to_mnn(job.model.resolve(), path)
        module = nn.load_module_from_file(
            str(path), list(job.inputs), list(job.outputs), runtime_manager=manager
        )
    given = []
    for array in job.inputs.values():
        variable = expr.placeholder(list(array.shape), expr.NCHW, expr.float)
        variable.write(array)
        given.append(variable)

    def run() -> None:
        """Every call computes again, also on inputs that were not written since."""
        for result, found in zip(job.outputs.values(), module.forward(given), strict=True):
            result[...] = found.read()

    return NetworkVariant(job, run, lambda: job.outputs)
