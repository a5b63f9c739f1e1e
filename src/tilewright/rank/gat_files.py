"""Graph-attention models as files: safetensors, whose metadata say what they were learned from.

Goes in: a `GatModel`, or a path. Comes out: the file, or the model. `__metadata__` holds `header`
(JSON) and `sha256` of everything else. A file that is cut off, changed, for other features or of
another format is refused in one sentence. Models that come with the package are in `learn/known/`,
h200-gat.safetensors; a user's own take their place (`find_gat`).
"""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.rank import safetensors
from tilewright.rank.counts import Array
from tilewright.rank.files import own_folder
from tilewright.rank.gat import VARIANTS, GatModel, Scaling, shapes
from tilewright.rank.graph_features import NODE_NAMES
from tilewright.rank.statistics import NAMES, VERSION, probe

FORMAT = 1
SUFFIX = '.safetensors'
_SCALING = tuple(Scaling.__dataclass_fields__)
_KEYS = (
    'variant', 'statistics', 'node_features', 'machine', 'rows', 'groups', 'data_sha256',
    'training', 'validation', 'format', 'feature_version', 'probe',
)  # fmt: skip


def save_gat(model: GatModel, path: Path) -> None:
    """Write a file; under its name only when complete."""
    header = dict(model.header) | {
        'format': FORMAT, 'feature_version': VERSION, 'probe': list(probe()),
    }  # fmt: skip
    text = json.dumps(header, sort_keys=True, allow_nan=False)
    arrays = {name: np.asarray(array, np.float32) for name, array in model.weights.items()}
    arrays |= {
        f'scaling.{name}': np.asarray(getattr(model.scaling, name), np.float32) for name in _SCALING
    }
    metadata = {'header': text, 'sha256': _digest(arrays, text)}
    safetensors.save_file(path, arrays, metadata)


def load_gat(path: Path) -> GatModel:
    """Read a file; raises InputError for anything that is not a whole model of these features."""
    arrays, metadata = safetensors.load_file(path)
    text = metadata.get('header', '')
    if _digest(arrays, text) != metadata.get('sha256'):
        raise InputError(f'{path} was changed since it was written; train it again')
    header = _header(path, text)
    variant = VARIANTS[header['variant']]
    wanted = shapes(variant, len(NAMES), len(NODE_NAMES))
    lengths = (len(NAMES), len(NAMES), len(NODE_NAMES), len(NODE_NAMES), 2)
    sizes = {f'scaling.{name}': (n,) for name, n in zip(_SCALING, lengths, strict=True)}
    found = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    if found != {n: (s, np.dtype(np.float32)) for n, s in (wanted | sizes).items()}:
        raise InputError(f'{path}: its weights are not those of {variant.name}; train it again')
    if not all(np.isfinite(array).all() for array in arrays.values()) or any(
        (arrays[name] <= 0).any() for name in ('scaling.scale', 'scaling.node_scale')
    ):
        raise InputError(f'{path}: some of its weights are no numbers; train it again')
    scaling = Scaling(*(arrays[f'scaling.{name}'] for name in _SCALING))
    own = {key: v for key, v in header.items() if key not in ('format', 'feature_version', 'probe')}
    return GatModel(variant, {name: arrays[name] for name in wanted}, scaling, own)


def _header(path: Path, text: str) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or any(key not in header for key in _KEYS):
        raise InputError(f'{path} does not say what it was learned from; train it again')
    if header['format'] != FORMAT or header['variant'] not in VARIANTS:
        raise InputError(
            f'{path} is a model {header["variant"]!r} of format {header["format"]}; this version '
            f'reads format {FORMAT}: train it again'
        )
    names = header['statistics'], header['node_features']
    if header['feature_version'] != VERSION or names != (list(NAMES), list(NODE_NAMES)):
        raise InputError(
            f'{path} is for features of version {header["feature_version"]}, not those of this '
            f'one, {VERSION}; train it again'
        )
    now = probe()
    if len(header['probe']) != len(now) or not np.allclose(header['probe'], now, rtol=1e-4):
        raise InputError(
            f'{path} was trained on features that are computed differently here; train it again'
        )
    return header


def _digest(arrays: dict[str, Array], text: str) -> str:
    return hashlib.sha256(safetensors.dump(arrays, {'header': text})).hexdigest()


def name_of(machine: str) -> str:
    return f'{machine}-gat'


def own_gat(machine: str) -> Path:
    """Where a user's own model of a machine is."""
    return own_folder() / f'{name_of(machine)}{SUFFIX}'


def shipped_gats() -> list[str]:
    """Names of the models that come with the package."""
    folder = resources.files('tilewright.rank') / 'known'
    names = [f.name for f in folder.iterdir()] if folder.is_dir() else []
    return sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))


def find_gat(machine: str) -> tuple[GatModel, str] | None:
    """(model, where it is from) for a machine: the user's own, else one that came with the package;
    None where no model knows the machine.
    """
    own, name = own_gat(machine), name_of(machine)
    if own.exists():
        return load_gat(own), str(own)
    if name in shipped_gats():
        at = resources.files('tilewright.rank') / 'known' / f'{name}{SUFFIX}'
        with resources.as_file(at) as path:
            return load_gat(path), f'{name}, shipped'
    return None
