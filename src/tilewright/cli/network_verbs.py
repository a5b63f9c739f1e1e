"""The verbs for whole networks: zoo, quantize, compile, run, export.

The work is in the modules they name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.options import (
    Accuracy,
    ActivationsName,
    Algorithm,
    AlgorithmName,
    Fallback,
    Fleet,
    Fuse,
    Json,
    Libraries,
    LibrariesName,
    MaxRelErr,
    Model,
    NetworkPrecision,
    Prune,
    RangesName,
    Samples,
    Seed,
    Shapes,
    Target,
    Threads,
    Trials,
    Tune,
    TuneName,
    examples,
)
from tilewright.ops.winograd_error import DEFAULT_LIMIT

verbs = typer.Typer()
Device = Annotated[
    str, typer.Option('--device', metavar='D', help='A GPU by a part of its name [the first].')
]


@verbs.command(
    epilog=examples(
        'tilewright zoo', 'tilewright zoo resnet18 -o resnet18.onnx',
        'tilewright zoo mobilenet_v1 --image 64 --width 8 -o small.onnx',
    )
)  # fmt: skip
def zoo(
    name: Annotated[
        str | None, typer.Argument(metavar='NAME', help='A network [show them all].')
    ] = None,
    output: Annotated[
        Path | None, typer.Option('-o', '--output', metavar='FILE', help='Write an ONNX model.')
    ] = None,
    batch: Annotated[int, typer.Option('--batch', metavar='B', min=1, help='Batch size.')] = 1,
    image: Annotated[
        int | None,
        typer.Option('--image', metavar='SIZE', min=1, help="Size of images [the paper's]."),
    ] = None,
    width: Annotated[
        int, typer.Option('--width', metavar='N', min=1, help='Divide all channels by N.')
    ] = 1,
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Show the networks that come with this package, or write one as an ONNX model.

    Definitions are those of the papers; weights are random, and the same for the same seed.
    """
    from tilewright.cli import zoo as verb
    from tilewright.cli.output import Output

    return verb.run(
        name, Output('zoo', json), output=output, batch=batch, image=image, width=width,
        seed=seed or 0,
    )  # fmt: skip


@verbs.command(
    epilog=examples(
        'tilewright compile model.onnx -o model.tw',
        'tilewright compile model.onnx --tune measure --trials 6',
        'tilewright compile model.onnx --shape image=1,3,224,224',
        'tilewright compile model.onnx --shape ids=1,1:512',
        'tilewright compile model.onnx --check',
        'tilewright compile resnet18 --target cuda --libraries auto',
        'tilewright compile resnet50 --target cuda --precision fp16 --tune measure',
        'tilewright compile resnet50 --tune measure --fleet tcp://host:8786',
        'tilewright compile model.onnx --precision auto --accuracy rel=0.01 --samples x.npz',
    )
)
def compile(
    model: Model,
    output: Annotated[
        Path | None,
        typer.Option('--output', '-o', metavar='FILE', help='The .tw file [MODEL with .tw].'),
    ] = None,
    tune: Tune = TuneName.MODEL,
    trials: Trials = None,
    shape: Shapes = None,
    algorithm: Algorithm = AlgorithmName.AUTO,
    max_rel_err: MaxRelErr = DEFAULT_LIMIT,
    fuse: Fuse = None,
    fallback: Fallback = None,
    target: Target = 'cpu',
    device: Device = '',
    libraries: Libraries = LibrariesName.NONE,
    precision: NetworkPrecision = None,
    accuracy: Accuracy = None,
    samples: Samples = None,
    prune: Prune = None,
    check: Annotated[
        bool | None,
        typer.Option(
            '--check/--no-check',
            help='Run it once against ONNX Runtime or the reference [with --tune measure].',
        ),
    ] = None,
    fleet: Fleet = None,
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Compile a network and write it as a .tw file: graph, schedules and weights, no code.

    --tune model times nothing and always gives the same file. --check makes the exit code 1 where
    results are wrong, names the pass or the task, and writes no .tw file. --precision auto writes
    the closest mix with exit code 1 where none reaches the accuracy.
    """
    from tilewright.cli import compile as verb
    from tilewright.cli.output import Output

    return verb.run(
        model, Output('compile', json), output=output, tune=tune.value, trials=trials,
        shapes=shape or [], algorithm=algorithm.value, max_rel_err=max_rel_err, threads=threads,
        seed=seed, fallback=fallback.value if fallback else None, target=target, device=device,
        check=check, fuse=fuse.value if fuse else None, libraries=libraries.value,
        prune=prune.value if prune else None, precision=precision.value if precision else None,
        accuracy=accuracy, samples=samples, fleet=fleet,
    )  # fmt: skip


@verbs.command(
    epilog=examples(
        'tilewright run model.tw --input x.npz --output y.npz',
        'tilewright run model.onnx --profile --trace trace.json',
        'tilewright run model.tw --check model.onnx --input x.npz',
        'tilewright run resnet18 --target opencl',
    )
)
def run(
    model: Model,
    input: Annotated[
        Path | None,
        typer.Option('--input', metavar='FILE', help='Inputs by name, .npz or .npy [random].'),
    ] = None,
    output: Annotated[
        Path | None, typer.Option('--output', metavar='FILE', help='Write the results, .npz.')
    ] = None,
    repeat: Annotated[
        int, typer.Option('--repeat', metavar='N', help='Calls that are timed.')
    ] = 10,
    profile: Annotated[
        bool, typer.Option('--profile', help='Show the time of every task.')
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option('--trace', metavar='FILE', help='Write a trace for chrome://tracing.'),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            '--check',
            metavar='FILE',
            help='Compare with what ONNX Runtime makes of an .onnx file, numpy of a .tw file.',
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            '--tolerance',
            metavar='E',
            help='Error for --check [1e-3, times the root of how many sums follow each other].',
        ),
    ] = None,
    shape: Shapes = None,
    fuse: Fuse = None,
    fallback: Fallback = None,
    target: Target = 'cpu',
    device: Device = '',
    libraries: Libraries = LibrariesName.NONE,
    precision: NetworkPrecision = None,
    samples: Samples = None,
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Run a network, compiled or not, and say how long it takes.

    --check makes the exit code 1 where results differ by more than the tolerance.
    """
    from tilewright.cli import run as verb
    from tilewright.cli.output import Output

    return verb.run(
        model, Output('run', json), input_file=input, output_file=output, repeat=repeat,
        profile=profile, trace=trace, shapes=shape or [], threads=threads, seed=seed,
        fallback=fallback.value if fallback else None, target=target, device=device,
        check_file=check, tolerance=tolerance, fuse=fuse.value if fuse else None,
        libraries=libraries.value, precision=precision.value if precision else None,
        samples=samples,
    )  # fmt: skip


@verbs.command(
    epilog=examples(
        'tilewright export model.onnx -o folder', 'tilewright export resnet18 -o folder',
        'tilewright export model.tw -o folder --name detector',
        'tilewright export model.onnx -o folder --precision auto --accuracy rel=0.01',
    )
)  # fmt: skip
def export(
    model: Annotated[
        str,
        typer.Argument(metavar='MODEL', help='An .onnx or .tw file, or a network of the zoo.'),
    ],
    output: Annotated[
        Path, typer.Option('--output', '-o', metavar='DIR', help='An empty or new directory.')
    ],
    name: Annotated[
        str | None,
        typer.Option('--name', metavar='WORD', help="What every name begins with [the model's]."),
    ] = None,
    tune: Tune = TuneName.MODEL,
    trials: Trials = None,
    shape: Shapes = None,
    max_rel_err: MaxRelErr = DEFAULT_LIMIT,
    precision: NetworkPrecision = None,
    accuracy: Accuracy = None,
    samples: Samples = None,
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Write a network as C: a source, a header, weights, a Makefile, and a test (docs/export.md).

    It needs a C compiler, libc, libm and threads, nothing of this package. `make check` compares
    with results that are stored beside it.
    """
    from tilewright.cli import export as verb
    from tilewright.cli.output import Output

    return verb.run(
        model, Output('export', json), output=output, name=name, tune=tune.value, trials=trials,
        shapes=shape or [], max_rel_err=max_rel_err, threads=threads, seed=seed,
        precision=precision.value if precision else None, accuracy=accuracy, samples=samples,
    )  # fmt: skip


@verbs.command(
    epilog=examples(
        'tilewright quantize model.onnx --data samples.npz -o small.onnx',
        'tilewright quantize model.onnx --data folder -o small.onnx --ranges percentile',
        'tilewright quantize model.onnx --data x.npy -o small.onnx --exclude conv1 --json -',
    )
)
def quantize(
    model: Model,
    data: Annotated[
        Path,
        typer.Option(
            '--data',
            metavar='SAMPLES',
            help='An .npz or .npy file with samples along the first axis, or a folder of them.',
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option('--output', '-o', metavar='FILE', help='The .onnx file.', show_default=False),
    ],
    ranges: Annotated[
        RangesName,
        Samples,
        typer.Option('--ranges', help='Keep all values, a share of them, or the most information.'),
    ] = RangesName.MINMAX,
    percentile: Annotated[
        float, typer.Option('--percentile', metavar='P', help='The share that is kept, in percent.')
    ] = 99.99,
    activations: Annotated[
        ActivationsName, typer.Option('--activations', help='What they are stored as.')
    ] = ActivationsName.U8,
    symmetric: Annotated[
        bool, typer.Option('--symmetric', help='Ranges of activations around 0.')
    ] = False,
    per_channel: Annotated[
        bool,
        typer.Option(
            '--per-channel/--per-tensor', help='A scale for each channel of weights, or one.'
        ),
    ] = True,
    exclude: Annotated[
        list[str] | None, typer.Option('--exclude', metavar='NODE', help='Nodes that stay floats.')
    ] = None,
    shape: Shapes = None,
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Quantise a model to 8-bit integers (QDQ) by samples, and show the error of every layer."""
    from tilewright.cli import quantize as verb
    from tilewright.cli.output import Output

    return verb.run(
        model, Output('quantize', json), data=data, output=output, ranges=ranges.value,
        percentile=percentile, activations=activations.value, symmetric=symmetric,
        per_channel=per_channel, exclude=exclude or [], shapes=shape or [], threads=threads,
        seed=seed,
    )  # fmt: skip
