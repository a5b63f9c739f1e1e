"""The verb `model` and what follows it: train, evaluate, show. The work is in `cli.model`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.options import Json, Seed, examples

verbs = typer.Typer(help='Train, evaluate and show learned models (docs/learned.md).')
Kind = Annotated[
    str, typer.Option('--kind', metavar='K', help='Kernels: rs, s, tiled, patch-wgmma_tf32x3, ...')
]
GpuName = Annotated[
    str, typer.Option('--machine', metavar='NAME', help='A known GPU, or a .json file of one.')
]


@verbs.command(
    'train', epilog=examples('tilewright model train --data DIR --machine h200 --kind rs')
)
def model_train(
    data: Annotated[
        list[Path],
        typer.Option('--data', metavar='DIR', help='Measured configurations; may be repeated.'),
    ],
    machine: GpuName,
    kind: Kind = 'rs',
    recipe: Annotated[
        str,
        typer.Option('--recipe', metavar='R', help='forest, boosted, ranked, mixed, or auto.'),
    ] = 'auto',
    output: Annotated[
        Path | None, typer.Option('-o', '--output', metavar='FILE', help='[your own models]')
    ] = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Train on measured problems; the recipe is chosen by grouped cross-validation."""
    from tilewright.cli import model as verb
    from tilewright.cli.output import Output

    return verb.run_train(
        Output('model', json), data=data, machine=machine, kind=kind, recipe=recipe, output=output,
        seed=seed or 0,
    )  # fmt: skip


@verbs.command('evaluate')
def model_evaluate(
    data: Annotated[
        Path, typer.Option('--data', metavar='DIR', help='Measured configurations of layers.')
    ],
    machine: GpuName,
    kind: Kind = 'rs',
    model: Annotated[
        str | None, typer.Option('--model', metavar='FILE', help='[the one that knows the GPU]')
    ] = None,
    json: Json = None,
) -> int:
    """Loss at the top 1, 10 and 30, and trials to 95% and 100% of the best, by layer."""
    from tilewright.cli import model as verb
    from tilewright.cli.output import Output

    return verb.run_evaluate(
        Output('model', json), data=data, machine=machine, kind=kind, model=model
    )


@verbs.command('show')
def model_show(
    model: Annotated[
        str | None, typer.Argument(metavar='MODEL', help='A file, or a name [all models].')
    ] = None,
    json: Json = None,
) -> int:
    """What a model was learned from; without one, all models and features."""
    from tilewright.cli import model as verb
    from tilewright.cli.output import Output

    return verb.run_show(Output('model', json), model=model)
