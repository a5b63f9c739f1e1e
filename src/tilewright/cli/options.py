"""Options and arguments that several verbs take, with their help.

Names of choices are listed here, as the modules behind them know them, so that help needs none of
those.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tilewright.errors import InputError
from tilewright.machine.known import known_names

SPEC_HELP = (
    'A layer in benchdnn notation, a suite (mopt, cnnopt, boda, resnet18), one of its layers '
    '(mopt/R2), benchdnn:FILE, or a list of these with commas.'
)


class ShellName(StrEnum):
    """Shells that `cli.completion` writes scripts for."""

    BASH = 'bash'
    ZSH = 'zsh'
    FISH = 'fish'


class AlgorithmName(StrEnum):
    """What may compete, as `search.choose` knows it; named here so that help needs no solver."""

    AUTO = 'auto'
    DIRECT = 'direct'
    WINOGRAD = 'winograd'
    FFT = 'fft'
    STRASSEN = 'strassen'


def given(ctx: typer.Context, *names: str) -> dict[str, bool]:
    """Which of these options stand on the command line."""
    sources = {name: ctx.get_parameter_source(name.replace('-', '_')) for name in names}
    return {
        name: source is not None and source.name == 'COMMANDLINE'
        for name, source in sources.items()
    }


def refuse(target: str, given: dict[str, bool]) -> None:
    """Raise InputError where options that mean nothing on a target were given, by their names."""
    wrong = [f'--{name}' for name, there in given.items() if there]
    if wrong:
        raise InputError(f'{", ".join(wrong)} mean nothing with --target {target}; leave them out')


def examples(*lines: str) -> str:
    return '\b\nExamples:\n' + '\n'.join(f'  {line}' for line in lines)


Spec = Annotated[str, typer.Argument(metavar='SPEC', help=SPEC_HELP, show_default=False)]
Threads = Annotated[
    int | None, typer.Option('--threads', metavar='T', help='Threads to use [all usable cores].')
]
Json = Annotated[
    str | None,
    typer.Option('--json', metavar='F', help='Write the complete result to a file; - for stdout.'),
]
Seed = Annotated[
    int | None,
    typer.Option('--seed', metavar='N', min=0, help='Seed of the random data that is measured.'),
]
MachineName = Annotated[
    str | None,
    typer.Option(
        '--machine',
        metavar='NAME',
        help=f'Plan for a known machine ({", ".join(known_names())}) or a .json file [this host].',
    ),
]
Target = Annotated[
    str, typer.Option('--target', metavar='T', help='cpu, cuda, opencl or host (docs/gpu.md).')
]
Fleet = Annotated[
    str | None,
    typer.Option(
        '--fleet',
        metavar='WHERE',
        help='Measure on workers: tcp://HOST:PORT, local:N or a scheduler file (docs/fleet.md).',
    ),
]
Top = Annotated[int, typer.Option('--top', metavar='N', help='Candidates to keep.')]
Algorithm = Annotated[
    AlgorithmName,
    typer.Option(
        '--algorithm', help='What may compete; auto: the fastest within the error budget.'
    ),
]
MaxRelErr = Annotated[
    float,
    typer.Option(
        '--max-rel-err', metavar='E', help='Error budget, a share of the largest output, <= 1e-3.'
    ),
]


Ranking = Annotated[
    str,
    typer.Option(
        '--model',
        metavar='M',
        help='What ranks candidates: auto, analytical, forest, gat, pul, bound, or a file '
        '(docs/learned.md).',
    ),
]


class PruneName(StrEnum):
    """Estimates that order GPU schedules, as `model.gpu.estimates` knows them."""

    PUL = 'pul'
    BOUND = 'bound'
    TIME = 'time'


Prune = Annotated[
    PruneName | None,
    typer.Option(
        '--prune',
        help='GPUs: what orders and cuts candidates before any is measured [time].',
        show_default=False,
    ),
]


class FallbackName(StrEnum):
    """Who runs nodes that are not supported, as `tilewright.compile` knows it."""

    ONNXRUNTIME = 'onnxruntime'


Fallback = Annotated[
    FallbackName | None,
    typer.Option('--fallback', help='Let it run the nodes of an .onnx file that we cannot.'),
]


class FuseName(StrEnum):
    """What is joined into one kernel, as `graph.passes` knows it."""

    NONE = 'none'
    ELEMENTWISE = 'elementwise'
    ALL = 'all'


Fuse = Annotated[
    FuseName | None,
    typer.Option(
        '--fuse',
        help='Operators that share kernels: none, elementwise, all [CPU: all, GPU: elementwise].',
        show_default=False,
    ),
]


class LibrariesName(StrEnum):
    """Vendors' libraries beside generated code, as `tilewright.compile` knows it."""

    NONE = 'none'
    AUTO = 'auto'
    ONLY = 'only'


Libraries = Annotated[
    LibrariesName,
    typer.Option(
        '--libraries',
        help='cuDNN and cuBLASLt on CUDA: not at all, where they are faster, or wherever they can.',
    ),
]


class PrecisionName(StrEnum):
    """What values are stored as, as `tilewright.compile` knows it."""

    FP32 = 'fp32'
    FP16 = 'fp16'
    BF16 = 'bf16'


Precision = Annotated[
    PrecisionName | None,
    typer.Option(
        '--precision',
        help='What values are stored as between kernels: fp32; on GPUs fp16 and bf16, on CPUs with '
        'arithmetic of it fp16 [fp32].',
        show_default=False,
    ),
]


class NetworkPrecisionName(StrEnum):
    """What a whole network may be computed in, as `tilewright.compile` knows it."""

    FP32 = 'fp32'
    FP16 = 'fp16'
    BF16 = 'bf16'
    INT8 = 'int8'
    AUTO = 'auto'


NetworkPrecision = Annotated[
    NetworkPrecisionName | None,
    typer.Option(
        '--precision',
        help='GPUs: fp16 or bf16 between kernels, or int8; CPU: fp16 or bf16 where it computes in '
        'it, else as weights where memory binds, int8, or auto: the fastest mix within --accuracy '
        '[fp32].',
        show_default=False,
    ),
]
Accuracy = Annotated[
    str | None,
    typer.Option(
        '--accuracy',
        metavar='A',
        help='Limit on the results for --precision auto: rel=0.01, cosine=0.999 or top1=0.98.',
    ),
]
Samples = Annotated[
    Path | None,
    typer.Option(
        '--samples',
        metavar='FILE',
        help='Inputs as they will occur, for int8 and auto: .npz, .npy, or a folder [random].',
    ),
]


class RangesName(StrEnum):
    """How ranges are chosen, as `precision.calibrate` knows it."""

    MINMAX = 'minmax'
    PERCENTILE = 'percentile'
    ENTROPY = 'entropy'


class ActivationsName(StrEnum):
    """What activations are stored as, as `precision.calibrate` knows it."""

    U8 = 'u8'
    I8 = 'i8'


class TuneName(StrEnum):
    """How kernels of a network are chosen, as `tilewright.compile` knows it."""

    MODEL = 'model'
    MEASURE = 'measure'


Model = Annotated[
    Path,
    typer.Argument(
        metavar='MODEL', help='An .onnx or .tw file, or a network of the zoo.', show_default=False
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        '--shape',
        metavar='NAME=S',
        help='Sizes that the file leaves open: x=1,3,8,8; ranges: x=1:8,3,64:640:32,64:640:32.',
    ),
]
Tune = Annotated[
    TuneName,
    typer.Option('--tune', help='Choose kernels by the model alone, or time the best of them.'),
]
Trials = Annotated[
    int | None,
    typer.Option(
        '--trials',
        metavar='N',
        help='Kernels that are timed for each group [4; 32 on a GPU].',
    ),
]
