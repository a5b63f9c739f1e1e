"""A network as C that needs nothing of this package: `tw.export('resnet18.onnx', 'folder')`.

[model]             -> compile -> [Network, .tw file]     compile
[.tw file]          -> read    -> [Program]               store.network_file
[Program, kernels]  -> files   -> [C, header, Makefile]   standalone.source
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.files import path_of, replacing_all
from tilewright.graph.memory import plan
from tilewright.graph.memory_proof import prove_memory
from tilewright.graph.program import Program
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.machine.compiler import BASE_FLAGS
from tilewright.network.arguments import check_saved, is_saved
from tilewright.network.compile import compile as compile_network
from tilewright.network.compile import load
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.network_arrays import example
from tilewright.standalone.source import KernelSource, Standalone, c_name, files_of, is_c_name
from tilewright.standalone.tables import Tables, data, tables
from tilewright.store import network_file
from tilewright.targets.cpu.kernels import Report
from tilewright.version import VERSION


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: the folder, its files, and the name that everything in them begins with."""

    folder: Path
    name: str
    files: tuple[str, ...]
    network: Network


def export(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    tune: str = 'model',
    shapes: Mapping[str, Sequence[int]] | None = None,
    threads: int | None = None,
    trials: int | None = None,
    max_rel_err: float = DEFAULT_LIMIT,
    progress: Report | None = None,
) -> Exported:
    """Write a network as C into an empty or new folder: `make` builds it, `make check` tests it.

    model   what `tilewright.compile` takes; also a .tw file, whose schedules are then used.
    name    a word of C that every name begins with [the model's name].
    threads those that the network will use, which are fixed then.

    The other arguments are those of `compile`. The results that the test compares with are computed
    here, by the same kernels, on inputs of order one.
    """
    target = path_of('folder', folder)
    _check_free(target)
    if name is not None and not is_c_name(name):
        raise InputError(f'name {name!r} cannot begin names of C; use letters, digits and _')
    with tempfile.TemporaryDirectory(prefix='tilewright-') as scratch:
        if is_saved(model):
            check_saved(
                model, shapes=shapes, trials=trials, tune=tune != 'model',
                max_rel_err=max_rel_err != DEFAULT_LIMIT,
            )  # fmt: skip
            path = Path(model)
            network = load(path, threads=threads, progress=progress)
        else:
            path = Path(scratch) / 'network.tw'
            network = compile_network(
                model, tune=tune, shapes=shapes, threads=threads, trials=trials,
                max_rel_err=max_rel_err, save=path, progress=progress,
            )  # fmt: skip
        program = network_file.read(path).program
        word = name or c_name(Path(network.name).stem.lower())
        return write_network(target, word, network, program)


def _check_free(folder: Path) -> None:
    """Say that a folder cannot take the files before the work, not after it."""
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f'{folder} is a file; name an empty or new directory')
        if folder.is_dir() and any(folder.iterdir()):
            raise InputError(f'{folder} is not empty; name an empty or new directory')
        above = folder
        while not above.exists():
            above = above.parent
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise InputError(f'{folder} cannot be written: no access to {above}; name another')
    except OSError as error:
        raise InputError(f'{folder} cannot be written: {error.strerror}; name another') from None


def write_network(folder: Path, name: str, network: Network, program: Program) -> Exported:
    """Write the files of a network, of which `program` is what it was made from."""
    memory = plan(program)
    prove_memory(program, memory)
    made = tables(program, memory)
    net = Standalone(
        name, network.inputs, network.outputs, made, _kernels(network, made),
        resources.files('tilewright.runtime').joinpath('pool.c').read_text(),
        tuple(flag for flag in BASE_FLAGS if flag != '-shared'), network.threads,
        f'{network.name}, by tilewright {VERSION}',
    )  # fmt: skip
    inputs = {value.name: example(value) for value in network.inputs}
    files = write_files(folder, net, program, [*inputs.values(), *network.run(inputs).values()])
    return Exported(folder, name, files, network)


def write_files(
    folder: Path, net: Standalone, program: Program, check: Sequence[np.ndarray]
) -> tuple[str, ...]:
    """Write everything; `check` are inputs, and the results that the test compares with."""
    texts = files_of(net)
    arrays = {
        f'{net.name}.weights': data(program, net.tables.constants),
        f'{net.name}.check': [
            np.ascontiguousarray(array, array.dtype.newbyteorder('<')).reshape(-1).view(np.uint8)
            for array in check
        ],
    }
    try:
        with replacing_all(folder) as made:
            for file, pieces in arrays.items():
                _write_bytes(made / file, pieces)
            for file, text in texts.items():
                (made / file).write_text(text)
    except OSError as error:
        raise InputError(f'{folder} cannot be written: {error.strerror}; name another') from None
    return tuple(sorted([*texts, *arrays]))


def _write_bytes(path: Path, pieces: Iterable[np.ndarray]) -> None:
    with open(path, 'wb') as file:
        for piece in pieces:
            file.write(piece.data)


def _kernels(network: Network, made: Tables) -> tuple[KernelSource, ...]:
    kernels = [network.kernels[digest] for digest in made.kernels]
    return tuple(
        KernelSource(generate(k.group, k.schedule), k.schedule.isa, compiler_flags(k.schedule))
        for k in kernels
    )
