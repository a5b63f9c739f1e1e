"""`tilewright zoo`: the networks that come with the package, and their ONNX files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tilewright import zoo
from tilewright.cli.output import Output
from tilewright.errors import InputError
from tilewright.files import replacing
from tilewright.report.grid import Grid

ALL = 'networks'
ONNX = '.onnx'


def run(
    name: str | None,
    out: Output,
    *,
    output: Path | None,
    batch: int,
    image: int | None,
    width: int,
    seed: int,
) -> int:
    """Show one network or all of them, and write the one that is named if `output` is given."""
    if name is None and output is not None:
        raise InputError(f'-o {output} needs a network; choose one of {", ".join(zoo.KNOWN)}')
    made = [
        zoo.network(chosen, batch, image, width)
        for chosen in ((name,) if name is not None else zoo.KNOWN)
    ]
    out.say(_table(made).text())
    if name is not None and output is not None:
        data = zoo.onnx_model(name, seed, batch, image, width).SerializeToString()
        try:
            with replacing(output) as made_file:
                made_file.write_bytes(data)
        except OSError as error:
            raise InputError(f'-o {output} cannot be written: {error.strerror}') from None
        out.say(f'{output}: {len(data)} bytes, seed {seed}')
    out.write(
        {
            'networks': [
                {
                    'name': network.name, 'input': list(network.shape),
                    'layers': len(network.layers), 'parameters': network.parameters,
                    'multiplications': network.multiplications,
                }
                for network in made
            ],
            'file': None if output is None else str(output), 'seed': seed, 'width': width,
        }
    )  # fmt: skip
    return 0


def _table(networks: Iterable[zoo.Network | zoo.WrittenNetwork]) -> Grid:
    rows = [
        (
            network.name, 'x'.join(map(str, network.shape)), str(len(network.layers)),
            f'{network.parameters / 1e6:.2f}', f'{2 * network.multiplications / 1e9:.2f}',
        )
        for network in networks
    ]  # fmt: skip
    return Grid(('network', 'input', 'layers', 'million parameters', 'GFLOP'), tuple(rows))


def networks_of(spec: str, suffixes: tuple[str, ...] = (ONNX,)) -> tuple[str, ...] | None:
    """The networks that a spec names, None when it names layers: names of the zoo, model files."""
    pieces = [piece.strip() for piece in spec.split(',') if piece.strip()]
    named = [piece in (*zoo.KNOWN, ALL) or piece.endswith(suffixes) for piece in pieces]
    if not any(named):
        return None
    if not all(named):
        layer = pieces[named.index(False)]
        raise InputError(
            f'{layer!r} is not a network, but {pieces[named.index(True)]!r} is; compare '
            f'networks and layers in two runs'
        )
    expanded = [name for piece in pieces for name in (zoo.NAMES if piece == ALL else (piece,))]
    return tuple(dict.fromkeys(expanded))
