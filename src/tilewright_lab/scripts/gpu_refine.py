"""Search a few layers further from schedules that are known to be good, then compare.

    PYTHONPATH=src python -m tilewright_lab.scripts.gpu_refine cnnopt/R9 --batch 128 \
        --from bench/results/h200/batch128.json \
        --schedule 'patch wgmma_tf32x3 bn32 bh2 bw2 split1 kb8 joint0 bk128 tk128 tp64 stages1'

Schedules of the files (what `tilewright bench --json` wrote, of the same layers at any batch) and
those that are written out are measured first, then their neighbours, as `tilewright bench` does
from what its store holds. Comes out: the rows of `tilewright bench`, and its JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from tilewright.ops.suites import expand
from tilewright.schedule.gpu import GpuSchedule
from tilewright.store.records import open_store
from tilewright_lab.compare.gpu_layers import GpuBench, GpuOptions
from tilewright_lab.compare.gpu_results import GpuTable, geometric_mean

BEST_OF_A_FILE = 8


def schedule_of(text: str) -> GpuSchedule:
    """'patch wgmma_tf32x3 bn32 bh2 ...', what search.gpu_moves.schedule_text writes."""
    schema, intrinsic, *words = text.split()
    found = [re.fullmatch(r'([a-z_]+)(\d+)', word) for word in words]
    wrong = [word for word, match in zip(words, found, strict=True) if match is None]
    if wrong:
        raise SystemExit(f'{text!r}: {wrong[0]!r} is not a name and a number, such as bk128')
    return GpuSchedule.of(schema, intrinsic, **{m[1]: int(m[2]) for m in found if m})


def known(files: list[Path], layer: str) -> list[GpuSchedule]:
    """The best of each file for a layer, whatever its batch was."""
    found: dict[str, GpuSchedule] = {}
    for path in files:
        for one in json.loads(path.read_text())['layers']:
            if one['name'].split('@')[0] != layer.split('@')[0]:
                continue
            timed = [c for c in one.get('candidates', ()) if c['us'] is not None]
            best = [c['schedule'] for c in sorted(timed, key=lambda c: c['us'])[:BEST_OF_A_FILE]]
            for data in (*([one['schedule']] if one.get('schedule') else []), *best):
                schedule = GpuSchedule.from_json(data)
                found[schedule.digest] = schedule
    return list(found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('spec')
    parser.add_argument('--batch', type=int)
    parser.add_argument('--from', dest='files', type=Path, action='append', default=[])
    parser.add_argument('--schedule', action='append', default=[])
    parser.add_argument('--against', default='cudnn,cudnn_tf32')
    parser.add_argument('--target', default='cuda')
    parser.add_argument('--trials', type=int, default=64)
    parser.add_argument('--seconds', type=float, default=60.0)
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--json', type=Path)
    options = parser.parse_args()
    written = [schedule_of(text) for text in options.schedule]
    layers = [
        (name if options.batch is None else f'{name}@{options.batch}', group)
        for name, group, _ in expand(options.spec, options.batch)
    ]
    names = tuple(options.against.split(','))
    table = GpuTable([name for name, _ in layers], names)
    done = []
    print(table.head(), flush=True)
    for name, group in layers:
        chosen = GpuOptions(
            options.target, '', names, options.trials, options.seconds, rounds=options.rounds,
            starts=(*written, *known(options.files, name)),
        )  # fmt: skip
        with open_store() as store, GpuBench(chosen, store, options.seed) as arena:
            done.append(arena.layer(name, group))
            opened = arena.opened
        print(table.row(done[-1]), flush=True)
        if options.json:
            found = {
                'spec': options.spec, 'batch': options.batch, 'seed': options.seed,
                'target': options.target, 'device': opened.device,
                'machine': opened.machine.to_json(), 'device_versions': opened.versions,
                'peers': list(names), 'trials': options.trials, 'seconds': options.seconds,
                'rounds': options.rounds, 'complete': len(done) == len(layers),
                'geometric_mean': {one: geometric_mean(done, one) for one in names},
                'layers': [layer.to_json() for layer in done],
            }  # fmt: skip
            options.json.write_text(json.dumps(found) + '\n')
    print(table.foot(done))
    return 0


if __name__ == '__main__':
    sys.exit(main())
