"""`tilewright compile`: a model file becomes a .tw file, ready to be loaded and run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright import zoo
from tilewright.check.check import Checked, wanted
from tilewright.cli.optimize import check_early
from tilewright.cli.output import Bar, Output, check_writable
from tilewright.errors import InputError
from tilewright.graph.passes import default_fusion
from tilewright.graph.ranges import find_ranges
from tilewright.model.gpu.estimates import TIME
from tilewright.network.compile import compile as compile_network
from tilewright.precision.mix import mix_text
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.cpu.ranged import RangedNetwork
from tilewright.runtime.gpu.network import GpuNetwork


def run(
    model: Path,
    out: Output,
    *,
    output: Path | None,
    tune: str,
    trials: int | None,
    shapes: Sequence[str],
    algorithm: str,
    max_rel_err: float,
    threads: int | None,
    seed: int | None,
    fallback: str | None = None,
    target: str = 'cpu',
    device: str = '',
    check: bool | None = None,
    fuse: str | None = None,
    libraries: str = 'none',
    precision: str | None = None,
    prune: str | None = None,
    fleet: str | None = None,
    accuracy: str | None = None,
    samples: Path | None = None,
) -> int:
    """Compile a model, write the .tw file; comes out: the exit code."""
    check_early(None, threads, algorithm=algorithm, max_rel_err=max_rel_err, seed=seed)
    sizes = shapes_for(str(model), shapes)
    found = model_of(str(model), seed, target, find_ranges(sizes) is not None)
    path = output if output is not None else model.with_suffix('.tw')
    if path.suffix != '.tw':
        raise InputError(f'--output {path} does not end in .tw')
    check_writable(path, '--output')
    begin = time.perf_counter()
    checked: list[Checked] = []
    asked = wanted(check, tune)
    if asked is not None:
        asked = replace(asked, seed=seed or 0, report=checked.append)
    with Bar(1) as bar:
        bar.begin(model.name)

        def made(**more: Any) -> Network:
            return compile_network(
                found, target, tune=tune, trials=trials, shapes=sizes,
                threads=threads, algorithm=algorithm, max_rel_err=max_rel_err, device=device,
                fuse=fuse, libraries=libraries, prune=prune, progress=bar.report,
                precision=precision, accuracy=accuracy, samples=samples, fleet=fleet,
                check=False if asked is None else asked, **more,
            )  # fmt: skip

        network = made(fallback=fallback) if fallback else made(save=path)
        theirs = getattr(network, 'theirs', ())
        if fallback and not theirs:  # all of it is ours, so that it can be written
            asked = None
            network = made(save=path)
        bar.finish()
    seconds = time.perf_counter() - begin
    out.say(summary(network))
    if network.mix is not None:
        out.say(mix_text(network.mix))
    for verdict in checked:
        out.say(f'checked: {verdict}')
    refused = (
        f'{path} is not written: {fallback} runs {len(theirs)} nodes, which no .tw file can hold; '
        f'run {model} with --fallback {fallback}, which finds its kernels ready'
    )
    if theirs and output is None:
        out.warn(refused)
    elif not theirs:
        out.say(f'wrote {path} ({path.stat().st_size / 2**20:.1f} MiB) in {seconds:.1f} s')
    out.write(
        {
            'model': str(model),
            'output': None if theirs else str(path),
            'target': target,
            'fallback': [list(node) for node in theirs],
            'tune': tune,
            'algorithm': algorithm,
            'fuse': fuse or default_fusion(target),
            'libraries': libraries,
            'precision': precision,
            'prune': prune or TIME,
            'seconds': seconds,
            'seed': seed,
            'network': network_json(network),
            'check': checked[0].to_json() if checked else None,
            'mix': network.mix,
        }
    )
    if theirs and output is not None:
        raise InputError(refused)
    return 0 if network.mix is None or network.mix['reached'] else 1


def model_of(model: str, seed: int | None = None, target: str = 'cpu', ranged: bool = False) -> Any:
    """A model by the name that a command line gives: a file, or a network of the zoo.

    The latter is no ONNX model on a GPU, whose machine may have no package for it, nor where its
    sizes are to vary.
    """
    if model in zoo.KNOWN and not Path(model).exists():
        if ranged:
            return model
        if target != 'cpu':
            return zoo.graph(model, seed or 0)
        return zoo.onnx_model(model, seed or 0)
    if not model.endswith(('.onnx', '.tw')):
        raise InputError(
            f'{model!r} is no .onnx or .tw file and no network of the zoo: {", ".join(zoo.KNOWN)}'
        )
    return Path(model)


def shapes_for(model: str, texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """What --shape says of a model; a .tw file leaves no sizes open."""
    if model.endswith('.tw'):
        refuse_for_saved(model, {f'--shape {texts[0]}' if texts else '--shape': texts})
    return read_shapes(texts)


def refuse_for_saved(model: str, given: Mapping[str, object]) -> None:
    """Refuse options, by name, that a .tw file has decided already."""
    for option, value in given.items():
        if value:
            raise InputError(
                f'{option} means nothing with {model}, which is compiled already; leave it out, or '
                f'name the model that it was made from'
            )


def read_shapes(texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """['image=1:8,3,64:640:32'] -> {'image': (range(1, 9), 3, range(64, 641, 32))}"""
    shapes = {}
    for text in texts:
        name, equals, sizes = text.rpartition('=')
        try:
            shape = tuple(_size(size) for size in sizes.split(',') if size)
        except ValueError:
            shape = ()
        if not equals or not name or (sizes and not shape):
            raise InputError(
                f'--shape {text!r} cannot be read; write NAME=1,3,224,224, a range as 64:640 or '
                f'64:640:32'
            )
        shapes[name] = shape
    return shapes


def _size(text: str) -> int | range:
    """'64:640:32': the last size belongs to the range."""
    first, *more = map(int, text.split(':'))
    if not more:
        return first
    last, step = more if len(more) == 2 else (*more, 1)
    return range(first, last + 1, step)


def summary(network: Network) -> str:
    """What a network is, in a few lines."""
    if isinstance(network, GpuNetwork):
        predicted = sum(task.predicted_s for task in network.gpu_tasks)
        return '\n'.join(
            [
                repr(network).strip('<>'),
                f'{len(network.gpu_tasks)} tasks, {len(network.calls)} kernels, predicted one '
                f'after the other {1e3 * predicted:.3f} ms',
                f'weights {network.weight_bytes / 2**20:.1f} MiB, values and scratch '
                f'{network.arena_bytes / 2**20:.1f} MiB',
            ]
        )
    predicted = sum(network.kernels[task.digest].predicted_s for task in network.tasks)
    return '\n'.join(
        [
            repr(network).strip('<>'),
            f'{len(network.tasks)} tasks, {len(network.kernels)} kernels, predicted '
            f'{1e3 * predicted:.3f} ms',
            f'weights {network.weight_bytes / 2**20:.1f} MiB, values '
            f'{network.arena_bytes / 2**20:.1f} MiB, scratch '
            f'{network.scratch_bytes / 2**20:.1f} MiB',
        ]
    )


def network_json(network: Network) -> dict:
    """A network for JSON: its signature, its memory, its tasks."""
    return {
        'name': network.name,
        'threads': network.threads,
        **_ranges_json(network),
        'inputs': [[v.name, list(v.shape), v.dtype] for v in network.inputs],
        'outputs': [[v.name, list(v.shape or ()), v.dtype] for v in network.outputs],
        'weight_bytes': network.weight_bytes,
        'arena_bytes': network.arena_bytes,
        'scratch_bytes': network.scratch_bytes,
        'tasks': _tasks_json(network),
    }


def _ranges_json(network: object) -> dict:
    """Ranges and what is certified of them; the rest is said of the largest size."""
    if not isinstance(network, RangedNetwork):
        return {}
    return {
        'ranges': network.ranges.to_json(), 'certificate': network.certificate.to_json()
    }  # fmt: skip


def _tasks_json(network: Network) -> list[dict]:
    if isinstance(network, GpuNetwork):
        found = [(task, task) for task in network.gpu_tasks]
    else:
        found = [(task, network.kernels[task.digest]) for task in network.tasks]
    return [
        {
            'name': task.name, 'origin': list(task.origin), 'label': kernel.group.label,
            'schedule': kernel.schedule.to_json(), 'predicted_ms': 1e3 * kernel.predicted_s,
            'bound_ms': 1e3 * kernel.bound_s,
        }
        for task, kernel in found
    ]  # fmt: skip
