"""Learned models as files: numpy arrays and a JSON header in an npz archive, and nothing that runs.

Goes in: a `LearnedModel`, or a path. Comes out: the file, or the model. The archive holds the
arrays of each ensemble (`time_roots`, `rank_value`, ...), `header` (JSON as bytes) and `sha256` of
all of it. A file that is cut off, changed, for other features or of another format is refused in
one sentence; loading never unpickles. Models that come with the package are in `learn/known/`,
named by machine and kernels: rtx2080ti-rs.npz, or h200-search.npz for all kernels that a search
proposes; a user's own take their place (`find_model`).
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.files import open_regular, replacing
from tilewright.machine.compiler import cache_dir
from tilewright.rank.features import NAMES, VERSION, probe
from tilewright.rank.model import PARTS, LearnedModel
from tilewright.rank.trees import Ensemble

FORMAT = 2
SEARCHED = 'search'  # instead of a kind: all kernels that a search proposes
LARGEST_BYTES = 64 << 20
_ARRAYS = {
    'roots': np.int32, 'feature': np.int16, 'threshold': np.float32, 'left': np.int32,
    'value': np.float32,
}  # fmt: skip
_KEYS = (
    'recipe', 'features', 'feature_version', 'machine', 'kinds', 'rows', 'problems', 'data_sha256',
    'seed', 'validation', 'format', 'offsets', 'probe',
)  # fmt: skip


def save_model(model: LearnedModel, path: Path) -> None:
    """Write a file; under its name only when complete."""
    header = dict(model.header) | {
        'format': FORMAT,
        'probe': list(probe(tuple(model.header['kinds']))),
        'offsets': {part: e.offset for part, e in _ensembles(model).items()},
    }
    arrays = {
        f'{part}_{name}': np.asarray(getattr(ensemble, name), kind)
        for part, ensemble in _ensembles(model).items()
        for name, kind in _ARRAYS.items()
    }
    if model.linear is not None:
        arrays['linear'] = model.linear
    text = json.dumps(header, sort_keys=True, allow_nan=False)
    arrays['header'] = np.frombuffer(text.encode(), np.uint8)
    arrays['sha256'] = np.frombuffer(_digest(arrays).encode(), np.uint8)
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as made:
            made.write_bytes(data.getvalue())
    except OSError as error:
        raise InputError(f'the model {path} cannot be written: {error.strerror}') from None


def load_model(path: Path) -> LearnedModel:
    """Read a file; raises InputError for anything that is not a whole model of these features."""
    arrays = _arrays(path)
    header = _header(path, arrays)
    ensembles = {part: _ensemble(path, arrays, header, part) for part in PARTS}
    if not any(ensembles.values()):
        raise InputError(f'{path} holds no trees; train the model again')
    linear = arrays.get('linear')
    if linear is not None and (
        linear.shape != (3, len(header['features']))
        or linear.dtype != np.float64
        or not np.isfinite(linear).all()
        or not (linear[1] > 0).all()
    ):
        raise InputError(f'{path}: the linear correction is not whole; train it again')
    own = {key: value for key, value in header.items() if key not in ('format', 'offsets', 'probe')}
    return LearnedModel(linear=linear, header=own, **ensembles)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > LARGEST_BYTES:
            raise InputError(
                f'{path} unpacks to {size} bytes, and a model has at most {LARGEST_BYTES}; train '
                f'it again'
            )
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InputError(f'{path} does not exist; train a model, or name another') from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zipfile.error) as error:
        raise InputError(f'{path} is not a learned model ({error}); train it again') from None
    stored = arrays.pop('sha256', np.zeros(0, np.uint8))
    if 'header' not in arrays or _digest(arrays).encode() != stored.tobytes():
        raise InputError(f'{path} was changed since it was written; train it again')
    return arrays


def _header(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    try:
        header = json.loads(arrays['header'].tobytes())
    except ValueError:
        header = None
    if not isinstance(header, dict) or any(key not in header for key in _KEYS):
        raise InputError(f'{path} does not say what it was learned from; train it again')
    unknown = [name for name in header['features'] if name not in NAMES]
    if header['format'] != FORMAT or header['feature_version'] != VERSION or unknown:
        raise InputError(
            f'{path} is for features of version {header["feature_version"]} (unknown here: '
            f'{", ".join(unknown) or "none"}), and this version has {VERSION}; train it again'
        )
    values, now = header['probe'], probe(tuple(header['kinds']))
    if len(values) != len(now) or not np.allclose(values, now, rtol=1e-4, atol=1e-6):
        raise InputError(
            f'{path} was trained on features that are computed differently here; train it again'
        )
    return header


def _ensemble(
    path: Path, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any], part: str
) -> Ensemble | None:
    names = [f'{part}_{name}' for name in _ARRAYS]
    found = [arrays[name] for name in names if name in arrays]
    if not found:
        return None
    offset = header['offsets'].get(part)
    right = len(found) == len(names) and all(
        array.ndim == 1 and array.dtype == kind
        for array, kind in zip(found, _ARRAYS.values(), strict=True)
    )
    if not right or not isinstance(offset, float) or not math.isfinite(offset):
        raise InputError(f'{path}: the trees of {part} are not whole; train it again')
    roots, feature, threshold, left, value = found
    ensemble = Ensemble(roots, feature, threshold, left, value, offset)
    ensemble.check(len(header['features']))
    return ensemble


def _ensembles(model: LearnedModel) -> dict[str, Ensemble]:
    pairs = ((part, getattr(model, part)) for part in PARTS)
    return {part: ensemble for part, ensemble in pairs if ensemble is not None}


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        found.update(f'{name} {array.dtype.str} {array.shape}'.encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def own_folder() -> Path:
    """Where a user's own models are."""
    return cache_dir() / 'models'


def shipped() -> list[str]:
    """Names of the models that come with the package."""
    folder = resources.files('tilewright.rank') / 'known'
    return sorted(
        f.name.removesuffix('.npz') for f in folder.iterdir() if f.name.endswith('.npz')
    ) if folder.is_dir() else []  # fmt: skip


def name_of(machine: str, kinds: Sequence[str]) -> str:
    return '-'.join([machine, *kinds])


def find_model(machine: str, kind: str) -> tuple[LearnedModel, str] | None:
    """(model, where it is from) for the kernels of a kind on a machine: the user's own, else one
    that came with the package; None where no model knows the machine.
    """
    name = name_of(machine, [kind])
    own = own_folder() / f'{name}.npz'
    if own.exists():
        return _loaded(own, own.stat().st_mtime_ns), str(own)
    if name in shipped():
        with resources.as_file(resources.files('tilewright.rank') / 'known' / f'{name}.npz') as at:
            return _loaded(at, at.stat().st_mtime_ns), f'{name}, shipped'
    return None


@lru_cache(maxsize=8)
def _loaded(path: Path, _changed_ns: int) -> LearnedModel:
    """A search asks for the same model group by group."""
    return load_model(path)
