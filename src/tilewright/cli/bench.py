"""`tilewright bench`: optimised kernels against other libraries, layer by layer."""

from __future__ import annotations

import contextlib
import secrets

from tilewright.bench.compare import Arena, compare, geometric_mean, table
from tilewright.bench.peers import PEERS, absence, check_names
from tilewright.bench.results import LayerResult
from tilewright.cli.optimize import (
    INTERRUPTED,
    check_early,
    interrupted,
    layer_json,
    layers_of,
    machine_of,
    no_candidate,
    not_working,
)
from tilewright.cli.output import Bar, Output
from tilewright.errors import CheckError, InputError, MissingError
from tilewright.machine.detect import describe_host
from tilewright.machine.machine import Machine
from tilewright.machine.measure import measure_host
from tilewright.pipeline import optimize
from tilewright.plan import Plan
from tilewright.store.records import open_store

Tuned = list[tuple[str, int, Plan]]


def peers_of(against: str | None) -> tuple[str, ...]:
    """Names of peers: those asked for, or else all that are installed."""
    if against is not None:
        names = [name.strip() for name in against.split(',') if name.strip()]
        if not names:
            raise InputError(f'--against {against!r} names no peer; choose from {", ".join(PEERS)}')
        return check_names(names)
    installed = tuple(name for name in PEERS if not absence(name))
    if not installed:
        raise MissingError(
            f'no peer is installed to compare with; install one of {", ".join(PEERS)}, such as '
            f"by pip install 'tilewright[bench]'"
        )
    return installed


def run(
    spec: str,
    out: Output,
    *,
    against: str | None,
    rounds: int,
    flush: bool,
    top: int,
    algorithm: str,
    max_rel_err: float,
    threads: int | None,
    seed: int | None,
) -> int:
    """Tune every layer, then compare every layer; comes out: the exit code.

    Whatever is finished is reported, also after an interrupt; a layer of which no candidate works
    is reported as such, and the others go on.
    """
    check_early(None, threads, top=top, algorithm=algorithm, max_rel_err=max_rel_err, seed=seed)
    names = peers_of(against)
    if rounds < 1:
        raise InputError(f'rounds is {rounds}; at least 1 is needed')
    layers = layers_of(spec, out).layers
    machine = machine_of(None, True, out)
    seed = secrets.randbits(32) if seed is None else seed
    tuned: Tuned = []
    results: list[LayerResult] = []
    code = 0
    with open_store() as store, Bar(2 * len(layers)) as bar:
        try:
            for name, group, count in layers:
                bar.begin(name)
                plan = optimize(
                    group, machine, top, True, threads, algorithm=algorithm,
                    max_rel_err=max_rel_err, store=store, seed=seed, progress=bar.report,
                )  # fmt: skip
                tuned.append((name, count, plan))
                if not_working(plan):
                    out.warn(no_candidate(name, plan))
                bar.finish()
            compare_all(tuned, names, rounds, flush, seed, bar, results)
        except KeyboardInterrupt:
            out.warn(interrupted(len(_finished(tuned, results)), len(layers), store))
            code = INTERRUPTED
    finished = _finished(tuned, results)
    peaks = {}
    if results:
        with contextlib.suppress(KeyboardInterrupt):  # of whoever cannot wait for the last figure
            peaks = peaks_now(machine, results[0].threads)
        out.say(table(results, peaks.get('used_gflops_per_s')))
    out.write(
        {
            'spec': spec, 'seed': seed, 'rounds': rounds, 'peers': list(names),
            'caches': 'flushed' if flush else 'warm', 'machine': machine.to_json(), 'peak': peaks,
            'complete': len(finished) == len(layers),
            'geometric_mean': _means(results),
            'layers': finished,
        }
    )  # fmt: skip
    found = exit_code(results, names, out)
    failed = any(not_working(plan) for _, _, plan in tuned)
    return code or (CheckError.exit_code if failed else found)


def _finished(tuned: Tuned, results: list[LayerResult]) -> list[dict]:
    """The layers that are done, in order: those compared, and those of which nothing works."""
    compared = {result.name: result.to_json() for result in results}
    return [
        layer_json(name, count, plan) | {'comparison': compared.get(name)}
        for name, count, plan in tuned
        if name in compared or not_working(plan)
    ]


def compare_all(
    tuned: Tuned,
    names: tuple[str, ...],
    rounds: int,
    flush: bool,
    seed: int,
    bar: Bar,
    results: list[LayerResult],
) -> None:
    """Add to `results` layer by layer, so that an interrupt loses none that is finished.

    One arena for all layers, so that libraries are started once.
    """
    working = [(name, plan) for name, _, plan in tuned if not not_working(plan)]
    if not working:
        return
    with Arena(names, working[0][1].threads) as arena:
        for name, plan in working:
            bar.begin(name)
            results.append(
                compare(
                    plan.group, plan.library(), arena, algorithm=plan.best.schedule.schema,
                    rounds=rounds, flush=flush, name=name, seed=seed, progress=bar.turn,
                )
            )  # fmt: skip
            bar.finish()


def peaks_now(machine: Machine, threads: int) -> dict[str, float]:
    """The FMA peak at this thread count: the machine file's, this run's, and the larger of them.

    Disturbances only lower a peak, so shares of the larger one are never flattered.
    """
    now = measure_host(describe_host(), machine.isa).machine.peak_gflops(threads)
    stored = machine.peak_gflops(threads)
    return {
        'machine_file_gflops_per_s': stored,
        'this_run_gflops_per_s': now,
        'used_gflops_per_s': max(stored, now),
    }


def _means(results: list[LayerResult]) -> dict[str, float | None]:
    return {
        'best_peer_over_ours': geometric_mean([r.best.value for r in results if r.best]),
        'best_direct_peer_over_ours': geometric_mean(
            [r.best_direct.value for r in results if r.best_direct]
        ),
    }


def exit_code(results: list[LayerResult], names: tuple[str, ...], out: Output) -> int:
    """1 when our own answer was wrong, 3 when a peer that was asked for is missing."""
    if any(not result.ours.ok for result in results):
        return CheckError.exit_code
    missing = [sentence for name in names if (sentence := absence(name))]
    for sentence in missing:
        out.warn(sentence)
    return MissingError.exit_code if missing else 0
