"""`tilewright explain`: where the time goes, why this schedule, what is left above the bound."""

from __future__ import annotations

from tilewright.cli.optimize import check_early, layer_json, layers_of, machine_of
from tilewright.cli.output import Output
from tilewright.pipeline import optimize
from tilewright.report.explain import explain_plan, explanation

CANDIDATES = 5


def run(
    spec: str,
    out: Output,
    *,
    algorithm: str,
    max_rel_err: float,
    machine: str | None,
    threads: int | None,
    seed: int | None,
) -> int:
    """Explain every layer that `spec` names, by the model alone; comes out: the exit code."""
    check_early(machine, threads, algorithm=algorithm, max_rel_err=max_rel_err, seed=seed)
    layers = layers_of(spec, out).layers
    target = machine_of(machine, False, out)
    found = []
    for number, (name, group, count) in enumerate(layers):
        plan = optimize(
            group, target, CANDIDATES, False, threads, algorithm=algorithm, max_rel_err=max_rel_err
        )
        text = explain_plan(plan)
        out.say(('\n' if number else '') + (text if name == group.label else f'{name}: {text}'))
        found.append(layer_json(name, count, plan) | {'explanation': explanation(plan)})
    out.write(
        {
            'spec': spec,
            'seed': seed,
            'measured': False,
            'machine': target.to_json(),
            'layers': found,
        }
    )
    return 0
