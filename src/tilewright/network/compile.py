"""The stages of a network, in order: what pipeline.py is for a layer.

[file, module]   -> read       -> [Graph]                importers
[Graph]          -> passes     -> [Graph]                graph.fold, batch_norm, combine, ..
[Graph]          -> lower      -> [Program]              graph.lower
[Program]        -> passes     -> [Program]              graph.fuse, concat
[Program]        -> choose_all -> [Choice of each group] chooser (search, model)
[Group, Choice]  -> build      -> [library]              codegen, runtime.build
[Program]        -> plan       -> [Memory]               graph.memory
all of it        ->               [Network]              runtime.network
[Network]        -> check      -> [Network], or an error check
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tilewright.check.cause import Subject
from tilewright.check.check import Check, check_network, wanted
from tilewright.check.expected import program_of
from tilewright.check.failure import Files
from tilewright.check.source import Source
from tilewright.errors import InputError, ModelError, UnsupportedError
from tilewright.graph.batch_norm import fold_batch_norm
from tilewright.graph.combine import combine
from tilewright.graph.concat import concat
from tilewright.graph.dead import drop_dead
from tilewright.graph.fold import fold
from tilewright.graph.fuse import Cost, fuse
from tilewright.graph.graph import Graph
from tilewright.graph.layout import assign_layouts
from tilewright.graph.lower import lower
from tilewright.graph.memory import plan
from tilewright.graph.program import Program
from tilewright.graph.prologue import put_before
from tilewright.graph.simplify import simplify
from tilewright.knobs import debug
from tilewright.machine.isa import host_isas
from tilewright.machine.machine import Machine
from tilewright.machine.measure import load_machine
from tilewright.network.arguments import check as check_words
from tilewright.network.arguments import (
    check_gpu,
    check_saved,
    how_of,
    is_onnx,
    is_saved,
    passes_of,
    warn_without_winograd,
    with_fallback,
)
from tilewright.ops.front import has_front
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.pipeline import check_options
from tilewright.runtime.cpu.network import Network, give_back
from tilewright.runtime.gpu.session import open_device
from tilewright.runtime.measure import Progress
from tilewright.schedule.choice import Choice
from tilewright.store import network_file
from tilewright.store.network_file import Saved
from tilewright.targets.cpu.choose import choose_all, choose_frugal
from tilewright.targets.cpu.fitting import fit, weight_limit
from tilewright.targets.cpu.kernels import Report, build_all, distinct
from tilewright.targets.cpu.target import thread_count
from tilewright.targets.cpu.tuning import measure_in_place
from tilewright.targets.gpu import saved as saved_gpu
from tilewright.targets.gpu.assemble import compile_program
from tilewright.targets.gpu.cost import GpuCost
from tilewright.targets.gpu.place import by_levels
from tilewright.targets.gpu.tuning import How

if TYPE_CHECKING:
    from tilewright.fallback.network import Mixture

NODE_PASSES: dict[str, Callable[[Graph, Cost], Graph]] = {
    'fold': lambda graph, _: fold(graph),
    'simplify': lambda graph, _: simplify(graph),
    'batch_norm': lambda graph, _: fold_batch_norm(graph),
    'combine': combine,
    'dead': lambda graph, _: drop_dead(graph),
}
PROGRAM_PASSES: dict[str, Callable[[Program, Cost], Program]] = {
    'fuse': fuse,
    'prologue': put_before,
    'concat': lambda program, _: concat(program),
    'layout': assign_layouts,
}
PASSES = (*NODE_PASSES, *PROGRAM_PASSES)
# On a GPU images are not changed as they are copied, and branches run side by side.
GPU_PASSES: dict[str, Callable[[Program, Cost], Program]] = {
    'fuse': lambda program, cost: fuse(by_levels(program), cost),
    'concat': lambda program, _: concat(program),
}
TRIALS = 4
KEPT = 4  # choices that are kept for each group, so that there are some with fewer weights
CALL_S = 1e-6  # starting a kernel's threads


def compile(
    network: Any,
    /,
    target: str = 'cpu',
    *,
    tune: str = 'model',
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
    example_inputs: Sequence[Any] | None = None,
    threads: int | None = None,
    trials: int | None = None,
    model: str = 'analytical',
    search: str | None = None,
    algorithm: str = 'auto',
    max_rel_err: float = DEFAULT_LIMIT,
    passes: Collection[str] | None = None,
    machine: Machine | None = None,
    save: str | os.PathLike[str] | None = None,
    device: str = '',
    fallback: str | None = None,
    check: bool | Check | None = None,
    progress: Report | None = None,
) -> Network:
    """A network that is ready to run.

    network  the path of an .onnx or .tw file, the bytes or ModelProto of an ONNX model, a
             torch.nn.Module, or a Graph or Program of ours.
    tune     'model' times nothing and is the same every time; 'measure' times the `trials` best
             predicted kernels of each distinct group, where they will run: in the network.
    model    what ranks the kernels that are timed: 'analytical', on GPUs also 'forest', 'gat',
             'auto' or the file of a learned model (docs/learned.md).
    search   how GPU kernels that are timed are found: 'local', 'random', 'top', 'genetic' or
             'online'; on the CPU the best predicted are, 'top'.
    shapes   input -> shape, where the file leaves sizes open.
    constants  input -> array, for inputs of an ONNX model whose values decide shapes; they are no
             inputs of the network then.
    example_inputs  tensors that a torch.nn.Module is traced with, instead of `shapes`.
    algorithm  of convolutions: 'direct'; 'winograd' wherever it applies within the error budget;
             'auto': the faster of both.
    max_rel_err  largest error of one kernel, as a share of its largest output.
    passes   names out of `PASSES`; None: all of them.
    machine  None: this host.
    save     where to write a .tw file, which `load` reads.
    target   'cpu'; 'cuda' or 'opencl': a GPU (docs/networks_gpu.md); 'host': GPU kernels on the
             CPU, slowly, as a definition of what they compute.
    device   a GPU by a part of its name; '': the first one.
    fallback 'onnxruntime': it runs the nodes of an ONNX model that are not supported; what comes
             out is then a `fallback.network.MixedNetwork`, which is called in the same way.
    check    True: run it once on random data and compare it with ONNX Runtime, PyTorch or our own
             reference before it is handed out; a `Check` says on which data. None: where kernels
             are timed. What differs is a CheckError that names the pass or the task.
    """
    check_words(target, tune, trials, machine, save)
    asked = wanted(check, tune)
    check_options(1, threads, algorithm, max_rel_err)
    how = how_of(target, tune, model, search, algorithm)
    if is_saved(network):
        check_saved(
            network, shapes=shapes, constants=constants, example_inputs=example_inputs,
            passes=passes, trials=trials, save=save, fallback=fallback, tune=tune != 'model',
            algorithm=algorithm != 'auto', max_rel_err=max_rel_err != DEFAULT_LIMIT,
        )  # fmt: skip
    if target != 'cpu':
        check_gpu(target, threads=threads, machine=machine, fallback=fallback)
        if is_saved(network):
            made = saved_gpu.load(network, target, device, progress)
            return _checked_file(made, network, asked)
        return _compile_gpu(
            network, target, tune=tune, shapes=shapes, constants=constants,
            example_inputs=example_inputs, trials=trials, how=how, algorithm=algorithm,
            max_rel_err=max_rel_err, passes=passes, save=save, device=device, asked=asked,
            progress=progress,
        )  # fmt: skip
    if is_saved(network):
        return load(network, threads=threads, device=device, check=asked, progress=progress)
    given = network
    if fallback is not None:
        mixture = _mixture(network, shapes, fallback, _host(machine, threads)[1])
        if mixture.theirs:
            if save is not None:
                raise InputError(
                    f'{save} cannot be written: ONNX Runtime runs {mixture.theirs}, and a .tw file '
                    f'has kernels of ours alone; leave it out'
                )

            def ours(graph: Graph, how: bool | Check = False) -> Network:
                return compile(
                    graph, tune=tune, threads=threads, trials=trials, machine=machine,
                    algorithm=algorithm, max_rel_err=max_rel_err, passes=passes, check=how,
                    progress=progress,
                )  # fmt: skip

            mixed = mixture.compiled(ours)
            if asked is not None:
                from tilewright.check.mixed import check_mixed

                source = Source(
                    'onnx', network, mixture.traced.graph, shapes, threads=mixture.threads
                )
                check_mixed(mixed, mixture, source, asked, max_rel_err, ours)
            # As far as callers go, it is a Network.
            return cast(Network, mixed)
        network = mixture.traced.graph
    clock = _Clock()
    from_onnx = is_onnx(network)
    if not isinstance(network, Program):
        network = read(network, shapes, example_inputs, constants)
    host, count = _host(machine, threads)
    rough = RoughCost(host, count)
    try:
        program = prepare(network, shapes, passes, rough)
    except UnsupportedError as error:
        raise (with_fallback(error) if from_onnx else error) from None
    clock.say(f'{program.name}: {len(program.tasks)} tasks of {len(distinct(program))} kinds')
    top = KEPT if tune == 'model' else max(trials or TRIALS, KEPT)
    chosen = schedule(program, host, count, top, max_rel_err, progress, algorithm)
    clock.say('scheduled')
    if algorithm == 'winograd':
        first = {digest: found[0].schedule.schema for digest, found in chosen.items()}
        warn_without_winograd(program, first, max_rel_err)
    best = {digest: found[0] for digest, found in chosen.items()}
    if tune == 'measure':
        most = trials or TRIALS
        chosen = {digest: found[:most] for digest, found in chosen.items()}
        best = measure_in_place(program, chosen, host, count, max_rel_err, progress, algorithm)
        clock.say('measured')
    saved = Saved(program, best, host, count, float(max_rel_err), algorithm)
    made = assemble(saved, progress)
    clock.say('ready')
    if asked is not None:
        source = Source(_kind(given), given, network, shapes, constants, example_inputs, count)
        subject = _subject(made, program, source, passes, rough, PROGRAM_PASSES, max_rel_err)
        files = Files(source.write, partial(network_file.write, saved=saved))
        check_network(subject, asked, files, source.right)
        clock.say('checked')
        del source, subject, files
    if save is not None:
        network_file.write(save, saved)
    # The model's own weights are not needed any more.
    del network, given, program, saved
    give_back()
    return made


def _compile_gpu(
    model: Any,
    target: str,
    *,
    tune: str,
    shapes: Mapping[str, Sequence[int]] | None,
    constants: Mapping[str, np.ndarray] | None,
    example_inputs: Sequence[Any] | None,
    trials: int | None,
    how: How,
    algorithm: str,
    max_rel_err: float,
    passes: Collection[str] | None,
    save: str | os.PathLike[str] | None,
    device: str,
    asked: Check | None,
    progress: Report | None,
) -> Network:
    """The stages for a GPU; arguments are those of `compile`."""
    opened = open_device(target, device)
    graph = model if isinstance(model, Program) else read(model, shapes, example_inputs, constants)
    cost = GpuCost(opened.machine)
    program = by_levels(prepare(graph, shapes, passes, cost, GPU_PASSES))  # as tasks will run
    chosen: dict[str, Choice] = {}
    made = compile_program(
        program, target, device, device=opened, tune=tune, trials=trials, max_rel_err=max_rel_err,
        progress=progress, how=how, keep=chosen.update,
    )  # fmt: skip
    if algorithm == 'winograd':
        schemas = {task.group.digest: task.schedule.schema for task in made.gpu_tasks}
        warn_without_winograd(program, schemas, max_rel_err)
    write = partial(
        saved_gpu.save, program=program, choices=chosen, machine=opened.machine, target=target,
        max_rel_err=max_rel_err, algorithm=algorithm,
    )  # fmt: skip
    if asked is not None:
        source = Source(_kind(model), model, graph, shapes, constants, example_inputs)
        subject = _subject(made, program, source, passes, cost, GPU_PASSES, max_rel_err)
        check_network(subject, asked, Files(source.write, write, target), source.right)
    if save is not None:
        write(save)
    return made


def load(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    device: str = '',
    check: bool | Check | None = None,
    progress: Report | None = None,
) -> Network:
    """The network of a .tw file, for this host, or for the GPU with `device` in its name.

    Schedules of another machine, or for another number of threads, are chosen again. `check` runs
    it once against the program that the file holds, in float64: kernels are checked then, and
    where memory lies. Passes were made before the file was written, and are not.
    """
    asked = wanted(check, 'model')
    target = network_file.target_of(path)
    if target != 'cpu':
        check_gpu(target, threads=threads)
        return _checked_file(saved_gpu.load(path, target, device, progress), path, asked)
    saved = network_file.read(path)
    host, most = _host(None, threads)
    count = most if threads is not None else min(saved.threads, most)
    if saved.machine.fingerprint != host.fingerprint or saved.machine.isa != host.isa:
        warnings.warn(
            f'{path} was compiled on {saved.machine.name} ({saved.machine.isa}); schedules are '
            f'chosen again for {host.name} ({host.isa})',
            stacklevel=2,
        )
        count = most
    if (saved.machine.fingerprint, saved.threads) != (host.fingerprint, count):
        chosen = schedule(
            saved.program, host, count, KEPT, saved.max_rel_err, progress, saved.algorithm
        )
        best = {digest: found[0] for digest, found in chosen.items()}
        saved = replace(saved, choices=best, machine=host, threads=count)
    return _checked_file(assemble(saved, progress), path, asked)


def assemble(saved: Saved, progress: Report | None = None) -> Network:
    """[program, choices] -> [Network]"""
    program = saved.program
    kernels = build_all(program, saved.choices, progress)
    return Network(program, plan(program), kernels, saved.threads)


class _Clock:
    """Says how long the stages took, when TILEWRIGHT_DEBUG asks."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()

    def say(self, text: str) -> None:
        debug(1, f'{text} after {time.perf_counter() - self.begin:.2f} s')


def prepare(
    model: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    passes: Collection[str] | None = None,
    cost: Cost = lambda group: 0.0,
    program_passes: Mapping[str, Callable[[Program, Cost], Program]] = PROGRAM_PASSES,
) -> Program:
    """[model] -> [Program], with every pass that was asked for."""
    wanted = passes_of(passes, PASSES)
    if isinstance(model, Program):
        program = model
    else:
        graph = read(model, shapes)
        for name, node_pass in NODE_PASSES.items():
            if name in wanted:
                graph = node_pass(graph, cost)
        program = lower(graph)
    for name, program_pass in program_passes.items():
        if name in wanted:
            program = program_pass(program, cost)
    return program


def read(
    model: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    example_inputs: Sequence[Any] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
) -> Graph:
    """[file, bytes, ModelProto, module] -> [Graph]"""
    if isinstance(model, Graph):
        return model
    if type(model).__module__.partition('.')[0] == 'torch' or _is_module(model):
        from tilewright.importers.torch import import_torch

        return import_torch(model, shapes, example_inputs)
    if is_onnx(model):
        from tilewright.importers.onnx import import_onnx

        return import_onnx(model, shapes, constants)
    raise ModelError(
        f'{type(model).__name__} is no model; give the path of an .onnx or .tw file, an ONNX '
        f'ModelProto or a torch.nn.Module'
    )


def _is_module(model: Any) -> bool:
    """Whether it is a torch.nn.Module, without importing torch."""
    return any(kind.__module__.startswith('torch.nn') for kind in type(model).__mro__)


@dataclass(frozen=True, slots=True)
class RoughCost:
    """Seconds that a group takes, roughly: what passes decide by. Microseconds to ask.

    Arithmetic at peak, and every tensor moved once at the speed of the innermost cache that holds
    them all, which is where another task left them; the image of a sum of products is also copied,
    read and written. A kernel costs a start for each of its parts.
    """

    machine: Machine
    threads: int

    def __call__(self, group: Group) -> float:
        machine, threads = self.machine, self.threads
        moved = group.compulsory_bytes
        level = next(
            (
                number
                for number in range(len(machine.caches))
                if moved <= threads * machine.capacity_bytes(number, threads)
            ),
            len(machine.caches),
        )
        if group.main.is_product_sum:
            read = [group.tensor(access.tensor) for access in group.main.reads]
            moved += 2 * sum(t.bytes for t in read if t.role != 'constant')
        seconds = moved / (1e9 * machine.bandwidth_gbps(level, threads))
        seconds += sum(s.flops for s in group.stages) / (1e9 * machine.peak_gflops(threads))
        return seconds + CALL_S * (1 if has_front(group) else len(parts(group)))


def schedule(
    program: Program,
    machine: Machine,
    threads: int,
    top: int,
    max_rel_err: float,
    progress: Report | None = None,
    algorithm: str = 'auto',
) -> dict[str, tuple[Choice, ...]]:
    """[Program] -> the choices for every distinct group, by its digest, the best first.

    Their weights fit together, if they all take the first (fitting.py).
    """
    groups = distinct(program)
    begin = time.perf_counter()

    def report(group: Group, done: int, total: int) -> None:
        if progress is not None:
            spent = time.perf_counter() - begin
            left = spent / done * (total - done)
            progress(Progress('search', group.label, done, total, left, None))

    found = choose_all(list(groups.values()), machine, threads, top, max_rel_err, report, algorithm)

    def frugal(wanted: Sequence[Group]) -> list[tuple[Choice, ...]]:
        return choose_frugal(wanted, machine, threads, max_rel_err)

    return fit(
        program,
        dict(zip(groups, found, strict=True)),
        weight_limit(program),
        offer=frugal if algorithm != 'direct' else None,
    )


def _mixture(
    model: Any, shapes: Mapping[str, Sequence[int]] | None, fallback: str, threads: int
) -> Mixture:
    """What is ours of an ONNX model; its reader is imported only where there is one to read."""
    from tilewright.fallback.network import split_model

    return split_model(model, shapes, fallback, threads)


def _kind(model: Any) -> str:
    """Who knows best what a model computes, see `check.source.Source`."""
    if isinstance(model, Graph | Program):
        return 'ours'
    return 'onnx' if is_onnx(model) else 'torch'


def _subject(
    network: Network,
    program: Program,
    source: Source,
    passes: Collection[str] | None,
    cost: Cost,
    program_passes: Mapping[str, Callable[[Program, Cost], Program]],
    max_rel_err: float,
) -> Subject:
    """What a check is told of a network and of the passes that made its program."""
    node_passes = () if isinstance(source.read, Program) else NODE_PASSES
    chosen = passes_of(passes, PASSES)
    names = tuple(name for name in (*node_passes, *program_passes) if name in chosen)
    return Subject(
        network, program, source.plain, names,
        lambda some: prepare(source.read, None, some, cost, program_passes), max_rel_err,
        source.inside,
    )  # fmt: skip


def _checked_file(network: Network, path: str | os.PathLike[str], asked: Check | None) -> Network:
    """The network of a .tw file, checked if that is asked for."""
    if asked is not None:
        target = network_file.target_of(path)
        files = Files(None, lambda to: shutil.copyfile(path, to), target)
        program = program_of(path)
        in_order = program if target == 'cpu' else by_levels(program)
        check_network(Subject(network, in_order), asked, files)
    return network


def _host(machine: Machine | None, threads: int | None) -> tuple[Machine, int]:
    """The machine to compile for, which must be one that this host can run."""
    if machine is None:
        machine, warning = load_machine(measure=False)
        if warning:
            warnings.warn(warning, stacklevel=3)
    if machine.isa not in host_isas():
        raise InputError(f'{machine.name} has {machine.isa}, which this host cannot run')
    return machine, thread_count(threads, machine)
