"""`tilewright bench LAYERS`: optimised kernels against other libraries, layer by layer."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tilewright.cli.optimize import (
    check_early,
    interrupted,
    layer_json,
    machine_of,
    no_candidate,
    not_working,
)
from tilewright.cli.output import Bar, Output
from tilewright.errors import CheckError
from tilewright.machine.machine import Machine
from tilewright.ops.group import Group
from tilewright.ops.suites import expand
from tilewright.pipeline import optimize, tune_ahead
from tilewright.store.records import Store, open_store
from tilewright.targets.plan import Candidate, Plan
from tilewright_lab.cli.bench import (
    BenchOptions,
    Resumed,
    missing_code,
    peaks_now,
    peers_of,
)
from tilewright_lab.compare.kinds import KINDS
from tilewright_lab.compare.layers import Arena, Entry, compare_kernels
from tilewright_lab.compare.results import Bounds, LayerResult, family_of, means
from tilewright_lab.compare.table import table
from tilewright_lab.peers.tvm_environment import schedules_folder

# Caches: how they are before a call, and what is recorded under which key of a layer.
CACHES = {'warm': ('warm',), 'flushed': ('flushed',), 'both': ('warm', 'flushed')}
KEYS = ('comparison', 'comparison_flushed')


def run(options: BenchOptions, out: Output) -> int:
    """Tune and compare layer by layer; comes out: the exit code.

    Whatever is finished is reported, also after an interrupt, and the same command then goes on
    from there; a layer of which no candidate works is reported as such, and the others go on.
    """
    check_early(
        None, options.threads, top=options.top, algorithm=options.algorithm,
        max_rel_err=options.max_rel_err, seed=options.seed,
    )  # fmt: skip
    options.check()
    if options.flush and options.caches == 'warm':
        options = replace(options, caches='flushed')
    names = peers_of(options.against, 'layer')
    layers = expand(options.spec, options.batch)
    machine = machine_of(None, True, out)
    resumed = Resumed('layers', [name for name, _, _ in layers], options, machine, out, peers=names)
    with open_store() as store, Bar(len(layers)) as bar, ExitStack() as stack:
        if options.fleet:
            # What is in the store is not measured again below.
            tune_ahead(
                options.fleet, {name: group for name, group, _ in layers}, machine, store=store,
                progress=bar.report, top=options.top, threads=options.threads,
                algorithm=options.algorithm, max_rel_err=options.max_rel_err, seed=resumed.seed,
            )  # fmt: skip
        bench = _Bench(options, names, machine, resumed.seed, store, bar, out, stack)
        done, code = resumed.each(
            lambda number: bench.layer(*layers[number]), bar,
            lambda count: interrupted(count, len(layers), store),
        )  # fmt: skip
    found = _report(out, options, names, machine, resumed.seed, done, len(layers))
    resumed.close(done)
    return code or found


class _Bench:
    """What is kept from layer to layer: the store, and the contestants' processes."""

    def __init__(
        self, options: BenchOptions, names: tuple[str, ...], machine: Machine, seed: int,
        store: Store, bar: Bar, out: Output, stack: ExitStack,
    ) -> None:  # fmt: skip
        self.options, self.names, self.machine, self.seed = options, names, machine, seed
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
            arena = Arena(self.names, plan.threads, {'tvm': tvm})
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


def _keys(options: BenchOptions) -> Sequence[str]:
    return KEYS[: len(CACHES[options.caches])]


def _report(
    out: Output,
    options: BenchOptions,
    names: tuple[str, ...],
    machine: Machine,
    seed: int,
    done: list[dict],
    asked: int,
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
        'spec': options.spec, 'seed': seed, 'rounds': options.rounds, 'turn_ms': options.turn_ms,
        'peers': list(names), 'caches': options.caches, 'top': options.top,
        'algorithm': options.algorithm, 'machine': machine.to_json(), 'peak': peaks,
        'complete': len(done) == asked,
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
    failed = any(layer[KEYS[0]] is None for layer in done)
    found = exit_code([r for found in tables.values() for r in found], names, out)
    return CheckError.exit_code if failed else found


def exit_code(results: list[LayerResult], names: tuple[str, ...], out: Output) -> int:
    """1 when an answer of ours was wrong, 3 when a peer that was asked for is missing."""
    if any(not kernel.ok for result in results for kernel in (result.ours, *result.others)):
        return CheckError.exit_code
    return missing_code(names, 'layer', out)
