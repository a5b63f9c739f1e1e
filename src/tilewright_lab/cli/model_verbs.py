"""The verb `model` and what follows it: train, update, evaluate, show; the work is in
`cli.model`, `cli.model_update` and `cli.model_gat`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.options import Json, Seed, examples

if TYPE_CHECKING:
    from tilewright.cli.output import Output

verbs = typer.Typer(help='Train, evaluate and show learned models (docs/learned.md).')
Kind = Annotated[
    str,
    typer.Option(
        '--kind',
        metavar='K',
        help='Kernels: rs, s, tiled, patch-wgmma_tf32x3, ...; search: all of them.',
    ),
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
    model: Annotated[
        str, typer.Option('--model', metavar='M', help='forest: trees; gat: graph attention.')
    ] = 'forest',
    epochs: Annotated[
        int | None, typer.Option('--epochs', metavar='N', help='Of a gat [300].')
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option('--rate', metavar='R', help='Of a gat; it falls to a 20th [1e-4, constant].'),
    ] = None,
    batch: Annotated[
        int | None, typer.Option('--batch', metavar='N', help='Rows of a step of a gat [512].')
    ] = None,
    variant: Annotated[
        str | None, typer.Option('--variant', metavar='V', help='Of a gat [gtuner].')
    ] = None,
    output: Annotated[
        Path | None, typer.Option('-o', '--output', metavar='FILE', help='[your own models]')
    ] = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Train on measured problems; the recipe is chosen by grouped cross-validation."""
    from tilewright.cli.output import Output
    from tilewright_lab.cli import model as verb

    if model != 'forest' or any(v is not None for v in (epochs, rate, batch, variant)):
        return _train_gat(
            model, Output('model', json), data=data, machine=machine, output=output,
            seed=seed or 0, epochs=epochs, rate=rate, batch=batch, variant=variant,
        )  # fmt: skip
    return verb.run_train(
        Output('model', json), data=data, machine=machine, kind=kind, recipe=recipe, output=output,
        seed=seed or 0,
    )  # fmt: skip


def _train_gat(model: str, out: Output, *, data: list[Path], **options: Any) -> int:
    from tilewright.errors import InputError
    from tilewright_lab.cli import model_gat

    if model != 'gat':
        raise InputError(
            f'--model {model}: choose forest or gat; --epochs, --rate, --batch and --variant are '
            f'for gat'
        )
    if len(data) != 1:
        raise InputError(f'a gat is trained on one folder of groups, not on {len(data)}')
    return model_gat.run_train(out, data=data[0], **options)


@verbs.command('update', epilog=examples('tilewright model update --machine h200'))
def model_update(
    machine: Annotated[
        str | None,
        typer.Option('--machine', metavar='NAME', help='[the one that searches have measured on]'),
    ] = None,
    rows: Annotated[
        list[Path] | None,
        typer.Option('--rows', metavar='FILE', help='More of them: .csv.gz; may be repeated.'),
    ] = None,
    output: Annotated[
        Path | None, typer.Option('-o', '--output', metavar='FILE', help='[your own models]')
    ] = None,
    json: Json = None,
    seed: Seed = None,
) -> int:
    """Learn from what searches have measured on a GPU; installed where it orders better."""
    from tilewright.cli.output import Output
    from tilewright_lab.cli import model_update as verb

    return verb.run_update(
        Output('model', json), machine=machine, files=rows or [], output=output, seed=seed or 0
    )


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
    from tilewright.cli.output import Output
    from tilewright_lab.cli import model as verb
    from tilewright_lab.cli import model_gat

    if kind == 'gat' or (model is not None and model_gat.is_gat(model)):
        return model_gat.run_evaluate(
            Output('model', json), data=data, machine=machine, model=model
        )
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
    from tilewright.cli.output import Output
    from tilewright_lab.cli import model as verb
    from tilewright_lab.cli import model_gat

    if model is not None and model_gat.is_gat(model):
        return model_gat.run_show(Output('model', json), model=model)
    return verb.run_show(Output('model', json), model=model)
