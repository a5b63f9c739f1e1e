"""`tilewright bench NETWORK`: compiled networks against other libraries, network by network."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tilewright import knobs
from tilewright.cli.optimize import check_early, machine_of
from tilewright.cli.output import Bar, Output
from tilewright.cli.zoo import ONNX as SUFFIX
from tilewright.errors import CheckError
from tilewright.graph.ranges import find_ranges, spread
from tilewright.machine.machine import Machine
from tilewright_lab.cli.bench import BenchOptions, Resumed, missing_code, peaks_now, peers_of
from tilewright_lab.compare.network_results import NetworkResult, mean_ratio, table
from tilewright_lab.compare.networks import NetworkArena, Subject, compare_network
from tilewright_lab.peers.contestants import OURS
from tilewright_lab.peers.neighbours import neighbours
from tilewright_lab.peers.peers import Peer

SIZES = 5  # of a range at which it is compared, along one axis


def run(networks: Sequence[str], options: BenchOptions, out: Output) -> int:
    """Compile and compare network by network; comes out: the exit code.

    Whatever is finished is reported, also after an interrupt, and the same command then goes on
    from there.
    """
    check_early(None, options.threads, max_rel_err=options.max_rel_err, seed=options.seed)
    options.check()
    names = peers_of(options.against, 'network', [n for n in networks if n.endswith(SUFFIX)])
    machine = machine_of(None, True, out)
    threads = options.threads
    if threads is None:
        threads = knobs.get('threads') or machine.cores
    sizes = _sizes(options.shapes)
    rows = [(name, size) for name in networks for size in sizes]
    titles = [f'{name}{_title(size)}' for name, size in rows]
    resumed = Resumed('networks', titles, options, machine, out, peers=names, threads=threads)
    ours = Peer(OURS, threads, work='network')
    with (
        Bar(len(rows)) as bar,
        NetworkArena(names, threads, ours) as arena,
        neighbours(options.busy),
    ):

        def compare(number: int) -> dict:
            result = _compare(*rows[number], arena, options, resumed.seed, bar)
            named = replace(result, name=f'{result.name}{_title(rows[number][1])}')
            return {'name': titles[number], 'comparison': named.to_json()}

        found, code = resumed.each(
            compare, bar,
            lambda count: f'interrupted after {count} of {len(rows)} networks; the same '
            f'command goes on from there',
        )  # fmt: skip
    done = [NetworkResult.from_json(one['comparison']) for one in found]
    said = _report(len(rows), out, options, names, machine, threads, resumed.seed, done)
    resumed.close(done)
    return code or said


def _sizes(texts: Sequence[str]) -> list[Mapping[str, Sequence[int]] | None]:
    """The shapes at which a network is compared: of ranges some, with both ends of each."""
    from tilewright.cli.compile import read_shapes  # it needs onnx

    shapes = read_shapes(texts)
    ranges = find_ranges(shapes)
    if ranges is None:
        return [shapes or None]
    return [ranges.at(point) for point in spread(ranges.box, SIZES)]


def _title(shapes: Mapping[str, Sequence[int]] | None) -> str:
    return '' if shapes is None else ''.join(f' {n}={list(shape)}' for n, shape in shapes.items())


def _compare(
    name: str, shapes: Mapping[str, Sequence[int]] | None, arena: NetworkArena,
    options: BenchOptions, seed: int, bar: Bar,
) -> NetworkResult:  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        if name.endswith(SUFFIX):
            subject = Subject.of_file(Path(name), seed, options.batch, shapes)
        elif shapes is not None:
            ((batch, *rest),) = shapes.values()
            subject = Subject.of_zoo(name, Path(folder), seed, batch, image=rest[-1])
        else:
            subject = Subject.of_zoo(name, Path(folder), seed, options.batch or 1)
        compiling = {'tune': options.tune, 'max_rel_err': options.max_rel_err}
        given = {
            'fallback': options.fallback, 'fuse': options.fuse, 'fleet': options.fleet,
            'shapes': options.shapes,
            'precision': options.precision if options.precision != 'fp32' else None,
        }  # fmt: skip
        compiling |= {name: value for name, value in given.items() if value}
        return compare_network(
            subject, arena, options=compiling, rounds=options.rounds, seed=seed,
            flush=options.flush or options.caches == 'flushed', turn_ms=options.turn_ms,
            progress=bar.turn,
        )  # fmt: skip


def _report(
    asked: int,
    out: Output,
    options: BenchOptions,
    names: tuple[str, ...],
    machine: Machine,
    threads: int,
    seed: int,
    done: Sequence[NetworkResult],
) -> int:
    """Print the table and write the JSON; comes out: the exit code."""
    peaks: dict[str, float] = {}
    if done:
        with contextlib.suppress(KeyboardInterrupt):  # of whoever cannot wait for the last figure
            peaks = peaks_now(machine, threads)
        out.say(table(done, peaks.get('used_gflops_per_s')))
        if options.busy:
            out.say(f'all beside {options.busy} more busy processes')
    out.write(
        {
            'networks': [result.to_json() for result in done],
            'geometric_mean': {'best_peer_over_ours': mean_ratio(done)},
            'least': min((r.best.value for r in done if r.best), default=None),
            'complete': len(done) == asked,
            'peers': list(names), 'seed': seed, 'threads': threads,
            'rounds': options.rounds, 'turn_ms': options.turn_ms, 'batch': options.batch or 1,
            'tune': options.tune, 'max_rel_err': options.max_rel_err,
            'precision': options.precision, 'busy': options.busy,
            'machine': machine.to_json(), 'peak': peaks,
        }
    )  # fmt: skip
    if any(not result.ours.ok for result in done):
        return CheckError.exit_code
    return missing_code(names, 'network', out)
