"""The command line: `tilewright VERB`. Options are read here, the work is in the verbs' modules.

Exit codes: 0 done, 1 a check failed, 2 bad input, 3 something needed is missing, 130 interrupted.
An error is one sentence on standard error; TILEWRIGHT_DEBUG=1 adds the traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright import knobs
from tilewright.cli import model_verbs, network_verbs
from tilewright.cli.options import (
    SPEC_HELP,
    Algorithm,
    AlgorithmName,
    CachesName,
    Fallback,
    Json,
    MachineName,
    MaxRelErr,
    Ranking,
    Seed,
    Spec,
    Target,
    Threads,
    Top,
    examples,
)
from tilewright.errors import InputError, TilewrightError
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.reproduce.figures import FIGURES
from tilewright.version import VERSION


def _knob_lines() -> str:
    rows = [
        (name, f'{text} [{default}]' if default else text) for name, default, text in knobs.table()
    ]
    width = max(len(name) for name, _ in rows)
    lines = '\n'.join(f'  {name.ljust(width)}  {text}' for name, text in rows)
    return f'\b\nEnvironment (see docs/knobs.md):\n{lines}'


app = typer.Typer(
    name='tilewright',
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={'help_option_names': ['-h', '--help'], 'max_content_width': 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f'tilewright {VERSION}')
        raise typer.Exit


@app.callback(epilog=_knob_lines())
def top_level(
    version: Annotated[
        bool,
        typer.Option('--version', callback=_version, is_eager=True, help='Show the version.'),
    ] = False,
) -> None:
    """Turn convolutions into the fastest kernels this machine can run, by modelling.

    Exit codes: 0 done, 1 a check failed, 2 bad input, 3 something needed is missing, 130
    interrupted.
    """


@app.command(
    epilog=examples(
        'tilewright machine', 'tilewright machine --plot bandwidth.png',
        'tilewright machine --machine i9-10980xe --json -', 'tilewright machine --target cuda',
    )
)  # fmt: skip
def machine(
    ctx: typer.Context,
    plot: Annotated[
        Path | None, typer.Option('--plot', metavar='FILE', help='Draw the bandwidth curve.')
    ] = None,
    machine: MachineName = None,
    remeasure: Annotated[
        bool, typer.Option('--remeasure', help='Measure this host again, on a quiet machine.')
    ] = False,
    target: Target = 'cpu',
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Show what was found and measured: cores, caches, FMA peak, bandwidths."""
    from tilewright.cli import machine as verb
    from tilewright.cli.output import Output

    if target != 'cpu':
        from tilewright.cli import gpu

        gpu.refuse(target, gpu.given(ctx, 'plot', 'machine', 'remeasure', 'threads'))
        return gpu.machine(Output('machine', json), target=target, seed=seed)
    return verb.run(
        Output('machine', json), machine=machine, plot=plot, remeasure=remeasure, threads=threads,
        seed=seed,
    )  # fmt: skip


@app.command(
    epilog=examples(
        'tilewright optimize mopt/R9',
        'tilewright optimize resnet18 --threads 1 --json plans.json',
        'tilewright optimize mb1ic64ih56oc64oh56kh3ph1 --no-measure --emit out',
        'tilewright optimize mopt --no-measure --machine i7-9700k',
        'tilewright optimize cnnopt/R12 --no-measure --machine h200 --model forest',
    )
)
def optimize(
    ctx: typer.Context,
    spec: Spec,
    top: Top = 5,
    algorithm: Algorithm = AlgorithmName.AUTO,
    max_rel_err: MaxRelErr = DEFAULT_LIMIT,
    measure: Annotated[
        bool,
        typer.Option(
            '--measure/--no-measure', help='Time the candidates, or rely on the model alone.'
        ),
    ] = True,
    machine: MachineName = None,
    model: Ranking = 'auto',
    emit: Annotated[
        Path | None,
        typer.Option('--emit', metavar='DIR', help='Write the generated sources, best first.'),
    ] = None,
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Find the best schedule of a layer, or of every layer of a suite.

    The model ranks; the best few are compiled, verified and timed, and remembered, so that a run
    that was interrupted goes on where it stopped. --no-measure never times anything and always
    gives the same source.
    """
    from tilewright.cli import optimize as verb
    from tilewright.cli.output import Output
    from tilewright.machine.gpu import known_gpus

    if machine in known_gpus():
        from tilewright.cli import gpu, optimize_gpu

        return optimize_gpu.run(
            spec, Output('optimize', json), machine=str(machine), model=model, top=top,
            measure=measure, seed=seed,
            given=gpu.given(ctx, 'algorithm', 'max-rel-err', 'emit', 'threads'),
        )  # fmt: skip
    verb.check_model(model)
    return verb.run(
        spec, Output('optimize', json), top=top, measure=measure, machine=machine, emit=emit,
        algorithm=algorithm.value, max_rel_err=max_rel_err, threads=threads, seed=seed,
    )  # fmt: skip


@app.command(
    epilog=examples(
        'tilewright explain mopt/R9',
        'tilewright explain mopt/Y4 --machine i9-10980xe --threads 18',
        'tilewright explain cnnopt/R12 --machine h200',
        'tilewright explain model.onnx --measure',
        'tilewright explain resnet18 --machine h200',
    )
)
def explain(
    spec: Annotated[
        str,
        typer.Argument(
            metavar='SPEC',
            show_default=False,
            help=f'{SPEC_HELP[:-1]}; or networks: names of the zoo, .onnx and .tw files.',
        ),
    ],
    algorithm: Algorithm = AlgorithmName.AUTO,
    max_rel_err: MaxRelErr = DEFAULT_LIMIT,
    layers: Annotated[
        bool,
        typer.Option('--layers', help='Layer by layer, where a name is also that of a network.'),
    ] = False,
    measure: Annotated[
        bool, typer.Option('--measure', help='Networks: also time every task on this host.')
    ] = False,
    shape: Annotated[
        list[str] | None,
        typer.Option('--shape', metavar='NAME=S', help='Sizes that a file leaves open.'),
    ] = None,
    machine: MachineName = None,
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Say why: traffic per level, the binding limit, the loops, the runner-up, the bound.

    Nothing is measured or compiled unless --measure asks for it, so this works for machines that
    one does not have.
    """
    from tilewright.cli import explain as verb
    from tilewright.cli.bench_networks import networks_of
    from tilewright.cli.output import Output
    from tilewright.machine.gpu import known_gpus

    networks = None if layers else networks_of(spec, ('.onnx', '.tw'))
    if networks is None and shape:
        raise InputError(f'--shape {shape[0]} is for networks; leave it out for {spec}')
    if networks is not None and algorithm is not AlgorithmName.AUTO:
        raise InputError(
            f'--algorithm {algorithm.value} is for layers; a network takes what is fastest within '
            f'--max-rel-err'
        )
    if machine in known_gpus() and networks is not None:
        from tilewright.cli import explain_gpu_network
        from tilewright.cli.compile import read_shapes

        return explain_gpu_network.run(
            networks, Output('explain', json), machine=str(machine), max_rel_err=max_rel_err,
            shapes=read_shapes(shape or []), seed=seed,
            given={'measure': measure, 'threads': threads is not None},
        )  # fmt: skip
    if machine in known_gpus():
        from tilewright.cli import gpu

        return gpu.explain(spec, Output('explain', json), machine=str(machine), seed=seed)
    if networks is not None:
        from tilewright.cli import explain_network
        from tilewright.cli.compile import read_shapes

        return explain_network.run(
            networks, Output('explain', json), measure=measure, max_rel_err=max_rel_err,
            machine=machine, threads=threads, shapes=read_shapes(shape or []), seed=seed,
        )  # fmt: skip
    if measure:
        raise InputError(f'--measure is for networks; time {spec} with tilewright optimize')
    return verb.run(
        spec, Output('explain', json), algorithm=algorithm.value, max_rel_err=max_rel_err,
        machine=machine, threads=threads, seed=seed,
    )  # fmt: skip


@app.command(
    epilog=examples(
        'tilewright bench mopt/R2,mopt/R9 --against onnxruntime --threads 2',
        'tilewright bench resnet18 --against torch,torch-compile,onnxruntime,openvino',
        'tilewright bench networks --threads 2 --json networks.json',
        'tilewright bench model.onnx --against onnxruntime,openvino',
        'tilewright bench mopt --caches both --json bench.json',
        'tilewright bench benchdnn:FILE --batch 2 --top 2 --rounds 1 --turn-ms 30',
        'tilewright bench mopt/R6 --against tvm --tvm-trials 200',
        'tilewright bench cnnopt --target cuda --against cudnn',
        'tilewright bench resnet18,resnet50 --target cuda --against torch,inductor',
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
            help='torch, onnxruntime, openvino [those installed]; tvm; torch-compile on networks; '
            'on a GPU cudnn, and torch, inductor for networks.',
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
    fallback: Fallback = None,
    target: Target = 'cpu',
    batch: Annotated[
        int | None,
        typer.Option('--batch', metavar='B', min=1, help='Batch size of every layer or network.'),
    ] = None,
    device: Annotated[
        str, typer.Option('--device', metavar='D', help='A GPU by a part of its name [the first].')
    ] = '',
    trials: Annotated[
        int,
        typer.Option(
            '--trials',
            metavar='N',
            help='Schedules to try for each layer on a GPU; of a network, 32 for each group.',
        ),
    ] = 128,
    seconds: Annotated[
        float | None,
        typer.Option(
            '--seconds',
            metavar='S',
            help='Most seconds of search for each layer; on networks, of inductor for all.',
        ),
    ] = None,
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Compare with other libraries, each alone, with the same threads, data and layout.

    docs/measuring.md says what is counted. A peer that is not installed keeps its column and makes
    the exit code 3.
    """
    from tilewright.cli import bench as verb
    from tilewright.cli import bench_networks, gpu
    from tilewright.cli.output import Output

    if target != 'cpu':
        gpu.refuse(target, gpu.given(ctx, *gpu.CPU_ONLY))
        named = None if layers else bench_networks.networks_of(spec)
        if named is not None:
            from tilewright.cli import bench_gpu_networks

            return bench_gpu_networks.run(
                named, Output('bench', json), target=target, against=against, device=device,
                tune=tune, trials=trials if gpu.given(ctx, 'trials')['trials'] else None,
                batch=batch, rounds=rounds, seed=seed, seconds=seconds,
            )  # fmt: skip
        gpu.refuse(target, gpu.given(ctx, 'tune'))
        return gpu.bench(
            spec, Output('bench', json), target=target, against=against, device=device,
            trials=trials, seconds=seconds, batch=batch, rounds=rounds, seed=seed,
        )  # fmt: skip
    gpu.refuse(target, gpu.given(ctx, 'device', 'trials', 'seconds'))
    networks = None if layers else bench_networks.networks_of(spec)
    if networks is not None:
        return bench_networks.run(
            networks, Output('bench', json), against=against, rounds=rounds,
            flush=flush or caches is CachesName.FLUSHED, threads=threads, seed=seed, batch=batch,
            tune=tune, max_rel_err=max_rel_err, turn_ms=turn_ms,
            fallback=fallback.value if fallback else None,
        )  # fmt: skip
    return verb.run(
        spec, Output('bench', json), against=against, rounds=rounds, flush=flush, top=top,
        algorithm=algorithm.value, max_rel_err=max_rel_err, threads=threads, seed=seed, batch=batch,
        caches=caches.value, direct=direct, turn_ms=turn_ms, tvm_trials=tvm_trials,
    )  # fmt: skip


@app.command(
    epilog=examples(
        'tilewright reproduce mopt-fig5 --plot pictures --json fig5.json',
        'tilewright reproduce mopt-fig5 --data samples.jsonl',
        'tilewright reproduce mopt-fig6 --layers mopt/R9 --samples 12',
        'tilewright reproduce mopt-fig7 --data bench.json --plot pictures',
        'tilewright reproduce cnnopt-table9 --data DIR --machine rtx2080ti',
        'tilewright reproduce gtuner-table1 --data bench/results/h200/groups --machine h200',
        'tilewright reproduce gtuner-table3 --data bench/results/h200/networks-inductor.json',
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
    machine: MachineName = None,
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Make a figure of a paper again, on this machine or on data (docs/reproduce.md).

    mopt-fig5: the model against random schedules; mopt-fig6: time and simulated traffic in
    predicted order; mopt-fig7: the comparison with libraries; scaling: time against size;
    cnnopt-table8 and -table9: trials and losses of learned models, on data of a GPU;
    gtuner-table1, -table2 and -fig7: graph-attention models and searches, likewise;
    gtuner-table3: networks tuned on a GPU, --data being what a bench measured of others. What is
    measured is kept, and a run that was interrupted goes on where it stopped.
    """
    from tilewright.cli import reproduce as verb
    from tilewright.cli.output import Output

    return verb.run(
        name, Output('reproduce', json), data=data, machine=machine, layers=layers,
        samples=samples, plot=plot, threads=threads, seed=seed, epochs=epochs, networks=networks,
        target=target, seconds=seconds, small=small,
    )  # fmt: skip


app.add_typer(model_verbs.verbs, name='model')
app.add_typer(network_verbs.verbs)


@app.command(epilog=examples('tilewright demo', 'tilewright demo --json demo.json'))
def demo(threads: Threads = None, json: Json = None, seed: Seed = None) -> int:
    """Optimise and verify ResNet-18's convolutions, and compare them with ONNX Runtime."""
    from tilewright.cli import demo as verb
    from tilewright.cli.output import Output

    return verb.run(Output('demo', json), threads=threads, seed=seed)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f'warning: {message}', file=sys.stderr)


def _failed(sentence: str, code: int) -> int:
    print(f'tilewright: {sentence}', file=sys.stderr)
    return code


def _debugging() -> bool:
    try:
        return knobs.get('debug') >= 1
    except InputError:
        return False


def invoke(words: list[str]) -> int:
    """Run a command line; comes out: the exit code. Errors are printed, not raised."""
    if not words:
        invoke(['--help'])
        return InputError.exit_code
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('default', UserWarning)
            warnings.showwarning = _show_warning
            return int(app(words, prog_name='tilewright', standalone_mode=False) or 0)
    except TilewrightError as error:
        if _debugging():
            traceback.print_exc()
        return _failed(str(error), error.exit_code)
    except BrokenPipeError:
        # The reader of our output has gone; what is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _failed('interrupted', 130)
    except Exception as error:
        usage = getattr(error, 'format_message', None)  # typer's own: a wrong option or verb
        if usage is not None:
            return _failed(f'{_sentence(usage())} (see tilewright --help)', InputError.exit_code)
        if _debugging():
            traceback.print_exc()
        return _failed(
            f'{type(error).__name__}: {_sentence(str(error))}; this is a defect, '
            f'TILEWRIGHT_DEBUG=1 shows where',
            1,
        )


def _sentence(text: str) -> str:
    return ' '.join(text.split()).rstrip('.')


def main() -> None:
    """The entry point of the package's script."""
    sys.exit(invoke(sys.argv[1:]))
