"""What learned models cost: training, ranking a layer's whole space, the file and its loading.

    python bench/learned_costs.py DATA MACHINE [--kind rs] [--recipe mixed] [--json FILE]

DATA is a folder of measured configurations (docs/learned.md). Training is that of one model on all
training rows of the kind, features included; ranking, of the layer with most configurations;
loading, the least of five times, with the file in the cache of the system.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from tilewright.learn.datasets import read_data, rows_in
from tilewright.learn.files import load_model, save_model
from tilewright.learn.model import RECIPES, table_of, train
from tilewright.machine.gpu import known_gpu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('data', type=Path)
    parser.add_argument('machine')
    parser.add_argument('--kind', default='rs')
    parser.add_argument('--recipe', default='mixed', choices=sorted(RECIPES))
    parser.add_argument('--json', type=Path)
    options = parser.parse_args()
    data, machine = read_data(options.data).of([options.kind]), known_gpu(options.machine)
    begin = time.perf_counter()
    table = table_of(data.train, machine)
    features = time.perf_counter() - begin
    model = train(data.train, machine, RECIPES[options.recipe], table=table)
    trained = time.perf_counter() - begin
    layer = max(data.layers, key=len)
    begin = time.perf_counter()
    model.scores([layer.batch], machine)
    ranked = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'model.npz'
        save_model(model, path)
        size = path.stat().st_size
        loads = []
        for _ in range(5):
            begin = time.perf_counter()
            load_model(path)
            loads.append(time.perf_counter() - begin)
    found = {
        'machine': machine.name, 'kind': options.kind, 'recipe': options.recipe,
        'training_rows': rows_in(data.train), 'features_s': features, 'training_s': trained,
        'ranked_configurations': len(layer), 'ranking_s': ranked, 'file_bytes': size,
        'loading_s': min(loads), 'loading_most_s': max(loads),
    }  # fmt: skip
    for name, value in found.items():
        print(f'{name:24s} {value:.3f}' if isinstance(value, float) else f'{name:24s} {value}')
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + '\n')


if __name__ == '__main__':
    main()
