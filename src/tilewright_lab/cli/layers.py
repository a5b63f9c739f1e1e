"""`tilewright bench`: optimised kernels against other libraries, layer by layer."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

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
from tilewright.errors import CheckError, InputError, MissingError
from tilewright.machine.detect import describe_host
from tilewright.machine.machine import Machine
from tilewright.machine.measure import measure_host
from tilewright.ops.group import Group
from tilewright.ops.suites import expand_all
from tilewright.pipeline import optimize
from tilewright.store.records import Store, open_store, package_version
from tilewright.targets.plan import Candidate, Plan
from tilewright_lab.compare.journal import Journal
from tilewright_lab.compare.kinds import KINDS
from tilewright_lab.compare.layers import Arena, Entry, compare_kernels
from tilewright_lab.compare.results import Bounds, LayerResult, family_of, means
from tilewright_lab.compare.table import table
from tilewright_lab.peers.peers import TUNED, absence, check_names, peer_names
from tilewright_lab.peers.tvm_environment import schedules_folder

# Caches: how they are before a call, and what is recorded under which key of a layer.
CACHES = {'warm': ('warm',), 'flushed': ('flushed',), 'both': ('warm', 'flushed')}
KEYS = ('comparison', 'comparison_flushed')


@dataclass(frozen=True, slots=True)
class Options:
    """What is compared, and how long: everything that a comparison depends on but its layers."""

    names: tuple[str, ...]
    caches: str = 'warm'
    rounds: int = 7
    turn_ms: float = 100.0
    top: int = 5
    algorithm: str = 'auto'
    direct: bool = True
    max_rel_err: float = 1e-4
    threads: int | None = None
    tvm_trials: int = 200

    def check(self) -> None:
        if self.caches not in CACHES:
            raise InputError(
                f'caches is {self.caches!r}; they are one of {", ".join(CACHES)} before a call'
            )
        if self.rounds < 1:
            raise InputError(f'rounds is {self.rounds}; at least 1 is needed')
        if not self.turn_ms > 0:
            raise InputError(f'turn_ms is {self.turn_ms}; a turn takes more than 0 ms')
        if self.tvm_trials < 1:
            raise InputError(f'tvm_trials is {self.tvm_trials}; at least 1 is needed')


def peers_of(against: str | None) -> tuple[str, ...]:
    """Names of peers: those asked for, or else all that are installed and need no tuning."""
    if against is not None:
        names = [name.strip() for name in against.split(',') if name.strip()]
        if not names:
            known = ', '.join(peer_names())
            raise InputError(f'--against {against!r} names no peer; choose from {known}')
        return check_names(names)
    usual = [name for name in peer_names() if name not in TUNED]
    installed = tuple(name for name in usual if not absence(name))
    if not installed:
        raise MissingError(
            f'no peer is installed to compare with; install one of {", ".join(usual)}, such as '
            f"by pip install 'tilewright[bench]'"
        )
    return installed


def run(
    spec: str,
    out: Output,
    *,
    against: str | None,
    rounds: int,
    flush: bool = False,
    caches: str = 'warm',
    top: int,
    algorithm: str,
    max_rel_err: float,
    threads: int | None,
    seed: int | None,
    batch: int | None = None,
    direct: bool = True,
    turn_ms: float = 100.0,
    tvm_trials: int = 200,
) -> int:
    """Tune and compare layer by layer; comes out: the exit code.

    Whatever is finished is reported, also after an interrupt, and the same command then goes on
    from there; a layer of which no candidate works is reported as such, and the others go on.
    """
    check_early(None, threads, top=top, algorithm=algorithm, max_rel_err=max_rel_err, seed=seed)
    options = Options(
        peers_of(against), 'flushed' if flush and caches == 'warm' else caches, rounds, turn_ms,
        top, algorithm, direct, max_rel_err, threads, tvm_trials,
    )  # fmt: skip
    options.check()
    layers = layers_of(spec, batch, out)
    machine = machine_of(None, True, out)
    journal = Journal(
        {
            'spec': spec, 'batch': batch, 'seed': seed, 'package': package_version(),
            'machine': machine.fingerprint or machine.name, 'options': repr(options),
        }
    )  # fmt: skip
    if journal.layers:
        out.warn(
            f'{len(journal.layers)} of {len(layers)} layers were compared before an interrupt; '
            f'going on from there, {journal.path}'
        )
    drawn = int(journal.header.get('seed', secrets.randbits(32) if seed is None else seed))
    journal.begin({'seed': drawn})
    code = 0
    done: list[dict] = []
    with open_store() as store, Bar(len(layers)) as bar, ExitStack() as stack:
        bench = _Bench(options, machine, drawn, store, bar, out, stack)
        try:
            for name, group, count in layers:
                bar.begin(name)
                if name not in journal.layers:
                    journal.add(bench.layer(name, group, count))
                done.append(journal.layers[name])
                bar.finish()
        except KeyboardInterrupt:
            out.warn(interrupted(len(done), len(layers), store))
            code = INTERRUPTED
    found = _report(spec, out, options, machine, drawn, done, layers, journal)
    return code or found


def layers_of(spec: str, batch: int | None, out: Output) -> tuple[tuple[str, Group, int], ...]:
    """The layers that a spec names, at another batch size if one is given.

    Lines of shape lists that are no 2-D convolutions are reported.
    """
    expansion = expand_all(spec, batch)
    for skipped in expansion.skipped:
        out.warn(f'line {skipped.line} is left out: {skipped.reason}')
    return expansion.layers


class _Bench:
    """What is kept from layer to layer: the store, and the contestants' processes."""

    def __init__(
        self, options: Options, machine: Machine, seed: int, store: Store, bar: Bar, out: Output,
        stack: ExitStack,
    ) -> None:  # fmt: skip
        self.options, self.machine, self.seed = options, machine, seed
        self.store, self.bar, self.out, self.stack = store, bar, out, stack
        self.arena: Arena | None = None

    def layer(self, name: str, group: Group, count: int) -> dict:
        """Optimise and compare one layer; comes out: all of it, for JSON."""
        options = self.options
        plan = self._plan(group, options.algorithm)
        found = layer_json(name, count, plan) | dict.fromkeys(_keys(options))
        if not_working(plan):
            self.out.warn(no_candidate(name, plan))
            return found
        direct = self._direct_plan(plan)
        if direct is not None and not_working(direct):
            self.out.warn(no_candidate(f'{name}, direct', direct))
            direct = None
        if direct is not None and _is_direct(plan.best):
            plan = direct  # more direct candidates were measured for it
            found |= layer_json(name, count, plan)
        if self.arena is None:
            tvm = {'trials': options.tvm_trials, 'cache': str(schedules_folder())}
            arena = Arena(options.names, plan.threads, {'tvm': tvm})
            self.arena = self.stack.enter_context(arena)
        results = compare_kernels(
            group, self._entries(name, plan, direct), self.arena, caches=CACHES[options.caches],
            rounds=options.rounds, name=name, seed=self.seed, turn_ms=options.turn_ms,
            progress=self.bar.turn,
        )  # fmt: skip
        bounds = Bounds(plan.algorithm_bound_ms, plan.bound_ms)
        for key, result in zip(_keys(options), results, strict=True):
            found[key] = replace(result, top=options.top, bounds=bounds).to_json()
        if direct is not None and direct is not plan:
            found['direct_plan'] = direct.to_json()
        return found

    def _plan(self, group: Group, algorithm: str) -> Plan:
        options = self.options
        return optimize(
            group, self.machine, options.top, True, options.threads, algorithm=algorithm,
            max_rel_err=options.max_rel_err, store=self.store, seed=self.seed,
            progress=self.bar.report,
        )  # fmt: skip

    def _direct_plan(self, plan: Plan) -> Plan | None:
        """The plan of the direct algorithm alone, where others took part in `plan`."""
        if self.options.algorithm != 'auto':
            return plan if self.options.algorithm == 'direct' else None
        if all(map(_is_direct, plan.candidates)):
            return plan
        return self._plan(plan.group, 'direct') if self.options.direct else None

    def _entries(self, name: str, plan: Plan, direct: Plan | None) -> list[Entry]:
        """Our kernels, the best first, each once, with the roles that it plays."""
        wanted = [('best', plan, plan.best), ('first', plan, first_of(plan))]
        if direct is not None:
            wanted += [
                ('direct', direct, direct.best), ('direct_first', direct, first_of(direct))
            ]  # fmt: skip
        entries: dict[str, Entry] = {}
        for role, source, candidate in wanted:
            if candidate.measurement is not None and not candidate.measurement.ok:
                self.out.warn(
                    f'{name}: the first choice of the model {candidate.measurement.status}, and '
                    f'is not timed: {candidate.measurement.message}'
                )
                continue
            key = candidate.schedule.digest
            if key not in entries:
                library = source.library(candidate)
                entries[key] = Entry(library, candidate.schedule.schema, key)
            if role != 'best':
                entries[key] = replace(entries[key], roles=(*entries[key].roles, role))
        return list(entries.values())


def first_of(plan: Plan) -> Candidate:
    """What the model puts first, without any measuring: as search ranks, by time then digest."""
    return min(plan.candidates, key=lambda c: (c.prediction.seconds, c.schedule.digest))


def _is_direct(candidate: Candidate) -> bool:
    return family_of(candidate.schedule.schema) == 'direct'


def _keys(options: Options) -> Sequence[str]:
    return KEYS[: len(CACHES[options.caches])]


def _report(
    spec: str,
    out: Output,
    options: Options,
    machine: Machine,
    seed: int,
    done: list[dict],
    layers: Sequence[tuple[str, Group, int]],
    journal: Journal,
) -> int:
    """Print the tables and write the JSON; comes out: the exit code."""
    tables = {
        key: [LayerResult.from_json(layer[key]) for layer in done if layer.get(key)]
        for key in _keys(options)
    }
    results = tables[KEYS[0]]
    peaks: dict[str, float] = {}
    if results:
        with contextlib.suppress(KeyboardInterrupt):  # of whoever cannot wait for the last figure
            peaks = peaks_now(machine, results[0].threads)
    shown = [table(found, peaks.get('used_gflops_per_s')) for found in tables.values() if found]
    if shown:
        out.say('\n\n'.join(shown))
    data: dict[str, Any] = {
        'spec': spec, 'seed': seed, 'rounds': options.rounds, 'turn_ms': options.turn_ms,
        'peers': list(options.names), 'caches': options.caches, 'top': options.top,
        'algorithm': options.algorithm, 'machine': machine.to_json(), 'peak': peaks,
        'complete': len(done) == len(layers),
    }  # fmt: skip
    for key, found in tables.items():
        suffix = key.removeprefix('comparison')
        data[f'geometric_mean{suffix}'] = means(found)
        data[f'geometric_mean_by_kind{suffix}'] = {
            kind: {'layers': len(chosen), **means(chosen)}
            for kind in KINDS
            if (chosen := [result for result in found if result.kind == kind])
        }
    out.write(data | {'layers': done})
    if len(done) == len(layers):
        journal.complete()
    failed = any(layer[KEYS[0]] is None for layer in done)
    found = exit_code([r for found in tables.values() for r in found], options.names, out)
    return CheckError.exit_code if failed else found


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


def exit_code(results: list[LayerResult], names: tuple[str, ...], out: Output) -> int:
    """1 when an answer of ours was wrong, 3 when a peer that was asked for is missing."""
    if any(not kernel.ok for result in results for kernel in (result.ours, *result.others)):
        return CheckError.exit_code
    missing = [sentence for name in names if (sentence := absence(name))]
    for sentence in missing:
        out.warn(sentence)
    return MissingError.exit_code if missing else 0
