"""`make demo`: ResNet-18's convolutions, optimised, verified, and compared with ONNX Runtime.

Made to end within five minutes on two cores: few candidates, few rounds. `tilewright bench` takes
more of both.
"""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack

from tilewright.cli.optimize import (
    INTERRUPTED,
    check_early,
    interrupted,
    layer_json,
    machine_of,
    no_candidate,
    not_working,
)
from tilewright.cli.output import Bar, Output
from tilewright.errors import CheckError
from tilewright.machine.detect import describe_host
from tilewright.ops.suites import expand
from tilewright.pipeline import optimize
from tilewright.report.machine_page import machine_text
from tilewright.report.tables import OPTIMIZED, Columns, optimized_cells
from tilewright.store.records import open_store
from tilewright_lab.compare.layers import Arena, compare
from tilewright_lab.compare.results import Contestant, LayerResult, geometric_mean
from tilewright_lab.peers.peers import absence

SUITE, PEER = 'resnet18', 'onnxruntime'
CANDIDATES, ROUNDS, TURN_MS = 5, 5, 50.0
HEADINGS = (*OPTIMIZED, 'error', 'ORT', 'ORT/ours')


def run(out: Output, *, threads: int | None, seed: int | None) -> int:
    """Print one row for each layer as it is done; comes out: the exit code."""
    check_early(None, threads, seed=seed)
    began = time.monotonic()
    layers = expand(SUITE)
    machine = machine_of(None, True, out)
    seed = secrets.randbits(32) if seed is None else seed
    out.say(machine_text(machine, describe_host()))
    out.say(f'\nThe {len(layers)} distinct convolutions of ResNet-18, batch 1; times in ms')
    columns = Columns([name for name, _, _ in layers], HEADINGS)
    out.say(columns.head())
    found: list[dict] = []
    results: list[tuple[int, LayerResult]] = []
    code = 0
    with open_store() as store, Bar(len(layers)) as bar, ExitStack() as stack:
        arena: Arena | None = None
        try:
            for name, group, count in layers:
                bar.begin(name)
                plan = optimize(
                    group, machine, CANDIDATES, True, threads, store=store, seed=seed,
                    progress=bar.report,
                )  # fmt: skip
                if not_working(plan):
                    out.warn(no_candidate(name, plan))
                    found.append(layer_json(name, count, plan) | {'comparison': None})
                    code = CheckError.exit_code
                    bar.finish()
                    continue
                arena = arena or stack.enter_context(Arena([PEER], plan.threads))
                result = compare(
                    group, plan.library(), arena, algorithm=plan.best.schedule.schema,
                    rounds=ROUNDS, name=name, seed=seed, turn_ms=TURN_MS, progress=bar.turn,
                )  # fmt: skip
                results.append((count, result))
                found.append(layer_json(name, count, plan) | {'comparison': result.to_json()})
                bar.finish()
                with bar.paused():
                    out.say(columns.row(name, [*optimized_cells(plan), *_compared(result)]))
                if not result.ours.ok:
                    code = CheckError.exit_code
        except KeyboardInterrupt:
            out.warn(interrupted(len(found), len(layers), store))
            code = INTERRUPTED
    out.say('\n' + _summary(results, time.monotonic() - began))
    out.write(
        {
            'spec': SUITE, 'seed': seed, 'machine': machine.to_json(), 'rounds': ROUNDS,
            'complete': len(found) == len(layers), 'layers': found,
            'seconds': time.monotonic() - began,
        }
    )  # fmt: skip
    lack = absence(PEER)
    if lack:  # the demonstration is of what is ours: it works without the extra
        out.warn(lack)
    return code


def _compared(result: LayerResult) -> list[str]:
    """Our error against the reference, the peer's time, and the ratio of medians."""
    peer = result.peers[0]
    error = (
        result.ours.status if result.ours.max_rel_err is None else f'{result.ours.max_rel_err:.0e}'
    )
    time_ms = peer.status if peer.median_ms is None else f'{peer.median_ms:.3f}'
    ratio = '-' if result.best is None else f'{result.best.value:.2f}'
    return [error, time_ms, ratio]


def _summary(results: list[tuple[int, LayerResult]], seconds: float) -> str:
    right = sum(result.ours.ok for _, result in results)
    lines = [
        f'{right} of {len(results)} kernels verified against the float64 reference, before and '
        f'after they were timed; {seconds:.0f} s in all'
    ]
    ratios = [result.best.value for _, result in results if result.best]
    mean = geometric_mean(ratios)
    if mean is not None:
        both = [(n * r.flops, n * _ms(r.ours), n * _ms(r.peers[0])) for n, r in results if r.best]
        flops, ours, theirs = (sum(column) for column in zip(*both, strict=True))
        lines.append(
            f'ONNX Runtime / ours: geometric mean {mean:.2f}, least {min(ratios):.2f}; with '
            f'repetitions {ours:.1f} ms against {theirs:.1f} ms ({flops / ours / 1e6:.0f} GFLOP/s)'
        )
    lines += [f'{result.name}: {result.trouble}' for _, result in results if result.trouble]
    return '\n'.join(lines)


def _ms(contestant: Contestant) -> float:
    return contestant.median_ms or 0.0
