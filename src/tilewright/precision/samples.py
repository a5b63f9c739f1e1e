"""Samples that ranges and errors are measured on: complete sets of inputs of a network.

Goes in: what a caller has: a folder, an .npz or .npy file, arrays, a list of them; and the inputs
of a model. Comes out: one mapping of arrays by name for each call. An array with the rank of its
input holds several calls along its first axis; one with a further axis in front holds one call for
each index of that.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.files import open_regular
from tilewright.graph.graph import DTYPES, Value

Sample = Mapping[str, np.ndarray]
SUFFIXES = ('.npz', '.npy')


def read_arrays(path: Path, option: str = '--input') -> dict[str, np.ndarray]:
    """Arrays by name from an .npz file; that of an .npy file has no name."""
    try:
        with open_regular(path) as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {'': loaded}
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        # What numpy says of other files is about pickles, which are not for us.
        reason = getattr(error, 'strerror', None) or 'it holds no arrays; write it by numpy.savez'
        raise InputError(f'{option} {path} cannot be read: {reason}') from None


def samples_of(given: Any, inputs: Sequence[Value], fewest: int) -> tuple[Sample, ...]:
    """[whatever a caller has] -> [Sample], at least `fewest`, each checked against the inputs."""
    found = tuple(sample for one in _parts(given) for sample in _split(_named(one, inputs), inputs))
    if len(found) < fewest:
        raise InputError(f'{len(found)} samples are given, and at least {fewest} are needed')
    for sample in found:
        for name, array in sample.items():
            wrong = int(np.count_nonzero(~np.isfinite(array)))
            if wrong:
                raise InputError(
                    f'samples of {name!r} hold {wrong} values that are infinite or no numbers; '
                    f'leave those samples out'
                )
    return found


def _parts(given: Any) -> list[Any]:
    """What is given, as a list of mappings or arrays."""
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        if not path.is_dir():
            return [read_arrays(path, 'samples')]
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        return [read_arrays(file, 'samples') for file in files]
    if isinstance(given, Mapping | np.ndarray):
        return [given]
    if isinstance(given, Sequence):
        return list(given)
    raise InputError(
        f'samples are {type(given).__name__}; give a file or a folder, an array, arrays by name, '
        f'or a list of these'
    )


def _named(given: Any, inputs: Sequence[Value]) -> dict[str, np.ndarray]:
    """Arrays by the names of inputs; a single one is the only input, whatever its name."""
    arrays = dict(given) if isinstance(given, Mapping) else {'': given}
    names = [value.name for value in inputs]
    if len(arrays) == len(names) == 1 and not arrays.keys() & set(names):
        arrays = {names[0]: next(iter(arrays.values()))}
    if set(arrays) != set(names):
        raise InputError(
            f'samples hold arrays named {", ".join(map(repr, sorted(arrays)))}, where the inputs '
            f'are {", ".join(map(repr, names))}'
        )
    return {name: np.asarray(array) for name, array in arrays.items()}


def _split(arrays: Mapping[str, np.ndarray], inputs: Sequence[Value]) -> list[Sample]:
    """One sample for each call that the arrays hold."""
    calls = {value.name: _calls(arrays[value.name], value) for value in inputs}
    counts = {name: len(found) for name, found in calls.items()}
    if len(set(counts.values())) > 1:
        said = ', '.join(f'{count} of {name!r}' for name, count in counts.items())
        raise InputError(f'samples hold {said}; give the same number for each input')
    return [
        {name: found[index] for name, found in calls.items()}
        for index in range(next(iter(counts.values())))
    ]


def _calls(array: np.ndarray, value: Value) -> list[np.ndarray]:
    """The arrays of several calls, each of the shape and dtype of the input."""
    shape, kind = value.shape, np.dtype(DTYPES[value.dtype])
    stacked = array.ndim == len(shape) + 1 and array.shape[1:] == shape
    joined = bool(shape) and array.ndim == len(shape) and array.shape[1:] == shape[1:]
    whole = joined and shape[0] > 0 and array.shape[0] % shape[0] == 0
    if not stacked and not whole:
        raise InputError(
            f'samples of {value.name!r} have shape {list(array.shape)}, where the input has '
            f'{list(shape)}; give [N, ...] with N a multiple of {shape[0] if shape else 1}'
        )
    if array.dtype.kind not in 'biuf' or not np.can_cast(array.dtype, kind, 'same_kind'):
        raise InputError(f'samples of {value.name!r} are {array.dtype}, where the input is {kind}')
    parts = array if stacked else array.reshape(-1, *shape)
    return [np.ascontiguousarray(part, kind) for part in parts]
