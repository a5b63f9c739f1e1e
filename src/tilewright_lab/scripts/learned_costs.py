"""What learned models cost: training, ranking a layer's whole space, the file and its loading.

    python -m tilewright_lab.scripts.learned_costs DATA MACHINE [--kind rs] [--recipe mixed] \
        [--json FILE]
    python -m tilewright_lab.scripts.learned_costs MACHINE --shipped search|gat [--layer \
        cnnopt/R9] [--json FILE]

DATA is a folder of measured configurations (docs/learned.md). Training is that of one model on all
training rows of the kind, features included; ranking, of the layer with most configurations;
loading, the least of five times, with the file in the cache of the system.

With --shipped a model is asked that came with the package: `search` the trees that compare all
kernels, `gat` GTuner's. What is ranked are as many candidates as a search of a network looks at,
drawn from the space of one layer; that is timed twice, since what a schedule's blocks do is counted
once for a group, and a search asks again in every generation.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tilewright import rank
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.ops.suites import expand
from tilewright.rank.files import SEARCHED, load_model, save_model
from tilewright.rank.gat_files import load_gat
from tilewright.rank.rankers import ranker_for
from tilewright.search.gpu.moves import moves
from tilewright.targets.gpu.tuning import SAMPLED
from tilewright_lab.collect.datasets import read_data, rows_in
from tilewright_lab.train.forest import RECIPES, table_of, train

# How a model is asked for by name, what reads it, and the end of its file's name.
SHIPPED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    'search': ('forest', load_model, '.npz'),
    'gat': ('gat', load_gat, '.safetensors'),
}


def loading(read: Callable[[Path], object], path: Path) -> dict[str, float]:
    """The file's size, and the least and the most of five times."""
    taken = []
    for _ in range(5):
        begin = time.perf_counter()
        read(path)
        taken.append(time.perf_counter() - begin)
    return {
        'file_bytes': path.stat().st_size, 'loading_s': min(taken), 'loading_most_s': max(taken)
    }  # fmt: skip


def trained(data: Path, machine: GpuMachine, kind: str, recipe: str) -> dict:
    """Costs of a model that is trained here."""
    rows = read_data(data).of([kind])
    begin = time.perf_counter()
    table = table_of(rows.train, machine)
    features = time.perf_counter() - begin
    model = train(rows.train, machine, RECIPES[recipe], table=table)
    training = time.perf_counter() - begin
    layer = max(rows.layers, key=len)
    begin = time.perf_counter()
    model.scores([layer.batch], machine)
    ranking = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'model.npz'
        save_model(model, path)
        return {
            'machine': machine.name, 'kind': kind, 'recipe': recipe,
            'training_rows': rows_in(rows.train), 'features_s': features, 'training_s': training,
            'ranked_configurations': len(layer), 'ranking_s': ranking, **loading(load_model, path),
        }  # fmt: skip


def shipped(name: str, machine: GpuMachine, layer: str) -> dict:
    """Costs of a model that came with the package."""
    model, read, suffix = SHIPPED[name]
    (path,) = (
        Path(folder) / 'known' / f'{machine.name}-{name}{suffix}' for folder in rank.__path__
    )
    ((_, group, _),) = expand(layer)
    space, rng = moves(group, machine), random.Random(0)
    begin = time.perf_counter()
    drawn = {}
    while len(drawn) < SAMPLED:
        schedule = space.draw(rng)
        if schedule is not None:
            drawn[schedule.digest] = schedule
    drawing = time.perf_counter() - begin
    candidates, times = list(drawn.values()), []
    for _ in range(2):
        begin = time.perf_counter()
        ranker_for(model, group, machine, SEARCHED).ranker(candidates)
        times.append(time.perf_counter() - begin)
    return {
        'machine': machine.name, 'model': path.stem, 'layer': layer,
        'ranked_candidates': len(candidates), 'drawing_s': drawing, 'ranking_s': times[0],
        'ranking_again_s': times[1], **loading(read, path),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('data', type=Path, nargs='?')
    parser.add_argument('machine')
    parser.add_argument('--kind', default='rs')
    parser.add_argument('--recipe', default='mixed', choices=sorted(RECIPES))
    parser.add_argument('--shipped', choices=sorted(SHIPPED))
    parser.add_argument('--layer', default='cnnopt/R9')
    parser.add_argument('--json', type=Path)
    options = parser.parse_args()
    if (options.data is None) == (options.shipped is None):
        parser.error('give either DATA to train on, or --shipped')
    machine = known_gpu(options.machine)
    if options.shipped:
        found = shipped(options.shipped, machine, options.layer)
    else:
        found = trained(options.data, machine, options.kind, options.recipe)
    for name, value in found.items():
        print(f'{name:24s} {value:.3f}' if isinstance(value, float) else f'{name:24s} {value}')
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + '\n')


if __name__ == '__main__':
    main()
