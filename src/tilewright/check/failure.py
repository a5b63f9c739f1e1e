"""The files that show a failed check again.

Goes in: the model, the compiled network, inputs, expected and computed results. Comes out: a folder
in `failures/` of the cache directory:

    model.onnx    the model, its sizes settled; where there is one that can be written
    network.tw    the compiled network: program, schedules, weights
    inputs.npz, expected.npz, got.npz
    report.json   what was found, and the command that finds it again

Only the last few folders are kept.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tilewright.check.cause import Cause
from tilewright.check.difference import Arrays
from tilewright.errors import InputError, TilewrightError
from tilewright.files import replacing
from tilewright.machine.compiler import cache_dir
from tilewright.version import VERSION

KEPT = 8
Writer = Callable[[Path], object]


@dataclass(frozen=True)
class Files:
    """What writes the model as ONNX and the network as a .tw file; None where that cannot be.

    target   what the network runs on
    """

    model: Writer | None = None
    network: Writer | None = None
    target: str = 'cpu'


def write_failure(
    name: str, files: Files, cause: Cause | None, inputs: Arrays, expected: Arrays, got: Arrays
) -> str:
    """Write everything; comes out: where it is and how to see it again, to end a sentence with."""
    try:
        folder = _folder(name)
        for file, arrays in (('inputs', inputs), ('expected', expected), ('got', got)):
            write_arrays(folder / f'{file}.npz', arrays)
        written = {
            file: _written(writer, folder / file)
            for file, writer in (('model.onnx', files.model), ('network.tw', files.network))
        }
        again = _command(folder, cause, written, files.target)
        report = {'version': VERSION, 'cause': cause and asdict(cause), 'again': again}
        (folder / 'report.json').write_text(json.dumps(report, indent=1) + '\n')
    except (OSError, InputError) as error:
        return f'the data that show it cannot be written: {getattr(error, "strerror", "") or error}'
    return f'model and data are in {folder}' + (f'; {again} shows it again' if again else '')


def _folder(name: str) -> Path:
    """A new folder; of old ones the last few are kept."""
    above = cache_dir() / 'failures'
    above.mkdir(parents=True, exist_ok=True)
    old = sorted((p for p in above.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
    for folder in old[: max(0, len(old) - KEPT + 1)]:
        shutil.rmtree(folder, ignore_errors=True)
    word = re.sub(r'[^A-Za-z0-9_.-]+', '_', Path(name).stem)[:60] or 'network'
    number = 1
    while True:
        folder = above / f'{word}-{number}'
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def _written(writer: Writer | None, path: Path) -> bool:
    """Whether a file could be written; what cannot be is not what the check is about."""
    if writer is None:
        return False
    try:
        writer(path)
    except (TilewrightError, ImportError, OSError, ValueError, TypeError):  # of onnx, too
        path.unlink(missing_ok=True)
        return False
    return True


def _command(folder: Path, cause: Cause | None, written: Mapping[str, bool], target: str) -> str:
    """A failure of kernels is in the compiled file; one of passes in the model."""
    compiled = cause is not None and cause.kind in ('kernel', 'memory', 'order')
    order = ('network.tw', 'model.onnx') if compiled else ('model.onnx', 'network.tw')
    file = next((name for name in order if written[name]), None)
    if file is None or (not compiled and file == 'network.tw'):
        return ''
    chosen = f' --target {target}' if target != 'cpu' else ''
    path = folder / file
    return f'`tilewright run {path} --check {path} --input {folder / "inputs.npz"}{chosen}`'


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], option: str = '') -> None:
    """Arrays by name, as an .npz file under exactly this name; `option` is who named it."""
    try:
        # Not numpy.savez, which takes no array that is called like one of its parameters.
        with replacing(path) as made, zipfile.ZipFile(made, 'w') as archive:
            for name, array in arrays.items():
                with archive.open(f'{name}.npy', 'w', force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    except OSError as error:
        raise InputError(f'{option}{path} cannot be written: {error.strerror}') from None
