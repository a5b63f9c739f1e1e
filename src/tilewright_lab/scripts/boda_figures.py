"""Boda's Figs. 5 and 7-9: the winners of `bench boda` through CUDA, NVIDIA's OpenCL and PoCL.

    PYTHONPATH=src python -m tilewright_lab.scripts.boda_figures \
        bench/results/h200/boda-batch5.json \
        --json bench/results/h200/boda-figures.json [--pocl pocl.json]       on a host with CUDA
    ... --json figures.json --known figures.json --again boda/B5-1-32-28-16       what is missing
    ... --json figures.json --known figures.json --pocl pocl.json       nothing: PoCL is put in
    PYTHONPATH=src python -m tilewright_lab.scripts.boda_figures DATA --on-pocl pocl.json  on a \
        host with PoCL
    PYTHONPATH=src python -m tilewright_lab.scripts.boda_figures DATA --check  no GPU: all of it, \
        once

DATA is what `tilewright bench boda --target cuda --batch 5 --json DATA` wrote. Measured are, for
each operation, in turns and with every answer checked against float64:

    Fig. 5   its winner, the same source through both runtimes, launched in batches from C; where
             the winner needs the device's own target (warpgroups, more than 48 KiB of shared
             memory), also the best candidate of the search that does not
    Fig. 7   the general kernel beside it
    Fig. 8   the most specialised variant with one setting for all operations, the one of the least
             sum of times (Boda Sec. 4): patches where a window covers several pixels, else tiles;
             a setting whose tiles are larger than an operation is cut to it
    Fig. 9   PoCL beside both, from a file of --on-pocl: the faster of two schedules

The output is written after every operation, so that what was measured is never lost; operations of
a file that --known names are not measured again, and where it has them all no device is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import ScheduleError, TilewrightError
from tilewright.kernels.gpu.dialects.nvidia import needs_own_target
from tilewright.kernels.gpu.generate import generate
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.ops.group import Group
from tilewright.ops.suites import expand
from tilewright.runtime.gpu.worker import GpuWorker
from tilewright.runtime.worker import Answer
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import schedule_text
from tilewright_lab.compare.first_choice import first_choice
from tilewright_lab.compare.gpu_compiler import Compiler

SESSION = ('-m', 'tilewright_lab.peers.gpu_runtimes')
WITHIN = 1.10
GENERAL = GpuSchedule.of('general', threads=128)
LIMIT_S = 120.0  # of one operation's race


def mean(values: Sequence[float]) -> float | None:
    return statistics.geometric_mean(values) if values else None


def median(side: dict | None, kind: str) -> float | None:
    turns = (side or {}).get('samples_us', {}).get(kind, ())
    samples = [s for turn in turns for s in turn]
    return statistics.median(samples) if samples else None


def own(group: Group, schedule: GpuSchedule) -> bool:
    """Whether a schedule's kernels need the device's own target."""
    return any(needs_own_target(kernel) for kernel in generate(group, schedule).kernels)


def contestants(group: Group, layer: dict) -> dict[str, dict]:
    """The winner, the best of the search that needs no target of its own, the general kernel."""
    winner = GpuSchedule.from_json(layer['schedule'])
    chosen = {'winner': winner}
    if own(group, winner):
        tried = sorted((c for c in layer['candidates'] if c['us']), key=lambda c: c['us'])
        schedules = (GpuSchedule.from_json(c['schedule']) for c in tried)
        plain = next((s for s in schedules if not own(group, s)), None)
        if plain is not None:
            chosen['plain'] = plain
    return {name: s.to_json() for name, s in chosen.items()} | {'general': GENERAL.to_json()}


def windowed(group: Group) -> bool:
    """Whether a window covers several pixels, and there are several of them."""
    sizes = group.main.sizes
    return sizes['r'] * sizes['s'] > 1 and sizes['h'] * sizes['w'] > 1


def cut(setting: GpuSchedule, group: Group, machine: GpuMachine) -> GpuSchedule | None:
    """A setting on an operation, its tiles and splits no larger than that; None if not legal."""
    sizes = group.main.sizes
    tiles = {
        name: min(value, sizes[name[1]]) if name in ('bn', 'bh', 'bw') else value
        for name, value in setting.tiles
    }
    while True:
        schedule = GpuSchedule.of(setting.schema, setting.intrinsic, **tiles)
        try:
            for kernel in generate(group, schedule).kernels:
                machine.fits(kernel.name, kernel.threads, kernel.shared_bytes)
            return schedule
        except ScheduleError:
            if tiles.get('split', 1) == 1:
                return None
            tiles['split'] //= 2


def settings_of(
    layers: Sequence[dict], groups: dict[str, Group], schema: str, count: int, machine: GpuMachine
) -> list[GpuSchedule]:
    """Each operation's best of a schema; those that are legal on most operations first."""
    best: dict[str, GpuSchedule] = {}
    for layer in layers:
        found = [c for c in layer['candidates'] if c['us'] and c['schedule']['schema'] == schema]
        if found:
            one = GpuSchedule.from_json(min(found, key=lambda c: c['us'])['schedule'])
            best[one.digest] = one
    return sorted(
        best.values(),
        key=lambda s: (-sum(cut(s, g, machine) is not None for g in groups.values()), s.digest),
    )[:count]


def variants_of(group: Group) -> tuple[str, ...]:
    """Schemas from the most specialised one on."""
    return ('patch', 'tiled') if windowed(group) else ('tiled',)


def races(options: argparse.Namespace, layers: list[dict], groups: dict[str, Group]) -> list[dict]:
    """One record for each operation; the file is written after each."""
    records = known_records(options)
    done = {record['name'] for record in records}
    if done >= {layer['name'] for layer in layers}:
        renew(options, layers, records)
        return records
    machine = known_gpu('h200')
    chosen = {
        schema: settings_of(layers, groups, schema, options.settings, machine)
        for schema in ('patch', 'tiled')
    }
    end = time.monotonic() + options.seconds
    with (
        GpuWorker(options.target, options.device, seed=1, command=SESSION) as worker,
        Compiler('sm_90a') as compiler,
    ):
        opened = worker.open()
        about = {'device': opened.device, 'machine': opened.machine.to_json()}
        wanted = {}
        for name, group in groups.items():
            wanted[name] = {
                setting.digest: schedule
                for schema in variants_of(group)
                for setting in chosen[schema]
                if (schedule := cut(setting, group, machine)) is not None
            }
        compiled = {
            name: {s.digest: compiler.submit(groups[name], s) for s in set(some.values())}
            for name, some in wanted.items()
            if options.target == 'cuda'
        }
        for layer in layers:
            name = layer['name'].split('@')[0]
            if layer['name'] in done:
                continue
            if time.monotonic() > end:
                print(f'{options.seconds} s are over: {len(records)} of {len(layers)} measured')
                break
            settings = []
            for schedule in set(wanted[name].values()):
                future = compiled.get(name, {}).get(schedule.digest)
                built = future.result() if future else None
                if built is None or not built.error:
                    files = built and built.to_json()
                    settings.append({'schedule': schedule.to_json(), 'files': files})
            record = race(worker, groups[name], contestants(groups[name], layer), settings, options)
            by_cut = {GpuSchedule.from_json(s['schedule']).digest: s for s in record['settings']}
            record |= {
                'name': layer['name'],
                'flops': layer['flops'],
                'tuned_us': layer['ours_us'],
                'cudnn_us': layer['rival_us'],
                'settings': {
                    digest: by_cut[s.digest]['us']
                    for digest, s in wanted[name].items()
                    if s.digest in by_cut
                },
            }
            records.append(record)
            if 'opencl' not in about:
                about['opencl'] = worker.ask(groups[name], {'do': 'runtimes'}, LIMIT_S)
                print(json.dumps(about['opencl']), flush=True)
            write(options, about, records, fig8(records, groups, chosen))
            print(line(row(record)), flush=True)
    return records


def renew(options: argparse.Namespace, layers: list[dict], records: list[dict]) -> None:
    """The file again from what was measured, operations in the order of the table."""
    known = json.loads(options.known.read_text())
    order = [layer['name'] for layer in layers]
    records.sort(key=lambda record: order.index(record['name']))
    about = {key: known[key] for key in ('device', 'machine', 'opencl')}
    write(options, about, records, known['fig8'])


def known_records(options: argparse.Namespace) -> list[dict]:
    """Operations that an earlier run measured, less those that are asked for again."""
    if options.known is None or not options.known.exists():
        return []
    again = set(options.again.split(','))
    records = json.loads(options.known.read_text())['records']
    return [r for r in records if r['name'].split('@')[0] not in again]


def race(
    worker: GpuWorker, group: Group, schedules: dict, settings: list[dict],
    options: argparse.Namespace,
) -> dict:  # fmt: skip
    """One operation; where a kernel takes the process down, what is left of it runs alone."""
    request = {
        'do': 'race', 'schedules': schedules, 'settings': settings, 'count': options.count,
        'rounds': options.rounds,
    }  # fmt: skip
    if options.listings:
        options.listings.mkdir(parents=True, exist_ok=True)
        request['listings'] = str(options.listings / group.label)
    try:
        reply = worker.ask(group, request, LIMIT_S)
    except TilewrightError as error:
        return {'sides': [], 'settings': [], 'message': str(error)}
    if not isinstance(reply, Answer) and reply['status'] == 'ok':
        return {'sides': reply['sides'], 'settings': reply['settings'], 'message': ''}
    said = reply.message if isinstance(reply, Answer) else reply['message']
    if 'winner' in schedules and len(schedules) > 1:
        rest = {n: s for n, s in schedules.items() if n != 'winner'}
        left = race(worker, group, rest, settings, options)
        return left | {'message': f'the winner took the process down: {said}'}
    return {'sides': [], 'settings': [], 'message': said}


def side(record: dict, name: str, runtime: str) -> dict | None:
    found = (s for s in record['sides'] if (s['name'], s['runtime']) == (name, runtime))
    return next(found, None)


def row(record: dict) -> dict:
    """An operation in one line: microseconds, and why there are none."""
    made = {n: record[n] for n in ('name', 'flops', 'tuned_us', 'cudnn_us')}
    for name in ('winner', 'plain', 'general'):
        cuda = side(record, name, 'cuda') or side(record, name, 'host')
        opencl = side(record, name, 'opencl')
        made |= {
            f'{name}_cuda_us': median(cuda, 'batched'),
            f'{name}_cuda_graph_us': median(cuda, 'graph'),
            f'{name}_opencl_us': median(opencl, 'batched'),
            f'{name}_opencl_message': (opencl or {}).get('message', '') or record['message'],
            f'{name}_schedule': schedule_text(GpuSchedule.from_json(cuda['schedule']))
            if cuda
            else '',
        }
    return made


def line(made: dict) -> str:
    names = ('winner_cuda_us', 'winner_cuda_graph_us', 'winner_opencl_us', 'plain_cuda_us',
             'plain_opencl_us', 'general_cuda_us', 'cudnn_us')  # fmt: skip
    cells = ('-' if made[n] is None else f'{made[n]:.2f}' for n in names)
    said = '' if made['winner_opencl_us'] else made['winner_opencl_message'][:90]
    return f'{made["name"]:28}' + ' '.join(c.rjust(9) for c in cells) + f'  {said}'


def fig5(rows: Sequence[dict], name: str) -> dict:
    """OpenCL over CUDA, both launched in batches: how many are within ten percent either way."""
    both = [
        (r['name'], r[f'{name}_opencl_us'], r[f'{name}_cuda_us'])
        for r in rows
        if r[f'{name}_opencl_us'] and r[f'{name}_cuda_us']
    ]
    slower = {n: a / b for n, a, b in both if a > WITHIN * b}
    faster = {n: a / b for n, a, b in both if b > WITHIN * a}
    return {
        'operations': len(rows),
        'timed': len(both),
        'within_10_percent': len(both) - len(slower) - len(faster),
        'opencl_over_cuda': mean([a / b for _, a, b in both]),
        'slower': slower,
        'faster': faster,
    }


def portable(rows: Sequence[dict]) -> list[dict]:
    """Rows with the best schedule that both runtimes take: the winner, or the plain one."""
    made = []
    for r in rows:
        name = 'winner' if r['winner_opencl_us'] else 'plain'
        made.append(
            r | {f'best_{k}': r[f'{name}_{k}'] for k in ('cuda_us', 'opencl_us', 'cuda_graph_us')}
        )
    return made


def fig8(records: Sequence[dict], groups: dict[str, Group], chosen: dict) -> dict:
    """The single setting: of tiles by the sum over all, then of patches over their own."""
    general = {r['name']: row(r)['general_cuda_graph_us'] for r in records}
    usable = [r for r in records if general[r['name']]]
    if not usable:
        return {}

    def total(times: dict[str, float]) -> float:
        return sum(times.values())

    def with_setting(digest: str, rest: dict[str, float], schema: str) -> dict[str, float]:
        times = dict(rest)
        for r in usable:
            if schema in variants_of(groups[r['name'].split('@')[0]]):
                times[r['name']] = r['settings'].get(digest) or rest[r['name']]
        return times

    times = {r['name']: float(general[r['name']] or 0.0) for r in usable}
    settings = {}
    for schema in ('tiled', 'patch'):
        tried = [(with_setting(s.digest, times, schema), s) for s in chosen[schema]]
        if tried:
            times, best = min(tried, key=lambda pair: total(pair[0]))
            settings[schema] = schedule_text(best)
    tuned = {r['name']: row(r)['winner_cuda_graph_us'] or r['tuned_us'] for r in usable}
    return {
        'settings': settings,
        'single_us': times,
        'sum_single_us': total(times),
        'sum_tuned_us': total(tuned),
        'single_over_tuned': mean([times[n] / tuned[n] for n in times]),
    }


def document(options: argparse.Namespace, about: dict, records: list[dict], single: dict) -> dict:
    """All figures; `single` is Fig. 8's."""
    pocl = json.loads(options.pocl.read_text())['operations'] if options.pocl else {}
    rows = [row(r) | {'pocl_us': pocl.get(r['name'], {}).get('us')} for r in records]
    both = portable(rows)
    fallback = [
        r['general_cuda_graph_us'] / r['winner_cuda_graph_us']
        for r in rows
        if r['general_cuda_graph_us'] and r['winner_cuda_graph_us']
    ]
    against = [r['cudnn_us'] / r['best_cuda_graph_us'] for r in both if r['best_cuda_graph_us']]
    return {
        **about,
        'command': 'python -m tilewright_lab.scripts.boda_figures',
        'launches_of_a_batch': options.count,
        'fig5_winners': fig5(rows, 'winner'),
        'fig5_best_of_both_runtimes': fig5(both, 'best'),
        'cudnn_over_best_of_both_runtimes': mean(against),
        'fig7_general_over_tuned': mean(fallback),
        'fig8': single,
        'fig9': [
            {'name': r['name'], 'cuda_us': r['winner_cuda_graph_us'],
             'opencl_us': r['best_opencl_us'], 'pocl_us': r['pocl_us']} for r in both
        ],
        'rows': rows,
        'records': records,
    }  # fmt: skip


def write(options: argparse.Namespace, about: dict, records: list[dict], single: dict) -> None:
    if options.json:
        made = document(options, about, records, single)
        scratch = options.json.with_suffix('.part')
        scratch.write_text(json.dumps(made) + '\n')
        os.replace(scratch, options.json)


def on_pocl(options: argparse.Namespace, layers: list[dict], groups: dict[str, Group]) -> None:
    """The faster of two schedules for each operation, through OpenCL; goes on where it was."""
    path: Path = options.on_pocl
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {'operations': {}}
    end = time.monotonic() + options.seconds
    with GpuWorker('opencl', options.device, seed=1) as worker:
        opened = worker.open()
        known |= {'device': opened.device, 'machine': opened.machine.to_json()}
        for layer in layers:
            if layer['name'] in known['operations'] or time.monotonic() > end:
                continue
            group = groups[layer['name'].split('@')[0]]
            tried = sorted((c for c in layer['candidates'] if c['us']), key=lambda c: c['us'])
            schedules = [GpuSchedule.from_json(c['schedule']) for c in tried]
            plain = [s for s in schedules if (s.schema, s.intrinsic) == ('tiled', 'fma')]
            found = []
            for schedule in (first_choice(group, opened.machine), *plain[:1]):
                worth = 1e-3 * found[0][0] if found else None
                answer, _ = worker.attempt(group, schedule, repeats=3, worth_ms=worth)
                if answer.samples_ms:
                    us = [1e3 * ms for ms in answer.samples_ms]
                    found.append((statistics.median(us), us, schedule.to_json()))
            if found:
                us, samples, best = min(found, key=lambda f: f[0])
                known['operations'][layer['name']] = {
                    'us': us, 'samples_us': samples, 'schedule': best
                }  # fmt: skip
                print(layer['name'], f'{us:.0f} us', flush=True)
            path.write_text(json.dumps(known, indent=1) + '\n')
    print(f'{len(known["operations"])} of {len(layers)} operations are in {path}')


def plain_layer(layer: dict) -> dict:
    """A layer as if its best schedule without matrix instructions had won: any runtime has it."""
    plain = [c for c in layer['candidates'] if c['us'] and c['schedule']['intrinsic'] == 'fma']
    best = min(plain, key=lambda c: c['us'])
    return layer | {'schedule': best['schedule'], 'candidates': plain}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('data', type=Path)
    parser.add_argument('--json', type=Path)
    parser.add_argument('--pocl', type=Path, help='a file that --on-pocl wrote')
    parser.add_argument('--on-pocl', type=Path, help='measure on this host through OpenCL')
    parser.add_argument('--device', default='')
    parser.add_argument('--target', default='cuda')
    parser.add_argument('--batch', type=int, default=5)
    parser.add_argument('--only', default='', help='names of operations, separated by commas')
    parser.add_argument('--known', type=Path, help='a file of an earlier run to carry on from')
    parser.add_argument('--again', default='', help='names of operations to measure anew')
    parser.add_argument('--count', type=int, default=200, help='launches of a batch')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--settings', type=int, default=8, help='settings tried for Fig. 8')
    parser.add_argument('--seconds', type=float, default=225.0, help='no operation starts after')
    parser.add_argument('--listings', type=Path, help='folder for the PTX of OpenCL kernels')
    parser.add_argument('--check', action='store_true', help='two operations, on the host')
    options = parser.parse_args()
    data = json.loads(options.data.read_text())
    groups = {name: group for name, group, _ in expand('boda', options.batch)}
    layers = [
        layer
        for layer in data['layers']
        if not options.only or layer['name'].split('@')[0] in options.only.split(',')
    ]
    groups = {name: groups[name] for name in (layer['name'].split('@')[0] for layer in layers)}
    if options.check:
        options.target, options.count, options.rounds, options.settings = 'host', 2, 1, 1
        layers = [plain_layer(layer) for layer in sorted(layers, key=lambda x: x['flops'])[:2]]
    if options.on_pocl:
        on_pocl(options, layers, groups)
        return 0
    records = races(options, layers, groups)
    print(f'{len(records)} of {len(layers)} operations')
    if options.json:
        made = json.loads(options.json.read_text())
        print(json.dumps({k: made[k] for k in made if k.startswith(('fig5', 'fig7', 'cudnn'))}))
        print({k: v for k, v in made['fig8'].items() if k != 'single_us'})
    return 0


if __name__ == '__main__':
    sys.exit(main())
