"""What `tilewright.compile` may be given: everything is checked before any work begins."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright import knobs, zoo
from tilewright.errors import InputError, MissingError, UnsupportedError
from tilewright.files import path_of
from tilewright.graph.program import Program
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.kernels.cpu.schemas.narrow.plan import has_narrow
from tilewright.machine.machine import Machine
from tilewright.ops.dtypes import NUMPY, PRECISIONS
from tilewright.ops.tiles import algorithm_title
from tilewright.targets.gpu.tuning import How, model_for

GPU_TARGETS = ('cuda', 'opencl', 'host')
TARGETS = ('cpu', *GPU_TARGETS)
TUNES = ('model', 'measure')
INTEGER_PRECISIONS = ('int8', 'auto')  # beside those of `PRECISIONS`, which GPUs store values as


def check(
    target: str, tune: str, trials: int | None, machine: object, save: str | os.PathLike[str] | None
) -> None:
    """Refuse words that are not known, and a file that could not be written when all is done."""
    if target not in TARGETS:
        raise InputError(f'target {target!r} is not known; networks run on {", ".join(TARGETS)}')
    if tune not in TUNES:
        raise InputError(f'tune is {tune!r}; choose one of {", ".join(TUNES)}')
    if trials is not None and (not isinstance(trials, int) or trials < 1):
        raise InputError(f'trials is {trials!r}; ask for a whole number, at least 1')
    if trials is not None and tune != 'measure':
        raise InputError(
            f"trials={trials} means nothing unless kernels are timed; add tune='measure'"
        )
    if target == 'cpu' and machine is not None and not isinstance(machine, Machine):
        raise InputError(
            f'machine={machine!r} is not a Machine; give one of tilewright.Machine, or leave it out'
        )
    if save is None:
        return
    path = path_of('save', save)
    if path.suffix != '.tw':
        raise InputError(f'save={str(path)!r} does not end in .tw, by which files are known')
    if not path.parent.is_dir():
        raise InputError(f'{path} cannot be written: {path.parent} is not a directory')


UNITS = {'kib': 2**10, 'mib': 2**20, 'gib': 2**30, 'kb': 1e3, 'mb': 1e6, 'gb': 1e9, 'b': 1}


def size_of(name: str, given: object) -> int:
    """Bytes of '2GB', '512MiB' or a number."""
    text = str(given).strip().lower()
    unit = next((u for u in UNITS if text.endswith(u)), '')
    try:
        found = float(text.removesuffix(unit)) * UNITS.get(unit, 1)
    except ValueError:
        found = 0.0
    if isinstance(given, bool) or not 1 <= found < 2**63:
        raise InputError(f'{name} is {given!r}; give a size such as "2GB", "512MiB", or bytes')
    return int(found)


def check_precision(
    precision: str, target: str, *, accuracy: object = None, samples: object = None
) -> None:
    """Refuse a precision that is not known, or that the target does not compute in."""
    known = (*PRECISIONS, *INTEGER_PRECISIONS)
    if precision not in known:
        raise InputError(f'precision is {precision!r}; choose one of {", ".join(known)}')
    if target != 'cpu' and precision == 'auto':
        raise InputError(
            f'precision={precision!r} on target {target!r}, which has {", ".join(PRECISIONS)} and '
            f'int8; choose one of them, or a target with {precision}: cpu'
        )
    for name, given, wants in (
        ('samples', samples, INTEGER_PRECISIONS), ('accuracy', accuracy, ('auto',)),
    ):  # fmt: skip
        if given is not None and precision not in wants:
            raise InputError(
                f'{name}= means nothing with precision={precision!r}; it is for '
                f'{" and ".join(wants)}: leave it out'
            )
    if precision == 'auto' and accuracy is None:
        raise InputError("precision='auto' needs an accuracy, such as accuracy='rel=0.01'")
    if precision not in PRECISIONS or precision == 'fp32':
        return
    if PRECISIONS[precision] not in NUMPY:
        raise MissingError(f'precision={precision!r} needs the package ml_dtypes; install it')


def check_narrow(precision: str, machine: Machine) -> None:
    """Refuse a type of 16 bits that a machine neither computes in nor stores weights as."""
    if not has_narrow(machine.isa):
        kinds = (['fp16'] if machine.half else []) + (['bf16'] if machine.bf16 else [])
        has = ('fp32', *kinds, *INTEGER_PRECISIONS)
        raise InputError(
            f'precision={precision!r}: {machine.name} ({machine.isa}) has no arithmetic of it, nor '
            f'kernels with weights of 16 bits; it has {", ".join(has)}'
        )


def is_saved(network: Any) -> bool:
    """Whether a network is the path of a .tw file."""
    return isinstance(network, str | os.PathLike) and str(network).endswith('.tw')


def is_zoo(network: Any) -> bool:
    """Whether a network is the name of one of the zoo, and of no file."""
    return isinstance(network, str) and network in zoo.KNOWN and not os.path.exists(network)


def check_saved(path: str | os.PathLike[str], **given: object) -> None:
    """Refuse what a compiled file has decided already."""
    wrong = [name for name, value in given.items() if value]
    if wrong:
        raise InputError(
            f'{wrong[0]}= means nothing with {os.fspath(path)}, which is compiled already; leave '
            f'it out, or compile the model that it was made from'
        )


def check_source(
    network: Any, target: str, *, constants: object, example_inputs: object, device: str
) -> None:
    """Refuse what belongs to a model of another kind, or to another target."""
    if constants and not is_onnx(network):
        raise InputError(
            f'constants= are values of inputs of an ONNX model, and {type(network).__name__} is '
            f'none; leave it out'
        )
    if example_inputs is not None and is_onnx(network):
        raise InputError(
            'example_inputs= are what a PyTorch module is traced on; for an ONNX model give shapes='
        )
    if device and target == 'cpu':
        raise InputError(f'device={device!r} is a part of the name of a GPU; give target= as well')


def is_onnx(network: Any) -> bool:
    """Whether a network is an ONNX model: a path, bytes or a ModelProto."""
    return isinstance(network, str | os.PathLike | bytes) or type(network).__name__ == 'ModelProto'


def with_fallback(error: UnsupportedError) -> UnsupportedError:
    """The sentence about nodes that are not supported, with who else could run them."""
    return UnsupportedError(
        f"{error}; fallback='onnxruntime', on the command line --fallback onnxruntime, has ONNX "
        f'Runtime run them, in a network that cannot be saved or exported',
        error.nodes,
    )


def check_gpu(target: str, **given: object) -> None:
    """Refuse what only means something on a CPU."""
    wrong = [name for name, value in given.items() if value is not None]
    if wrong:
        raise InputError(f'{wrong[0]}= means nothing with target={target!r}; leave it out')


def how_of(
    target: str, tune: str, model: str, search: str | None, algorithm: str = 'auto',
    prune: str | None = None,
) -> How:  # fmt: skip
    """What ranks and finds the kernels that are timed; refuses what a target does not have."""
    how = How(model, search or How().search) if target != 'cpu' or search != 'top' else How(model)
    how = replace(how, algorithm=algorithm, seed=knobs.get('seed'))
    given = [f'model={model!r}'] if model not in ('analytical', 'auto') else []
    given += [] if search is None else [f'search={search!r}']
    if given and tune != 'measure':
        raise InputError(f"{given[0]} means nothing unless kernels are timed; add tune='measure'")
    if target == 'cpu' and (model not in ('analytical', 'auto') or search not in (None, 'top')):
        raise InputError(
            f'{given[-1]} is for GPU kernels; on the CPU the analytical model ranks, and the best '
            f'are timed: leave it out'
        )
    if prune is not None and target == 'cpu':
        raise InputError(f'prune={prune!r} is for GPU kernels; leave it out')
    return replace(how, model=model_for(prune, model))


def warn_without(
    algorithm: str, program: Program, schemas: Mapping[str, str], max_rel_err: float
) -> None:
    """Say so where an algorithm was asked for and no convolution, of Strassen's no product, has it.
    `schemas` are those of groups by their digests: a GPU's have the names of their algorithms.
    """

    def computed_by(schema: str) -> str:
        return SCHEMAS[schema].algorithm if schema in SCHEMAS else schema

    whole = algorithm == 'strassen'
    sums = {
        task.group.digest
        for task in program.tasks
        if task.group.main.is_product_sum and (whole or {'r', 's'} <= set(task.group.main.sizes))
    }
    if sums and not any(computed_by(schemas[digest]) == algorithm for digest in sums):
        what = 'product' if whole else 'convolution'
        warnings.warn(
            f'no {what} of {program.name} can be computed by {algorithm_title(algorithm)} '
            f'within an error of {max_rel_err:g}: all are computed directly',
            stacklevel=3,
        )
