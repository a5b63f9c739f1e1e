"""`tilewright bench LAYERS --target cuda`: layers searched on a GPU and compared with libraries."""

from __future__ import annotations

import math

from tilewright.cli.machine import peak_text
from tilewright.cli.optimize import INTERRUPTED
from tilewright.cli.output import Output
from tilewright.errors import CheckError, MissingError, TilewrightError
from tilewright.ops.suites import expand
from tilewright.store.records import open_store
from tilewright_lab.cli.bench import BenchOptions, progress, words_of
from tilewright_lab.compare.gpu_layers import GpuBench, GpuOptions
from tilewright_lab.compare.gpu_results import GpuLayer, GpuTable, geometric_mean

DEFAULT_PEERS = {'cuda': 'cudnn', 'opencl': 'general', 'host': 'general'}
TRIALS = 128


def run(options: BenchOptions, out: Output) -> int:
    """Search and compare layer by layer; comes out: the exit code.

    Whatever is finished is reported, also after an interrupt; losing rows stay.
    """
    target, batch, seconds = options.target, options.batch, options.seconds
    names = tuple(words_of(options.against or DEFAULT_PEERS.get(target, 'cudnn')))
    trials = TRIALS if options.trials is None else options.trials
    wanted = GpuOptions(
        target, options.device, names, trials, math.inf if seconds is None else seconds,
        rounds=options.rounds,
    )  # fmt: skip
    wanted.check()
    layers = [
        (name if batch is None else f'{name}@{batch}', group)
        for name, group, _ in expand(options.spec, options.batch)
    ]
    drawn = options.drawn_seed
    done: list[GpuLayer] = []
    code = 0
    table = GpuTable([name for name, _ in layers], names)
    with open_store() as store, GpuBench(wanted, store, drawn, say=progress) as arena:
        out.say(f'{arena.opened.device} ({target}), peak {peak_text(arena.opened.machine)}')
        out.say(table.head())
        try:
            for name, group in layers:
                try:
                    done.append(arena.layer(name, group))
                except TilewrightError as error:  # too large for the device, say: the others go on
                    done.append(
                        GpuLayer(
                            name, group.label, group.digest, group.flops, arena.opened.machine,
                            names[0], message=str(error),
                        )
                    )  # fmt: skip
                progress('')
                out.say(table.row(done[-1]))
        except KeyboardInterrupt:
            out.warn(
                f'interrupted after {len(done)} of {len(layers)} layers; what was measured is '
                f'in {store.path}, and the same command goes on from there'
            )
            code = INTERRUPTED
        opened = arena.opened
    out.say(table.foot(done))
    out.write(
        {
            'spec': options.spec, 'batch': batch, 'seed': drawn, 'target': target,
            'device': opened.device, 'machine': opened.machine.to_json(),
            'device_versions': opened.versions, 'peers': list(names), 'trials': trials,
            'seconds': seconds, 'rounds': options.rounds, 'complete': len(done) == len(layers),
            'geometric_mean': {name: geometric_mean(done, name) for name in names},
            'layers': [layer.to_json() for layer in done],
        }
    )  # fmt: skip
    return code or _exit_code(done, names, out)


def _exit_code(done: list[GpuLayer], names: tuple[str, ...], out: Output) -> int:
    """1 when nothing of ours worked on a layer, 3 when a contestant is missing."""
    if any(layer.ours_us is None for layer in done):
        for layer in done:
            if layer.ours_us is None:
                out.warn(f'{layer.name}: {layer.message or "no schedule of ours was timed"}')
        return CheckError.exit_code
    others = [(layer, c) for layer in done for c in layer.contestants if not c.get('median_us')]
    missing = {c['name']: c['message'] for _, c in others if c.get('status') == 'missing'}
    for name, message in missing.items():
        out.warn(f'{name}: {message}')
    for layer, c in others:
        if c['name'] not in missing:
            out.warn(f'{layer.name}: {c["name"]} was not timed ({c["status"]}): {c["message"]}')
    return MissingError.exit_code if missing else 0
