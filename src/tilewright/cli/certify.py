"""`tilewright certify`: what is proved of the best schedule of a layer, and whether it holds.

Goes in: layers, or a file of certificates with --check. Comes out: sentences and, with --json, the
certificates; the check reads those alone (tilewright/certificate.py), no model and no solver.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.certificate import KIND, check
from tilewright.cli.output import Bar, Output
from tilewright.errors import CheckError, InputError
from tilewright.files import read_json


@dataclass(frozen=True, slots=True)
class CertifyOptions:
    """What is asked, as the command line has it."""

    spec: str
    algorithm: str
    max_rel_err: float
    measure: bool
    target: str
    machine: str | None
    threads: int | None
    seed: int | None


def run(options: CertifyOptions, out: Output) -> int:
    """Certify every layer that `spec` names, and check each certificate before it is handed out."""
    from tilewright.cli.optimize import check_early, machine_of
    from tilewright.machine.gpu import known_gpu, known_gpus
    from tilewright.ops.suites import expand
    from tilewright.pipeline import optimize
    from tilewright.report.certificate import certificate_text

    target = options.target
    if target == 'cpu' and options.machine in known_gpus():
        target = 'cuda'
    if target == 'cpu':
        check_early(
            options.machine, options.threads, algorithm=options.algorithm,
            max_rel_err=options.max_rel_err, seed=options.seed,
        )  # fmt: skip
    layers = expand(options.spec)
    if target == 'cpu':
        machine: Any = machine_of(options.machine, options.measure, out)
    else:
        machine = None if options.machine is None else known_gpu(options.machine)
    found = []
    with Bar(len(layers)) as bar:
        for name, group, _ in layers:
            bar.begin(name)
            plan = optimize(
                group, machine, 5, options.measure, options.threads, target=target,
                algorithm=options.algorithm, max_rel_err=options.max_rel_err, seed=options.seed,
                progress=bar.report,
            )  # fmt: skip
            made = json.loads(json.dumps(plan.certificate()))  # as a file has it
            check(made)
            bar.finish()
            with bar.paused():
                out.say(f'{name}: {certificate_text(made)}')
            found.append({'name': name, 'certificate': made})
    out.write({'spec': options.spec, 'measured': options.measure, 'layers': found})
    return 0


def run_check(path: Path, out: Output) -> int:
    """Check every certificate of a file; comes out: the exit code, 1 where one does not hold."""
    layers = _read(path)
    results, code = [], 0
    for name, data in layers:
        try:
            said = check(data)
            out.say(f'{name}: holds')
            for sentence in said:
                out.say(f'  {sentence}')
            results.append({'name': name, 'holds': True, 'verified': said})
        except CheckError as error:
            out.warn(f'{name}: {error}')
            results.append({'name': name, 'holds': False, 'why': str(error)})
            code = error.exit_code
    out.write({'file': str(path), 'layers': results})
    return code


def _read(path: Path) -> list[tuple[str, Any]]:
    """(name, certificate) of a file that holds one, or those of `certify --json`."""
    data = read_json(path, f'--check {path}', 'write it by tilewright certify SPEC --json FILE')
    if isinstance(data, dict) and data.get('kind') == KIND:
        return [(str(data.get('label')), data)]
    layers = data.get('layers') if isinstance(data, dict) else None
    if not isinstance(layers, list) or not layers or not all(map(_is_certified, layers)):
        raise InputError(
            f'--check {path} has no certificates; write them by tilewright certify SPEC --json FILE'
        )
    return [(str(one.get('name')), one['certificate']) for one in layers]


def _is_certified(layer: Any) -> bool:
    return isinstance(layer, dict) and 'certificate' in layer
