"""Time against error of mixes of floats and int8, on the CPU: a table, JSON and a picture.

    python -m tilewright_lab.scripts.precision_curve make mobilenet_v2 --folder curve
    python -m tilewright_lab.scripts.precision_curve time mobilenet_v2 --folder curve --rounds 15
    python -m tilewright_lab.scripts.precision_curve draw mobilenet_v2 resnet50 --folder curve

`make` quantises a network of the zoo by random images, chooses a mix for each limit of `--limits`,
and writes them and the network in uniform types, fp16 among them where the machine computes in it,
as .tw files. `time` runs all of them in turns in one process and writes NAME.json: relative error
on held-out images, medians and raw samples of times. `draw` makes precision-curve.png of these.
Sensitivities are measured once for a network.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tilewright as tw
from tilewright import zoo
from tilewright.graph.passes import passes_of
from tilewright.network.integers import Pricing
from tilewright.precision.accuracy import Accuracy, OutputError, output_error
from tilewright.precision.calibrate import QuantizeOptions, calibrate
from tilewright.precision.mix import MOST_SEARCHED, MixSearch
from tilewright.precision.reference import Floats
from tilewright.precision.units import units_of
from tilewright.search.mix import MixProblem
from tilewright.targets.cpu.site import CpuSite
from tilewright.targets.site import Asked

if TYPE_CHECKING:
    from onnx import ModelProto

SAMPLES = 12
MARKS = {'fp32': 's', 'fp16': 'D', 'int8': '^'}  # of uniform types


def searched(name: str, folder: Path, pricing: Pricing, threads: int) -> MixSearch:
    """Ranges, sensitivities and prices; the latter two are kept in NAME.search.json."""
    network, stored = zoo.network(name), folder / f'{name}.search.json'
    samples = [zoo.inputs(network, seed) for seed in range(1, 1 + SAMPLES)]
    source, options = Floats.of(name, threads=threads), QuantizeOptions()
    if not stored.exists():
        prices = pricing.prices(samples[0])
        search = MixSearch.of(source, samples, options, prices, pricing.runner)
        kept = {
            'problems': {floats: asdict(one) for floats, one in search.problems.items()},
            'floors': {floats: one.to_json() for floats, one in search.floors.items()},
        }
        stored.write_text(json.dumps(kept) + '\n')
        return search
    kept = json.loads(stored.read_text())
    problems = {
        floats: MixProblem(
            tuple(one['floats_s']), tuple(one['integers_s']), tuple(one['losses']),
            tuple((i, j, *seconds) for i, j, *seconds in one['crossings']),
        )
        for floats, one in kept['problems'].items()
    }  # fmt: skip
    floors = {floats: OutputError(**one) for floats, one in kept['floors'].items()}
    half = SAMPLES // 2
    calibrated = calibrate(source.model, samples[:half], options)
    tried, held = tuple(samples[:half][:MOST_SEARCHED]), tuple(samples[half:])
    units = units_of(calibrated.model)
    return MixSearch(calibrated, units, problems, floors, source, tried, held)


def make(name: str, folder: Path, limits: list[float], threads: int, tune: str) -> None:
    """Write NAME-TYPE.tw for both types and every limit, and NAME.errors.json; what is there of
    an earlier run stays."""
    compiled = partial(tw.compile, threads=threads, tune=tune, check=False)
    pricing = Pricing(CpuSite.of(None, threads), Asked(tune), passes_of(None), compiled)
    search = searched(name, folder, pricing, threads)
    right = [search.source.run(sample) for sample in search.held]
    count, errors = len(search.units.units), folder / f'{name}.errors.json'
    found: dict[str, dict] = json.loads(errors.read_text())['points'] if errors.exists() else {}

    def keep(kind: str, model: ModelProto, floats: str, point: dict) -> None:
        net = compiled(model, precision=floats, save=folder / f'{name}-{kind}.tw')
        error = output_error(right, [net.run(dict(sample)) for sample in search.held])
        found[kind] = point | {'error': error.to_json()}
        text = json.dumps({'network': name, 'layers': count, 'points': found}, indent=1)
        errors.write_text(text + '\n')
        print(name, kind, point['int8_layers'], 'of', count, error, flush=True)

    none = search.model((False,) * count)
    whole = {floats: (none, floats, 0) for floats in search.problems}
    whole['int8'] = search.calibrated.quantised(), 'fp32', count
    for kind, (model, floats, layers) in whole.items():
        if kind not in found:
            keep(kind, model, floats, {'int8_layers': layers, 'floats': floats})
    for limit in limits:
        if f'{limit:g}' not in found:
            mix = search.choose(Accuracy('rel', limit), pricing.runner)
            types = tuple(kind == 'int8' for kind in mix.types.values())
            point = mix.to_json() | {'int8_layers': sum(types)}
            keep(f'{limit:g}', search.model(types), mix.floats, point)


def time_all(name: str, folder: Path, rounds: int, threads: int) -> None:
    """Run every network of a curve in turns, and write NAME.json."""
    known = json.loads((folder / f'{name}.errors.json').read_text())
    nets = {
        kind: tw.load(folder / f'{name}-{kind}.tw', threads=threads) for kind in known['points']
    }
    inputs = zoo.inputs(zoo.network(name))
    times: dict[str, list[float]] = {kind: [] for kind in nets}
    for turn in range(rounds + 1):
        for kind, net in nets.items():
            seconds = net.time(inputs, 3)
            if turn:
                times[kind].append(1e3 * min(seconds))
    for kind, point in known['points'].items():
        point['samples_ms'] = times[kind]
        point['time_ms'] = statistics.median(times[kind])
        print(f'{name} {kind:8} {point["int8_layers"]:3} of {known["layers"]} layers in int8, the '
              f'others in {point.get("floats", "fp32")}, error {point["error"]["rel"]:.5f}, '
              f'{point["time_ms"]:.2f} ms')  # fmt: skip
    about = {'threads': threads, 'rounds': rounds, 'samples': SAMPLES}
    (folder / f'{name}.json').write_text(json.dumps(known | about, indent=1) + '\n')


def draw(names: list[str], folder: Path, picture: Path) -> None:
    """One frame for each network."""
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    figure, frames = plt.subplots(1, len(names), figsize=(5 * len(names), 3.6), squeeze=False)
    for name, frame in zip(names, frames[0], strict=True):
        points = json.loads((folder / f'{name}.json').read_text())['points']
        xy = {k: (100 * p['error']['rel'], p['time_ms']) for k, p in points.items()}
        mixes = sorted(xy[kind] for kind in xy if kind not in MARKS)
        frame.plot(*zip(*mixes, strict=True), 'o-', label='mixes')
        for kind in (kind for kind in MARKS if kind in xy):
            frame.plot(*xy[kind], MARKS[kind], markersize=9, label=f'all {kind}')
        frame.set(title=name, xlabel='relative error of the scores, %', ylabel='ms')
        frame.set_ylim(bottom=0)
        frame.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('step', choices=('make', 'time', 'draw'))
    parser.add_argument('networks', nargs='+')
    parser.add_argument('--folder', type=Path, default=Path('curve'))
    parser.add_argument('--limits', type=float, nargs='+',
                        default=[0.002, 0.004, 0.006, 0.01, 0.014, 0.02, 0.03])  # fmt: skip
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--tune', choices=('model', 'measure'), default='model')
    parser.add_argument('--picture', type=Path, default=Path('precision-curve.png'))
    chosen = parser.parse_args()
    chosen.folder.mkdir(exist_ok=True)
    for name in chosen.networks if chosen.step != 'draw' else ():
        if chosen.step == 'make':
            make(name, chosen.folder, chosen.limits, chosen.threads, chosen.tune)
        else:
            time_all(name, chosen.folder, chosen.rounds, chosen.threads)
    if chosen.step == 'draw':
        draw(chosen.networks, chosen.folder, chosen.picture)


if __name__ == '__main__':
    main()
