"""A network as C that needs nothing of this package: `tw.export('resnet18.onnx', 'folder')`.

[model]             -> compile -> [Network, .tw file]     compile
[.tw file]          -> read    -> [Program]               store.network_file
[ranges]            -> bind    -> [AtSize]                standalone.tables
[Program, kernels]  -> files   -> [C, header, Makefile]   standalone.source
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, cast

import numpy as np

from tilewright.errors import InputError
from tilewright.files import path_of, replacing_all
from tilewright.graph.memory import plan
from tilewright.graph.memory_proof import prove_memory
from tilewright.graph.program import Program
from tilewright.graph.ranges import Axis, Point, count, points
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.sized import SizedSource, read_source
from tilewright.machine.compiler import BASE_FLAGS
from tilewright.network.arguments import check_saved, is_saved
from tilewright.network.compile import compile as compile_network
from tilewright.network.compile import load
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.cpu.ranged import RangedNetwork
from tilewright.runtime.network_arrays import example
from tilewright.standalone.source import KernelSource, Standalone, c_name, files_of, is_c_name
from tilewright.standalone.tables import AtSize, Tables, data, tables
from tilewright.store import network_file
from tilewright.targets.cpu.kernels import Report
from tilewright.targets.cpu.ranged import at_point
from tilewright.version import VERSION

MOST_SIZES = 1024  # of ranges, for each of which there are tables


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
    shapes: Mapping[str, Sequence[Any]] | None = None,
    threads: int | None = None,
    trials: int | None = None,
    max_rel_err: float = DEFAULT_LIMIT,
    precision: str | None = None,
    accuracy: Any = None,
    samples: Any = None,
    progress: Report | None = None,
) -> Exported:
    """Write a network as C into an empty or new folder: `make` builds it, `make check` tests it.

    model   what `tilewright.compile` takes; also a .tw file, whose schedules are then used.
    name    a word of C that every name begins with [the model's name].
    threads those that the network will use, which are fixed then.
    shapes  with ranges: C that is told its sizes at every call (docs/ranges.md).

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
                max_rel_err=max_rel_err != DEFAULT_LIMIT, precision=precision, accuracy=accuracy,
                samples=samples is not None,
            )  # fmt: skip
            path = Path(model)
            network = load(path, threads=threads, progress=progress)
        else:
            path = Path(scratch) / 'network.tw'
            network = compile_network(
                model, tune=tune, shapes=shapes, threads=threads, trials=trials,
                max_rel_err=max_rel_err, precision=precision, accuracy=accuracy, samples=samples,
                save=path, progress=progress,
            )  # fmt: skip
        word = name or c_name(Path(network.name).stem.lower())
        if isinstance(network, RangedNetwork):
            return write_ranges(target, word, network)
        return write_network(target, word, network, network_file.read(path).program)


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
    kernels = {task.group.digest: network.kernels[task.group.digest] for task in program.tasks}
    sources = {
        digest: read_source(generate(k.group, k.schedule)) for digest, k in kernels.items()
    }  # fmt: skip
    texts = [
        KernelSource(
            SizedSource.of([sources[d]]).source, k.schedule.isa, compiler_flags(k.schedule)
        )
        for d, k in kernels.items()
    ]
    return _written(folder, name, network, tables([AtSize.only(program, memory, sources)]), texts)


def write_ranges(folder: Path, name: str, network: RangedNetwork) -> Exported:
    """Write the files of a network for ranges of sizes: kernels once, tables for every size."""
    plans, many = network.plans, count(network.ranges.box)
    if many > MOST_SIZES:
        raise InputError(
            f'{network.ranges} has {many} sizes, and C holds tables for each, at most '
            f'{MOST_SIZES}; give narrower ranges, or larger steps'
        )
    numbers: dict[Path, int] = {}
    isas: list[str] = []
    alive: list[object] = []  # constants are told apart by where they lie

    def at(point: Point) -> AtSize:
        bound = network.at(*point)
        calls = {}
        for digest, kernel in bound.kernels.items():
            if kernel.library not in numbers:
                numbers[kernel.library] = len(numbers)
                isas.append(kernel.schedule.isa)
            calls[digest] = numbers[kernel.library], kernel.sized
        packed, kept = bound.constant_places()
        alive.append(kept)
        program, _ = at_point(plans.saved, point, plans.machine)
        addresses = {name: array.ctypes.data for name, array in kept.items()}
        return AtSize(point, program, plan(program), calls, packed, addresses)

    made = tables(map(at, reversed(list(points(network.ranges.box)))))
    sources = plans.kernels.sources()
    texts = [
        KernelSource(sources[library][0].source, isa, sources[library][1])
        for library, isa in zip(numbers, isas, strict=True)
    ]
    return _written(folder, name, network, made, texts, network.ranges.axes)


def _written(
    folder: Path, name: str, network: Network | RangedNetwork, made: Tables,
    kernels: Sequence[KernelSource], axes: tuple[Axis, ...] = (),
) -> Exported:  # fmt: skip
    net = Standalone(
        name, network.inputs, network.outputs, made, tuple(kernels),
        resources.files('tilewright.runtime').joinpath('pool.c').read_text(),
        tuple(flag for flag in BASE_FLAGS if flag != '-shared'), network.threads,
        f'{network.name}, by tilewright {VERSION}', axes,
    )  # fmt: skip
    inputs = {value.name: example(value) for value in network.inputs}
    files = write_files(folder, net, [*inputs.values(), *network.run(inputs).values()])
    return Exported(folder, name, files, cast(Network, network))  # as far as callers go


def write_files(
    folder: Path, net: Standalone, check: Sequence[np.ndarray]
) -> tuple[str, ...]:  # fmt: skip
    """Write everything; `check` are inputs, and the results that the test compares with."""
    texts = files_of(net)
    arrays = {
        f'{net.name}.weights': data(net.tables.data),
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
