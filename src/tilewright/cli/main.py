"""The command line: `tilewright VERB`. Options are read here, the work is in the verbs' modules.

Exit codes: 0 done, 1 a check failed, 2 bad input, 3 something needed is missing, 130 interrupted.
An error is one sentence on standard error; TILEWRIGHT_DEBUG=1 adds the traceback.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright import knobs
from tilewright.cli import network_verbs, report_verbs
from tilewright.cli.options import (
    SPEC_HELP,
    Algorithm,
    AlgorithmName,
    Fleet,
    Fuse,
    Json,
    MachineName,
    MaxRelErr,
    Precision,
    Prune,
    Ranking,
    Seed,
    ShellName,
    Spec,
    Target,
    Threads,
    Top,
    examples,
    given,
    refuse,
)
from tilewright.errors import InputError, TilewrightError
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.version import VERSION

# What a file or a disk is to blame for, not this package.
_ENVIRONMENT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.ENAMETOOLONG)
# Packages that bring verbs of their own name a function of the app here, as the lab does.
COMMANDS = 'tilewright.commands'


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
        'tilewright machine --calibrate',
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
    calibrate: Annotated[
        bool,
        typer.Option(
            '--calibrate',
            help='Fit the time model to random schedules on this host, which must be quiet.',
        ),
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option('--seconds', metavar='S', help='Of calibrating, at most [300].', min=10),
    ] = None,
    target: Target = 'cpu',
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Show what was found and measured: cores, caches, FMA peak, bandwidths."""
    from tilewright.cli import machine as verb
    from tilewright.cli.output import Output

    if target != 'cpu':
        refuse(
            target, given(ctx, 'plot', 'machine', 'remeasure', 'calibrate', 'seconds', 'threads')
        )
        return verb.run_target(Output('machine', json), target=target, seed=seed)
    return verb.run(
        Output('machine', json), machine=machine, plot=plot, remeasure=remeasure, threads=threads,
        seed=seed, calibrate=calibrate, seconds=seconds,
    )  # fmt: skip


@app.command(
    epilog=examples(
        'tilewright optimize mopt/R9',
        'tilewright optimize resnet18 --threads 1 --json plans.json',
        'tilewright optimize mb1ic64ih56oc64oh56kh3ph1 --no-measure --emit out',
        'tilewright optimize mopt --no-measure --machine i7-9700k',
        'tilewright optimize cnnopt/R12 --no-measure --machine h200 --model forest',
        'tilewright optimize cnnopt/R9 --target cuda --trials 64',
        'tilewright optimize mopt/R9 --no-measure --machine h200 --precision fp16',
        'tilewright optimize mopt --fleet tcp://host:8786',
    )
)
def optimize(
    ctx: typer.Context,
    spec: Spec,
    top: Top = 5,
    algorithm: Algorithm = AlgorithmName.AUTO,
    max_rel_err: MaxRelErr = DEFAULT_LIMIT,
    target: Target = 'cpu',
    device: Annotated[
        str, typer.Option('--device', metavar='D', help='A GPU by a part of its name [the first].')
    ] = '',
    trials: Annotated[
        int | None,
        typer.Option(
            '--trials', metavar='N', help='Candidates that are timed [--top; 32 on a GPU].'
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            '--measure/--no-measure', help='Time the candidates, or rely on the model alone.'
        ),
    ] = True,
    machine: MachineName = None,
    model: Ranking = 'auto',
    prune: Prune = None,
    precision: Precision = None,
    emit: Annotated[
        Path | None,
        typer.Option('--emit', metavar='DIR', help='Write the generated sources, best first.'),
    ] = None,
    fleet: Fleet = None,
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

    if target == 'cpu' and machine in known_gpus():
        target = 'cuda'
    if target == 'cpu':
        verb.check_model(model)
        refuse(target, given(ctx, 'device', 'prune'))
    if prune is not None and given(ctx, 'model')['model']:
        raise InputError(
            f'--prune {prune.value} and --model {model} both say what orders candidates; give one '
            f'of them only'
        )
    return verb.run(
        spec, Output('optimize', json), top=top, measure=measure, machine=machine, emit=emit,
        algorithm=algorithm.value, max_rel_err=max_rel_err, threads=threads, seed=seed,
        target=target, device=device, trials=trials,
        model='auto' if prune else model, prune=prune.value if prune else None,
        precision=precision.value if precision else 'fp32', fleet=fleet,
    )  # fmt: skip


@app.command(
    epilog=examples(
        'tilewright explain mopt/R9',
        'tilewright explain mopt/Y4 --machine i9-10980xe --threads 18',
        'tilewright explain cnnopt/R12 --machine h200',
        'tilewright explain model.onnx --measure',
        'tilewright explain resnet18 --machine h200',
        'tilewright explain mobilenet_v2 --machine h200 --fuse all --dfg chain.svg',
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
    fuse: Fuse = None,
    dfg: Annotated[
        Path | None,
        typer.Option(
            '--dfg',
            metavar='FILE',
            help='GPUs: draw the data-flow graph of a kernel (.svg, .png, .pdf; .json).',
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            '--group',
            metavar='G',
            help='Of --dfg in a network: a task, a label or a row of the table [most stages].',
        ),
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
    from tilewright.cli.output import Output

    options = verb.ExplainOptions(
        spec, algorithm.value, max_rel_err, layers, measure, tuple(shape or ()), machine, threads,
        seed, fuse.value if fuse else None, dfg, group,
    )  # fmt: skip
    return verb.run(options, Output('explain', json))


app.add_typer(network_verbs.verbs)
app.add_typer(report_verbs.verbs)


@app.command(epilog=examples('tilewright doctor', 'tilewright doctor --json -'))
def doctor(json: Json = None) -> int:
    """Say what is found, missing and misconfigured on this host, and what to do about it.

    Exit code 1 if something that is needed is missing or set wrong.
    """
    from tilewright.cli import doctor as verb
    from tilewright.cli.output import Output

    return verb.run(Output('doctor', json))


@app.command(
    epilog=examples(
        'tilewright completion bash > ~/.local/share/bash-completion/completions/tilewright',
        'tilewright completion zsh > ~/.zfunc/_tilewright',
        'tilewright completion fish > ~/.config/fish/completions/tilewright.fish',
    )
)
def completion(
    shell: Annotated[
        ShellName, typer.Argument(metavar='SHELL', help='bash, zsh or fish.', show_default=False)
    ],
) -> int:
    """Print a script that completes verbs, options and their values in a shell."""
    from tilewright.cli import completion as verb

    print(verb.script(shell.value, _command()), end='')
    return 0


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
            return _run(words)
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
    except MemoryError as error:
        why = f' ({_sentence(str(error))})' if str(error) else ''
        return _failed(
            f'there is too little memory{why}; ask for smaller sizes, or raise the limit',
            InputError.exit_code,
        )
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _ENVIRONMENT:
            what = error.filename or 'the output'
            return _failed(
                f'{what} cannot be used: {error.strerror}; make room, or name another',
                InputError.exit_code,
            )
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


def _run(words: list[str]) -> int:
    """The verb's exit code. Not by typer's own `main`, which makes Ctrl-C a bare number."""
    command = _command()
    try:
        with command.make_context('tilewright', words) as context:
            code = int(command.invoke(context) or 0)
    except typer.Exit as done:
        code = done.exit_code
    sys.stdout.flush()
    return code


def _sentence(text: str) -> str:
    return ' '.join(text.split()).rstrip('.')


def main() -> None:
    """The entry point of the package's script."""
    sys.exit(invoke(sys.argv[1:]))


@cache
def _command() -> Any:
    """All verbs, those of other packages included, which name them as entry points of `COMMANDS`.

    Made once: every option of every verb gets a parser of its own.
    """
    for found in entry_points(group=COMMANDS):
        found.load()(app)
    return typer.main.get_command(app)
