"""The lab's verbs of the command line: bench, demo, model, reproduce.

`register` adds them to the app of `tilewright`, which finds it as an entry point
(`tilewright.commands` in pyproject.toml); `python -m tilewright_lab` has them without installing.
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.options import (
    SPEC_HELP,
    Algorithm,
    AlgorithmName,
    Fallback,
    Fleet,
    Fuse,
    Json,
    Libraries,
    LibrariesName,
    MachineName,
    MaxRelErr,
    Precision,
    Seed,
    Shapes,
    Target,
    Threads,
    Top,
    examples,
    given,
)
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright_lab.cli import model_verbs
from tilewright_lab.figures.figures import FIGURES
from tilewright_lab.peers.contestants import peers_help

verbs = typer.Typer()


class CachesName(StrEnum):
    """How caches are before a call that is timed, as `bench` knows it."""

    WARM = 'warm'
    FLUSHED = 'flushed'
    BOTH = 'both'


def register(app: typer.Typer) -> None:
    """Add the lab's verbs to an app."""
    app.add_typer(verbs)
    app.add_typer(model_verbs.verbs, name='model')


@verbs.command(
    epilog=examples(
        'tilewright bench mopt/R2,mopt/R9 --against onnxruntime --threads 2',
        'tilewright bench resnet18 --against torch,torch-compile,onnxruntime,openvino',
        'tilewright bench networks --threads 2 --json networks.json',
        'tilewright bench resnet50 --threads 2 --busy 1     on a host that others use as well',
        'tilewright bench model.onnx --against onnxruntime,openvino',
        'tilewright bench model.onnx --shape ids=1,1:512 --against onnxruntime',
        'tilewright bench mopt --caches both --json bench.json',
        'tilewright bench mopt --slice-s 120 --json bench.json     again until it exits with 0',
        'tilewright bench benchdnn:FILE --batch 2 --top 2 --rounds 1 --turn-ms 30',
        'tilewright bench mopt/R6 --against tvm --tvm-trials 200',
        'tilewright bench cnnopt --target cuda --against cudnn',
        'tilewright bench resnet18,resnet50 --target cuda --against torch,inductor',
        'tilewright bench resnet50 --target cuda --batch 16 --fuse elementwise --libraries auto',
        'tilewright bench resnet50 --target cuda --batch 16 --precision fp16',
        'tilewright bench mopt --fleet hosts.json',
    )
)
def bench(
    ctx: typer.Context,
    spec: Annotated[
        str,
        typer.Argument(
            metavar='SPEC',
            show_default=False,
            help=f'{SPEC_HELP[:-1]}; or networks: names of the zoo, .onnx files, networks for all.',
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            '--against',
            metavar='PEERS',
            help=f'{peers_help()} [those installed; with --target cuda the first].',
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option('--rounds', metavar='N', help='Interleaved rounds for each layer.')
    ] = 7,
    flush: Annotated[bool, typer.Option('--flush', help='The same as --caches flushed.')] = False,
    caches: Annotated[
        CachesName,
        typer.Option('--caches', help='As they are, evicted before each call, or a table of each.'),
    ] = CachesName.WARM,
    direct: Annotated[
        bool,
        typer.Option(
            '--direct/--no-direct', help='Also time the best direct kernel where another one won.'
        ),
    ] = True,
    turn_ms: Annotated[
        float, typer.Option('--turn-ms', metavar='MS', help='Length of a turn in a round.')
    ] = 100.0,
    tvm_trials: Annotated[
        int, typer.Option('--tvm-trials', metavar='N', help='Trials of MetaSchedule for a layer.')
    ] = 200,
    top: Top = 5,
    algorithm: Algorithm = AlgorithmName.AUTO,
    max_rel_err: MaxRelErr = DEFAULT_LIMIT,
    layers: Annotated[
        bool,
        typer.Option('--layers', help='Layer by layer, where a name is also that of a network.'),
    ] = False,
    tune: Annotated[
        str,
        typer.Option('--tune', metavar='T', help='How networks are compiled: model or measure.'),
    ] = 'measure',
    untuned: Annotated[
        bool,
        typer.Option(
            '--untuned/--no-untuned',
            help='With --tune measure on a GPU also time the network that the model chooses.',
        ),
    ] = True,
    fuse: Fuse = None,
    fallback: Fallback = None,
    fleet: Fleet = None,
    target: Target = 'cpu',
    libraries: Libraries = LibrariesName.NONE,
    precision: Precision = None,
    shape: Shapes = None,
    batch: Annotated[
        int | None,
        typer.Option('--batch', metavar='B', min=1, help='Batch size of every layer or network.'),
    ] = None,
    device: Annotated[
        str, typer.Option('--device', metavar='D', help='A GPU by a part of its name [the first].')
    ] = '',
    trials: Annotated[
        int | None,
        typer.Option(
            '--trials',
            metavar='N',
            help='Schedules to try on a GPU: for each layer [128], or group of a network [32].',
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            '--seconds',
            metavar='S',
            help='Most seconds of search for each layer; on networks, of inductor for all.',
        ),
    ] = None,
    slice_s: Annotated[
        float | None,
        typer.Option(
            '--slice-s',
            metavar='S',
            help='Begin nothing more after so many seconds; the same command goes on from there.',
        ),
    ] = None,
    busy: Annotated[
        int,
        typer.Option(
            '--busy', metavar='N', min=0, help='Processes that compute beside the contestants.'
        ),
    ] = 0,
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Compare with other libraries, each alone, with the same threads, data and layout.

    docs/measuring.md says what is counted. A peer that is not installed keeps its column and makes
    the exit code 3.
    """
    from tilewright.cli.output import Output
    from tilewright_lab.cli import bench as verb

    options = verb.BenchOptions(
        spec, against, rounds, flush, caches.value, direct, turn_ms, tvm_trials, top,
        algorithm.value, max_rel_err, tune, fallback.value if fallback else None, target, batch,
        device, trials, seconds, threads, seed, libraries.value, fuse.value if fuse else None,
        untuned, precision.value if precision else 'fp32', fleet, tuple(shape or ()), slice_s,
        busy,
    )  # fmt: skip
    return verb.run(options, Output('bench', json), partial(given, ctx), layers)


@verbs.command(
    epilog=examples(
        'tilewright reproduce mopt-fig5 --plot pictures --json fig5.json',
        'tilewright reproduce mopt-fig5 --data samples.jsonl',
        'tilewright reproduce mopt-fig6 --layers mopt/R9 --samples 12',
        'tilewright reproduce mopt-fig5 --fleet tcp://host:8786',
        'tilewright reproduce mopt-fig7 --data bench.json --plot pictures',
        'tilewright reproduce mopt-fig8 --layers mopt/R9,mopt/M2 --threads 2',
        'tilewright reproduce cnnopt-table9 --data DIR --machine rtx2080ti',
        'tilewright reproduce gtuner-table1 --data bench/results/h200/groups --machine h200',
        'tilewright reproduce gtuner-table3 --data bench/results/h200/networks-inductor.json',
        'tilewright reproduce deepcuts-speedup',
    )
)
def reproduce(
    name: Annotated[str, typer.Argument(metavar='NAME', help=f'One of {", ".join(FIGURES)}.')],
    data: Annotated[
        Path | None,
        typer.Option(
            '--data',
            metavar='PATH',
            help='Data that exist, instead of measuring; of gtuner-table3 the times of rivals.',
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option('--layers', metavar='SPEC', help="Layers [the paper's]; SPEC as in optimize."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            '--samples',
            metavar='N',
            help='Schedules drawn for each layer; of gtuner-table3 trials for each group [80].',
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option('--plot', metavar='DIR', help='Draw NAME.png into a directory.')
    ] = None,
    epochs: Annotated[
        int | None, typer.Option('--epochs', metavar='N', help='Of a training, in GTuner figures.')
    ] = None,
    networks: Annotated[
        str | None,
        typer.Option('--networks', metavar='NAMES', help='Of gtuner-table3, from the zoo.'),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option('--target', metavar='T', help='Where they run: cuda [default], opencl, host.'),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option('--seconds', metavar='S', help='After which no other network is begun.'),
    ] = None,
    small: Annotated[
        bool, typer.Option('--small', help='Small networks of the same structure.')
    ] = False,
    isa: Annotated[
        str | None,
        typer.Option('--isa', metavar='NAME', help='Of mopt-fig7 and -fig8: avx2, avx512, ...'),
    ] = None,
    fleet: Fleet = None,
    machine: MachineName = None,
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Make a figure of a paper again, on this machine or on data (docs/reproduce.md).

    mopt-fig5: the model against random schedules; mopt-fig6: time and simulated traffic in
    predicted order; mopt-fig7 and -fig8: the comparison with libraries, caches flushed, held to
    AVX2 or AVX-512; scaling: time against size;
    cnnopt-table8 and -table9: trials and losses of learned models, on data of a GPU;
    gtuner-table1, -table2, -fig7 and -fig8: graph-attention models and searches, likewise;
    gtuner-table3: networks tuned on a GPU, --data being what a bench measured of others;
    deepcuts-speedup and -generation-time: networks not fused, fused and with libraries, from files
    of bench. What is measured is kept, and a run that was interrupted goes on where it stopped.
    """
    from tilewright.cli.output import Output
    from tilewright_lab.cli import reproduce as verb

    return verb.run(
        name, Output('reproduce', json), data=data, machine=machine, layers=layers,
        samples=samples, plot=plot, threads=threads, seed=seed, epochs=epochs, networks=networks,
        target=target, seconds=seconds, small=small, fleet=fleet, isa=isa,
    )  # fmt: skip


@verbs.command(epilog=examples('tilewright demo', 'tilewright demo --json demo.json'))
def demo(threads: Threads = None, json: Json = None, seed: Seed = None) -> int:
    """Optimise and verify ResNet-18's convolutions, and compare them with ONNX Runtime."""
    from tilewright.cli.output import Output
    from tilewright_lab.cli import demo as verb

    return verb.run(Output('demo', json), threads=threads, seed=seed)
