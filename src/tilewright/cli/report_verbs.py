"""The verbs about what was found: certify and report. The work is in the modules they name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.options import (
    SPEC_HELP,
    Algorithm,
    AlgorithmName,
    Fuse,
    Json,
    MachineName,
    MaxRelErr,
    Seed,
    Shapes,
    Target,
    Threads,
    examples,
)
from tilewright.errors import InputError
from tilewright.ops.winograd_error import DEFAULT_LIMIT

verbs = typer.Typer()


@verbs.command(
    epilog=examples(
        'tilewright certify mopt/R9 --json r9.json', 'tilewright certify --check r9.json',
        'tilewright certify mopt --machine i9-10980xe --json mopt.json',
        'tilewright certify cnnopt/R12 --machine h200',
    )
)  # fmt: skip
def certify(
    spec: Annotated[
        str | None, typer.Argument(metavar='[SPEC]', show_default=False, help=SPEC_HELP)
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option('--check', metavar='FILE', help='Verify the certificates of a file instead.'),
    ] = None,
    algorithm: Algorithm = AlgorithmName.AUTO,
    max_rel_err: MaxRelErr = DEFAULT_LIMIT,
    measure: Annotated[
        bool, typer.Option('--measure', help='Time the candidates; else the model says the time.')
    ] = False,
    target: Target = 'cpu',
    machine: MachineName = None,
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Prove how far a layer is from the best possible: lower bound, gap, assumptions.

    --check recomputes every number of a certificate from its JSON, without models or solver, and
    makes the exit code 1 where one does not follow (docs/report.md).
    """
    from tilewright.cli import certify as verb
    from tilewright.cli.output import Output

    if (spec is None) == (check is None):
        raise InputError('give either a SPEC to certify or --check FILE to verify')
    out = Output('certify', json)
    if check is not None:
        return verb.run_check(check, out)
    assert spec is not None
    options = verb.CertifyOptions(
        spec, algorithm.value, max_rel_err, measure, target, machine, threads, seed
    )
    return verb.run(options, out)


@verbs.command(
    epilog=examples(
        'tilewright report resnet18 -o report.html',
        'tilewright report model.onnx --measure -o report.html --json after.json',
        'tilewright report model.onnx -o report.html --compare before.json',
        'tilewright report plans.json -o report.html',
        'tilewright report resnet18 --machine h200 -o report.html',
    )
)
def report(
    source: Annotated[
        str,
        typer.Argument(
            metavar='MODEL',
            show_default=False,
            help='A network of the zoo, an .onnx or .tw file, layers (SPEC), or a .json file of '
            'optimize or report.',
        ),
    ],
    output: Annotated[
        Path, typer.Option('--output', '-o', metavar='FILE', help='The page to write.')
    ] = Path('report.html'),
    compare: Annotated[
        str | None,
        typer.Option(
            '--compare',
            metavar='OTHER',
            help='Another run beside it: a model, or a .json file of report, optimize or bench.',
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option('--trace', metavar='FILE', help='Times that tilewright run --trace wrote.'),
    ] = None,
    measure: Annotated[
        bool, typer.Option('--measure', help='Also time every task on this host.')
    ] = False,
    shape: Shapes = None,
    fuse: Fuse = None,
    max_rel_err: MaxRelErr = DEFAULT_LIMIT,
    machine: MachineName = None,
    threads: Threads = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Write one HTML page that opens offline: graph, timeline, roofline, reasons, what-if.

    Nothing is measured unless --measure or --trace says so (docs/report.md).
    """
    from tilewright.cli import report as verb
    from tilewright.cli.output import Output

    options = verb.ReportOptions(
        source, output, compare, trace, measure, tuple(shape or ()), machine, threads, max_rel_err,
        fuse.value if fuse else None, seed,
    )  # fmt: skip
    return verb.run(options, Output('report', json))
