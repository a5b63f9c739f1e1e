"""The stages of a network, in order, on any target: what pipeline.py is for a layer.

[file, module]   -> read       -> [Graph]                importers
[Graph]          -> passes     -> [Graph]                graph.fold, batch_norm, combine, ..
[Graph]          -> lower      -> [Program]              graph.lower
[Program]        -> passes     -> [Program]              graph.fuse, concat; targets.chained
[Program]        -> choose     -> [choices of each group] the site (targets/site.py), by the model
[choices]        -> tune       -> [choice of each group]  the site, where tune is 'measure'
[choice]         -> select     -> [choice of each group]  the site, where libraries may compete
[choice]         -> bind       -> [Network]               the site: kernels built, memory planned
[Network]        -> check      -> [Network], or an error check
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tilewright import zoo
from tilewright.check.cause import Subject
from tilewright.check.check import Check, check_network, wanted
from tilewright.check.expected import program_of
from tilewright.check.failure import Files
from tilewright.check.source import Source
from tilewright.errors import InputError, ModelError, UnsupportedError
from tilewright.files import path_of
from tilewright.graph.fuse import Cost
from tilewright.graph.graph import DTYPES, Graph
from tilewright.graph.half import holds_halves, widened
from tilewright.graph.passes import (
    HALF,
    NODE_PASSES,
    PROGRAM_PASSES,
    ProgramPasses,
    apply_passes,
    passes_of,
    with_half,
    with_narrow,
)
from tilewright.graph.program import Program
from tilewright.graph.ranges import find_ranges
from tilewright.kernels.cpu.schemas.narrow.plan import why_not as why_not_narrow
from tilewright.knobs import debug
from tilewright.machine.detect import describe_host
from tilewright.machine.machine import Machine
from tilewright.network.arguments import (
    INTEGER_PRECISIONS,
    check_gpu,
    check_narrow,
    check_precision,
    check_saved,
    check_source,
    how_of,
    is_onnx,
    is_saved,
    is_zoo,
    size_of,
    warn_without,
    with_fallback,
)
from tilewright.network.arguments import check as check_words
from tilewright.network.ranged import (
    by_size,
    check_ranges,
    load_ranges,
    plan_ranges,
    ranged_network,
    reader_of,
    refuse_with_ranges,
    shapes_of,
)
from tilewright.ops.dtypes import PRECISIONS
from tilewright.ops.tiles import ALGORITHMS
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.pipeline import check_options
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.gpu.libraries.table import check_mode
from tilewright.runtime.network_arrays import give_back
from tilewright.store import network_file, ranges_file
from tilewright.store.network_file import Saved
from tilewright.store.ranges_file import SavedRanges
from tilewright.targets import target_of
from tilewright.targets.chained import passes_at
from tilewright.targets.cpu.kernels import distinct
from tilewright.targets.cpu.site import CpuSite
from tilewright.targets.site import Asked, Site
from tilewright.targets.target import Report

FEW_RUNS = 3  # of whole networks, with libraries and without

if TYPE_CHECKING:
    from tilewright.fallback.network import Mixture
    from tilewright.runtime.fleet import Fleet


def compile(
    network: Any,
    /,
    target: str = 'cpu',
    *,
    tune: str = 'model',
    shapes: Mapping[str, Sequence[Any]] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
    example_inputs: Sequence[Any] | None = None,
    threads: int | None = None,
    trials: int | None = None,
    model: str = 'auto',
    prune: str | None = None,
    search: str | None = None,
    algorithm: str = 'auto',
    max_rel_err: float = DEFAULT_LIMIT,
    passes: Collection[str] | None = None,
    fuse: str | None = None,
    machine: Machine | None = None,
    save: str | os.PathLike[str] | None = None,
    device: str = '',
    fallback: str | None = None,
    check: bool | Check | None = None,
    libraries: str = 'none',
    precision: str | None = None,
    fleet: str | Fleet | None = None,
    accuracy: Any = None,
    samples: Any = None,
    memory: str | int | None = None,
    progress: Report | None = None,
) -> Network:
    """A network that is ready to run.

    network  the path of an .onnx or .tw file, the name of a network of the zoo (docs/zoo.md), the
             bytes or ModelProto of an ONNX model, a torch.nn.Module, or a Graph or Program of ours.
    tune     'model' times nothing and is the same every time; 'measure' times the `trials` best
             predicted kernels of each distinct group, where they will run: in the network.
    model    what ranks the kernels that are timed: 'auto', on GPUs a learned model for the kernels
             that it was seen to order better, else as 'analytical'; 'forest', 'gat', or the file of
             a learned model (docs/learned.md).
    prune    what orders and cuts GPU kernels before any is timed: 'time', 'bound' or 'pul'
             (docs/deepcuts.md); with tune='model', what chooses them.
    search   how GPU kernels that are timed are found: 'local', 'random', 'top', 'genetic' or
             'online'; on the CPU the best predicted are, 'top'.
    shapes   input -> shape, where the file leaves sizes open. A size may be a `range`: one network
             for all of its sizes comes out then, a `RangedNetwork` (docs/ranges.md).
    constants  input -> array, for inputs of an ONNX model whose values decide shapes; they are no
             inputs of the network then.
    example_inputs  tensors that a torch.nn.Module is traced with, instead of `shapes`.
    algorithm  of convolutions and products: 'direct'; 'winograd', 'fft' or 'strassen' wherever it
             applies within the error budget; 'auto': the fastest of all.
    max_rel_err  largest error of one kernel, as a share of its largest output.
    passes   names out of `PASSES`; None: those that `fuse` asks for.
    fuse     'none': every operator is a kernel of its own; 'elementwise': what is computed element
             by element joins the kernels around it; 'all': reducing operators share kernels, too,
             where that is predicted to be faster, or measured to be with tune='measure'. None:
             'all' on a CPU, else 'elementwise'.
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
    libraries  of vendors, on CUDA: cuDNN for convolutions, cuBLASLt for products, where they are
             installed. 'none': generated code alone. 'auto': each group by whichever is faster,
             timed on the device whatever `tune` says: the library's algorithms beside the kernel
             of ours that was chosen. 'only': the library wherever it can compute a group.
    precision  'fp32'; on GPUs also 'fp16' or 'bf16': what values are stored as between kernels,
             with sums in float32 (docs/gpu_half.md). Inputs and results stay float32. None: fp16
             for a model of fp16 where it can be computed in, else fp32. On a CPU with arithmetic
             of f16 'fp16' means the same; on others 'fp16' and 'bf16' are what weights
             are stored as where memory binds. Everywhere there is 'int8': quantised by `samples`,
             and on CPUs 'auto': the fastest mix within `accuracy` of int8 layers with those of
             fp32, or of fp16 where the machine computes in it; `network.mix` has the types
             (docs/precision.md).
    accuracy  'rel=0.01', 'cosine=0.999' or 'top1=0.98' of the results, against those of fp32. Where
             no mix reaches it, the closest is handed out with a warning.
    samples  inputs as they will occur, as `tilewright.quantize` takes them. None: random ones.
    fleet    with tune='measure', workers that time kernels on devices of this host's kind:
             'tcp://HOST:PORT', 'local:N' or a scheduler file (docs/fleet.md). Groups are timed
             alone there, not in the network.
    memory   '2GB', '512MiB' or bytes: the most that inputs, results and what lies between tasks may
             take together, on a GPU with what kernels work in. Values that wait long for a reader
             are computed again where that is needed, the cheapest first by the model.
    """
    limit = None if memory is None else size_of('memory', memory)
    check_words(target, tune, trials, machine, save)
    check_mode(libraries, target)
    check_precision(precision or 'fp32', target, accuracy=accuracy, samples=samples)
    wanted_check = wanted(check, tune)
    check_options(1, threads, algorithm, max_rel_err)
    chosen_passes = passes_of(passes, fuse, target)
    how = how_of(target, tune, model, search, algorithm, prune)
    asked = Asked(tune, trials, float(max_rel_err), how, libraries, fleet)
    if fleet is not None and tune != 'measure':
        raise InputError(f"fleet={fleet!r} times kernels; ask for it with tune='measure'")
    if target != 'cpu':
        check_gpu(target, threads=threads, machine=machine, fallback=fallback)
    if is_saved(network):
        check_saved(
            network, shapes=shapes, constants=constants, example_inputs=example_inputs,
            passes=passes, fuse=fuse, trials=trials, save=save, fallback=fallback,
            tune=tune != 'model', algorithm=algorithm != 'auto', prune=prune,
            max_rel_err=max_rel_err != DEFAULT_LIMIT, libraries=libraries != 'none',
            precision=precision not in (None, 'fp32'), memory=memory,
        )  # fmt: skip
        named = None if target == 'cpu' else target  # a file knows its own
        return _loaded(network, named, threads, device, wanted_check, progress)
    check_source(network, target, constants=constants, example_inputs=example_inputs, device=device)
    ranges = find_ranges(shapes if shapes is not None else shapes_of(network))
    if ranges is not None:
        reader = reader_of(network, partial(read, constants=constants), example_inputs)
        if target != 'cpu':
            refuse_with_ranges(' on a GPU', save=save, memory=memory)
            one = partial(
                compile, target=target, tune=tune, trials=trials, model=model, prune=prune,
                search=search, algorithm=algorithm, max_rel_err=max_rel_err, passes=passes,
                fuse=fuse, device=device, check=check, libraries=libraries, precision=precision,
                progress=progress,
            )  # fmt: skip
            return cast(Network, by_size(reader, ranges, one))
        refuse_with_ranges(
            fallback=fallback,
            libraries=libraries != 'none',
            precision=precision in INTEGER_PRECISIONS,
            memory=memory,
        )
        site = CpuSite.of(machine, threads)
        saved = plan_ranges(reader, ranges, site, asked, chosen_passes, progress)
        made = ranged_network(saved, site, progress)
        if wanted_check is not None:
            check_ranges(made, saved, wanted_check)
        if save is not None:
            ranges_file.write(save, made.plans.saved)
        give_back()
        return cast(Network, made)  # as far as callers go
    mix = None
    if precision in INTEGER_PRECISIONS:
        # They need onnx, which nothing else here does.
        from tilewright.network.integers import Pricing, all_in_integers, in_a_mix
        from tilewright.precision.reference import Floats

        cores = threads or describe_host().cores
        source = Floats.of(network, shapes, constants, example_inputs, cores)
        if precision == 'auto':
            again = partial(
                compile, tune=tune, threads=threads, trials=trials, algorithm=algorithm,
                max_rel_err=max_rel_err, passes=passes, fuse=fuse, machine=machine, check=False,
                progress=progress,
            )  # fmt: skip
            pricing = Pricing(CpuSite.of(machine, threads), asked, chosen_passes, again)
            network, precision, mix = in_a_mix(source, samples, accuracy, pricing)
        else:
            network, precision = all_in_integers(source, samples), 'fp32'
        shapes = constants = example_inputs = None
    if is_zoo(network):
        # No ONNX model, which a fallback would need: all of it is ours.
        sized = {name: tuple(shape) for name, shape in (shapes or {}).items()}
        made = reader_of(network, read)(sized) if sized else zoo.graph(network)
        network, fallback, shapes = made, None, None
    clock = _Clock()
    given, from_onnx = network, is_onnx(network)
    if fallback is None and not isinstance(network, Program):
        network = read(network, shapes, example_inputs, constants)  # before anything is opened
    site = target_of(target).site(machine, threads, device)
    computes = target != 'cpu' or site.machine.half
    if computes and isinstance(network, Graph) and holds_halves(network):
        network = given = widened(network)  # computed in 32 bits, and stored in 16 again
        precision, from_onnx = precision or 'fp16', False
        check_precision(precision, target)
    if fallback is not None:
        mixture = _mixture(network, shapes, fallback, site.threads)
        if mixture.theirs:
            return _mixed(
                network, mixture, asked, site, save, shapes, chosen_passes, wanted_check, progress
            )  # fmt: skip
        network, from_onnx = mixture.traced.graph, False
    site_passes = passes_at(site, asked, progress=progress)
    if precision not in (None, 'fp32'):
        dtype = PRECISIONS[precision]
        if target == 'cpu' and site.machine.computes(dtype):
            site_passes = with_half(site_passes, dtype, on_cpu=True)
        elif target == 'cpu':
            check_narrow(precision, site.machine)
            site_passes = with_narrow(site_passes, dtype, why_not_narrow)
        else:
            site_passes = with_half(site_passes, dtype)
        chosen_passes |= {HALF}
    try:
        program = site.ordered(prepare(network, shapes, chosen_passes, site.cost, site_passes))
    except UnsupportedError as error:
        raise (with_fallback(error) if from_onnx and target == 'cpu' else error) from None
    clock.say(f'{program.name}: {len(program.tasks)} tasks of {len(distinct(program))} kinds')
    chosen = site.choose(program, asked, progress)
    clock.say('scheduled')
    best = {digest: found[0] for digest, found in chosen.items()}
    if tune == 'measure':
        best = site.tune(program, chosen, asked, progress)
        clock.say('measured')
    own = best
    if libraries != 'none':
        best = site.select(program, best, asked, progress)
        clock.say('selected')
    if limit is not None:
        program = site.within(program, best, limit, asked.max_rel_err)
        clock.say(f'{len(program.tasks)} tasks within {limit} bytes')
    if algorithm in ALGORITHMS[2:]:
        schemas = {digest: choice.schedule.schema for digest, choice in best.items()}
        warn_without(algorithm, program, schemas, max_rel_err)
    made = site.bind(program, best, asked.max_rel_err, progress)
    if libraries == 'auto' and best != own:
        made, best = _faster(made, best, site.bind(program, own, asked.max_rel_err, progress), own)
    clock.say('ready')
    saved = Saved(
        program, best, site.machine, site.threads, asked.max_rel_err, algorithm, target, mix
    )  # fmt: skip
    made.mix = mix
    write = partial(network_file.write, saved=saved)
    if wanted_check is not None:
        source = Source(_kind(given), given, network, shapes, constants, example_inputs,
                        *([site.threads] if target == 'cpu' else []))  # fmt: skip
        redo = partial(prepare, source.read, None, cost=site.cost, program_passes=site_passes)
        names = [name for name in (*NODE_PASSES, *site_passes) if name in chosen_passes]
        subject = _subject(made, program, source, names, redo, asked.max_rel_err)
        files = Files(source.write, write, *([] if target == 'cpu' else [target]))
        check_network(subject, wanted_check, files, source.right)
        clock.say('checked')
        del source, subject, files, redo
    if save is not None:
        write(save)
    # The model's own weights are not needed any more.
    del network, given, program, saved, write
    give_back()
    return made


def _faster(made: Any, best: dict, other: Any, own: dict) -> tuple[Any, dict]:
    """Of a network with libraries and one without the faster, and its choices: a kernel that wins
    alone may lose beside others.
    """
    return (made, best) if _seconds_of(made) <= _seconds_of(other) else (other, own)


def _seconds_of(network: Any) -> float:
    """The time of a whole network on a GPU, on zeros."""
    network.write({v.name: np.zeros(v.shape, DTYPES[v.dtype]) for v in network.inputs})
    return min(network.time_again(FEW_RUNS, copies=FEW_RUNS))


def _mixed(
    network: Any,
    mixture: Mixture,
    asked: Asked,
    site: Site,
    save: str | os.PathLike[str] | None,
    shapes: Mapping[str, Sequence[int]] | None,
    passes: Collection[str] | None,
    wanted_check: Check | None,
    progress: Report | None,
) -> Network:
    """A network whose unsupported nodes ONNX Runtime runs."""
    if save is not None:
        raise InputError(
            f'{save} cannot be written: ONNX Runtime runs {mixture.theirs}, and a .tw file '
            f'has kernels of ours alone; leave it out'
        )

    def ours(graph: Graph, how: bool | Check = False) -> Network:
        return compile(
            graph, tune=asked.tune, threads=site.threads, trials=asked.trials,
            machine=site.machine, algorithm=asked.algorithm, max_rel_err=asked.max_rel_err,
            passes=passes, check=how, fleet=asked.fleet, progress=progress,
        )  # fmt: skip

    mixed = mixture.compiled(ours)
    if wanted_check is not None:
        from tilewright.check.mixed import check_mixed

        source = Source('onnx', network, mixture.traced.graph, shapes, threads=mixture.threads)
        check_mixed(mixed, mixture, source, wanted_check, asked.max_rel_err, ours)
    # As far as callers go, it is a Network.
    return cast(Network, mixed)


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
    return _loaded(path_of('path', path), None, threads, device, wanted(check, 'model'), progress)


def _loaded(
    path: str | os.PathLike[str],
    target: str | None,
    threads: int | None,
    device: str,
    wanted_check: Check | None,
    progress: Report | None,
) -> Network:
    """A `target` that is given has to be that of the file."""
    saved = ranges_file.read_any(path)
    if saved.target != 'cpu':
        check_gpu(saved.target, threads=threads)
    if target is not None and target != saved.target:
        raise InputError(
            f'{path} was compiled for target {saved.target!r}, not for {target!r}; compile the '
            f'model again with it'
        )
    if isinstance(saved, SavedRanges):
        return cast(Network, load_ranges(path, saved, threads, wanted_check, progress))
    site = target_of(saved.target).site_for(path, saved, threads, device)
    best = site.adopt(path, saved, progress)
    made = site.bind(saved.program, best, saved.max_rel_err, progress)
    made.mix = saved.mix
    if wanted_check is not None:
        files = Files(None, lambda to: shutil.copyfile(path, to), saved.target)
        check_network(Subject(made, site.ordered(program_of(path))), wanted_check, files)
    del saved, best  # what the file held is packed
    give_back()
    return made


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
    program_passes: ProgramPasses = PROGRAM_PASSES,
) -> Program:
    """[model] -> [Program], with every pass that was asked for."""
    wanted = passes_of(passes)
    network = model if isinstance(model, Program) else read(model, shapes)
    return apply_passes(network, wanted, cost, program_passes)


def read(
    model: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    example_inputs: Sequence[Any] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
) -> Graph:
    """[file, bytes, ModelProto, module] -> [Graph]"""
    if isinstance(model, Graph):
        return model
    if type(model).__module__.partition('.')[0] == 'torch' or is_module(model):
        from tilewright.importers.torch import import_torch

        return import_torch(model, shapes, example_inputs)
    if is_onnx(model):
        from tilewright.importers.onnx import import_onnx

        return import_onnx(model, shapes, constants)
    raise ModelError(
        f'{type(model).__name__} is not a model; give the path of an .onnx or .tw file, an ONNX '
        f'ModelProto or a torch.nn.Module'
    )


def is_module(model: Any) -> bool:
    """Whether it is a torch.nn.Module, without importing torch."""
    return any(kind.__module__.startswith('torch.nn') for kind in type(model).__mro__)


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
    names: Sequence[str],
    redo: Callable[[Collection[str]], Program],
    max_rel_err: float,
) -> Subject:
    """What a check is told of a network and of the passes that made its program."""
    if isinstance(source.read, Program):
        names = [name for name in names if name not in NODE_PASSES]
    return Subject(
        network, program, source.plain, tuple(names), redo, max_rel_err, source.inside
    )  # fmt: skip
