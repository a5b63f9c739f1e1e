"""The verbs about what was found: certify and report. The work is in the modules they name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.options import (
    SPEC_HELP,
    Algorithm,
    AlgorithmName,
    Json,
    MachineName,
    MaxRelErr,
    Seed,
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
