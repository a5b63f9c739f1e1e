"""`tilewright run`: a network on arrays from a file, or on random ones, and how long it takes."""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilewright.check.check import Check
from tilewright.check.failure import write_arrays
from tilewright.cli.check import check, check_options
from tilewright.cli.compile import model_of, network_json, shapes_for
from tilewright.cli.optimize import check_early
from tilewright.cli.output import Bar, Output, check_writable
from tilewright.errors import CheckError, InputError
from tilewright.graph.graph import DTYPES
from tilewright.graph.ranges import find_ranges
from tilewright.network.compile import compile as compile_network
from tilewright.precision.samples import read_arrays
from tilewright.runtime.cpu.network import Network
from tilewright.targets.cpu.kernels import Report


def run(
    model: Path,
    out: Output,
    *,
    input_file: Path | None,
    output_file: Path | None,
    repeat: int,
    profile: bool,
    trace: Path | None,
    shapes: Sequence[str],
    threads: int | None,
    seed: int | None,
    fallback: str | None = None,
    target: str = 'cpu',
    device: str = '',
    check_file: Path | None = None,
    tolerance: float | None = None,
    fuse: str | None = None,
    libraries: str = 'none',
    precision: str | None = None,
    samples: Path | None = None,
) -> int:
    """Load or compile a model, run it, write its results; comes out: the exit code."""
    check_early(None, threads, seed=seed)
    check_options(check_file, tolerance)
    if repeat < 1:
        raise InputError(f'--repeat {repeat}; ask for at least one call')
    for option, path in (('--output', output_file), ('--trace', trace)):
        if path is not None:
            check_writable(path, option)
    sizes = shapes_for(str(model), shapes)
    known = model_of(str(model), seed, target, find_ranges(sizes) is not None)
    if input_file is None and seed is None:
        seed = secrets.randbits(32)
    given = None if input_file is None else read_arrays(input_file)
    with Bar(1) as bar:
        bar.begin(model.name)

        def made(how: Check | bool, progress: Report | None = None) -> Network:
            return compile_network(
                known, target, shapes=sizes, threads=threads,
                fallback=fallback, device=device, fuse=fuse, check=how, libraries=libraries,
                precision=precision, samples=samples, progress=progress,
            )  # fmt: skip

        network = made(False, bar.report)
        bar.finish()
    arrays = random_inputs(network, seed) if given is None else named(network, given)
    results = network.run(arrays)
    times = [1e3 * s for s in network.time(arrays, repeat)]
    out.say(f'{network.name}: {statistics.median(times):.3f} ms, median of {repeat} calls')
    for name, array in results.items():
        out.say(f'{name}: {array.dtype}{list(array.shape)}')
    if output_file is not None:
        write_arrays(output_file, results, '--output ')
        out.say(f'wrote {output_file}')
    data = {
        'model': str(model),
        'seed': seed,
        'network': network_json(network),
        'samples_ms': times,
        'outputs': {name: [str(a.dtype), list(a.shape)] for name, a in results.items()},
    }
    wrong = None
    if check_file is not None:
        checked, right = check(
            check_file,
            network.for_arrays(arrays).inputs,
            arrays,
            results,
            tolerance,
            network.threads,
        )
        out.say(str(checked))
        if not checked.ok:
            drawn = '' if input_file is not None else f' (random inputs of --seed {seed})'
            wrong = _wrong(made, Check(0, arrays, right, tolerance), f'{checked.sentence}{drawn}')
            checked = replace(checked, grown=wrong is None)
        data['check'] = checked.to_json()
    if profile or trace is not None:
        found = network.profile(*(arrays[v.name] for v in network.inputs), calls=repeat)
        if profile:
            out.say(str(found))
        if trace is not None:
            found.write_trace(trace)
            out.say(f'wrote {trace}')
        data['profile'] = found.to_json()
    out.write(data)
    if wrong is not None:
        raise CheckError(wrong)
    return 0


def _wrong(made: Callable[[Check], object], check: Check, said: str) -> str | None:
    """What is wrong, and why: compiled once more, which finds kernels ready, to name the cause.

    None: every part is right, and the network magnifies rounding.
    """
    try:
        made(check)
    except CheckError as error:
        return f'{said}; {error}'
    return None


def random_inputs(network: Network, seed: int | None) -> dict[str, np.ndarray]:
    """Inputs of order one; zeros where they hold no fractions."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for value in network.inputs:
        kind = np.dtype(DTYPES[value.dtype])
        made = rng.standard_normal(value.shape) if kind.kind == 'f' else np.zeros(value.shape)
        arrays[value.name] = made.astype(kind)
    return arrays


def named(network: Network, given: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Arrays by the names of inputs; a single one is the only input, whatever its name."""
    names = [value.name for value in network.inputs]
    if len(given) == len(names) == 1 and not given.keys() & set(names):
        return {names[0]: next(iter(given.values()))}
    return given
