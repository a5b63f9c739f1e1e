"""Chains of quantised operators by their numbers: drawn, compiled, compared, made small.

Goes in: 'quantised:SEED:NUMBER'. Comes out: what a worker tells the runner. A number decides
everything: the chain, and each `Way` in which it is compiled.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from tilewright import knobs
from tilewright.machine.isa import host_isas

from . import check, targets
from .graphs import Net, save
from .quantised import (
    LIMITS,
    Add,
    Chain,
    Concat,
    Conv,
    Elementwise,
    Format,
    Pool,
    Product,
    Source,
    Step,
    Transpose,
    UnfitError,
    Weights,
    Writer,
)

PREFIX = 'quantised'
# Algorithms for floats that are not exact have larger errors than this.
LEAST_ERROR = 1e-12
MOST_STEPS = 7
ATTEMPTS = 20
CHANNELS = (1, 2, 3, 4, 5, 8, 12, 16, 17, 24, 31, 32, 33, 40)
# What a kernel has to be chosen for: any image, one of small numbers behind a ReLU (pairs of
# products in 16 bits), one of the largest number alone (those overflow).
NUMBERS = ('any', 'any', 'ends', 'small', 'few large', 'largest', 'least')


@dataclass(frozen=True, slots=True)
class Way:
    """How a chain is compiled and run.

    schedules  'model': those that the model chooses, of an algorithm, an instruction set and
               threads; 'drawn': any legal ones; 'reference': each task by numpy, in planned memory
    """

    schedules: str
    passes: str = 'all'
    fuse: str = 'all'
    algorithm: str = 'auto'
    threads: int = targets.THREADS
    isa: str = ''

    def __str__(self) -> str:
        if self.schedules != 'model':
            return f'{self.schedules} schedules'
        return f'{self.algorithm}, fuse {self.fuse}, {self.threads} threads, {self.isa}'


def ways_of(seed: int, number: int) -> list[Way]:
    """The ways in which a chain is compiled: by the reference always, and one that takes longer."""
    rng = Random(f'{seed}:{number}')
    passes = targets.passes_text(rng.choice(targets.VARIANTS))
    others = [Way('reference', passes)]
    if number % 4 == 3:
        return [*others, Way('drawn', 'all' if number % 8 == 3 else passes)]
    algorithm = rng.choice(('auto', 'direct', 'winograd', 'winograd'))
    fuse = rng.choice(('all', 'all', 'elementwise', 'none'))
    isa = rng.choice((*host_isas()[:1] * 2, *host_isas()))
    return [*others, Way('model', '', fuse, algorithm, rng.choice((1, 2)), isa)]


def run(net: Net, way: Way, schemas: Counter[str] | None = None) -> dict[str, np.ndarray]:
    """Outputs by name; `schemas` counts those of kernels."""
    if way.schedules == 'reference':
        return targets.run(net, 'numpy', targets.passes_named(way.passes))
    if way.schedules == 'drawn':
        return targets.run(net, 'cpu', targets.passes_named(way.passes), schemas=schemas)
    with knobs.held('isa', way.isa), warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'no convolution of .* can be computed by')
        return targets.run(
            net, 'cpu', None, 'searched', schemas, fuse=way.fuse, algorithm=way.algorithm,
            threads=way.threads, max_rel_err=LEAST_ERROR,
        )  # fmt: skip


def difference(net: Net, found: dict[str, np.ndarray]) -> str:
    """'' where all outputs are equal."""
    for name in net.outputs:
        got, want = found[name], net.values[name]
        if (got.dtype, got.shape) != (want.dtype, want.shape):
            return f'{name} is {got.dtype}{got.shape}, not {want.dtype}{want.shape}'
        wrong = np.argwhere(got != want)
        if len(wrong):
            at = tuple(map(int, wrong[0]))
            return (
                f'{len(wrong)} of {want.size} elements of {name} are wrong, the first at '
                f'{list(at)}: {got[at]} instead of {want[at]}'
            )
    return ''


def tried(net: Net, way: Way, schemas: Counter[str] | None = None) -> tuple[str, str]:
    """('' or kind of failure, message)."""
    try:
        message = difference(net, run(net, way, schemas))
    except Exception as error:
        return 'error', f'{type(error).__name__}: {error}'
    return 'wrong' * bool(message), message


def shrunk(chain: Chain, fails: Callable[[Net], bool], seconds: float) -> Chain:
    """The fewest outputs and steps with which it still fails, then the smallest source."""
    end = time.monotonic() + seconds
    again = True
    while again:
        again = False
        for smaller in _smaller(chain):
            if time.monotonic() > end:
                return chain
            with contextlib.suppress(UnfitError):
                if fails(smaller.net()):
                    chain, again = smaller, True
                    break
    return chain


def _smaller(chain: Chain) -> Iterator[Chain]:
    if chain.also or chain.real:
        yield replace(chain, also=(), real=False)
    for n in range(len(chain.steps), 0, -1):
        if len(chain.steps) > 1:
            yield replace(chain, steps=(*chain.steps[: n - 1], *chain.steps[n:]))
    for axis, size in enumerate(chain.source.shape):
        for less in sorted({1, size // 2, size - 1} - {0, size}):
            shape = (*chain.source.shape[:axis], less, *chain.source.shape[axis + 1 :])
            yield replace(chain, source=replace(chain.source, shape=shape))
    for n, step in enumerate(chain.steps):
        if isinstance(step, Conv):
            for simple in (
                replace(step, residual=''), replace(step, activation=''),
                replace(step, channels=step.channels // 2 or step.channels),
                replace(step, weights=replace(step.weights, bias='')),
                replace(step, weights=replace(step.weights, exponents=(-7,))),
            ):  # fmt: skip
                if simple != step:
                    yield replace(chain, steps=(*chain.steps[:n], simple, *chain.steps[n + 1 :]))


def examined(
    name: str, chain: Chain, way: Way, folder: Path | None, seconds: float
) -> check.Finding:
    """[a chain that fails] -> [Finding], made small and saved."""
    kind, message = tried(chain.net(), way)
    small = shrunk(chain, lambda net: tried(net, way)[0] == kind, seconds)
    net = small.net()
    message = tried(net, way)[1] or message
    file = ''
    if folder is not None:
        path = folder / f'{name.replace(":", "-")}.onnx'
        save(net, path)
        file = str(path)
    steps = ' '.join(type(step).__name__ for step in small.steps)
    sign = f'{way.schedules}: {kind} {steps}'
    return check.Finding(
        name, 'cpu', way.passes or 'all', str(way), kind, message, sign, len(net.nodes),
        f'{small}\n{net}', file,
    )  # fmt: skip


def named(name: str) -> tuple[Chain, list[Way]]:
    """The chain of 'quantised:SEED:NUMBER', and how it is compiled."""
    _, seed, number = name.split(':')
    return drawn(int(seed), int(number)), ways_of(int(seed), int(number))


def check_all(name: str, say: Callable[[dict], object], folder: Path | None, seconds: float) -> Net:
    """Run a chain in its ways; `say` is told before each run and after each."""
    chain, ways = named(name)
    net = chain.net()
    for way in ways:
        say({'begin': [name, way.schedules, way.passes, str(way)]})
        finding, schemas = None, Counter[str]()
        if tried(net, way, schemas)[0]:
            finding = examined(name, chain, way, folder, seconds).to_json()
        say({
            'done': [name, way.schedules, way.passes], 'unstable': 0, 'finding': finding,
            'schemas': dict(schemas),
        })  # fmt: skip
    return net


def replay(name: str, folder: Path, seconds: float) -> int:
    """Print a chain, and what is right and wrong about it."""
    chain, ways = named(name)
    print(chain)
    failed = False
    for way in ways:
        kind, message = tried(chain.net(), way)
        print(f'{way}, passes {way.passes or "all"}: {kind or "right"} {message}')
        if kind and seconds:
            found = examined(name, chain, way, folder, seconds)
            print(found.shown, found.message, found.file, sep='\n')
        failed |= bool(kind)
    return int(failed)


def drawn(seed: int, number: int) -> Chain:
    """Chain `number` of a seed; whoever draws it."""
    rng = Random(f'{seed}:{number}')
    dtype = rng.choice(tuple(LIMITS))
    shape = (
        rng.choice((1, 1, 1, 2, 3)), rng.choice((*CHANNELS, 64)),
        rng.randint(1, 15), rng.randint(1, 15),
    )  # fmt: skip
    source = Source(
        shape, rng.choice(NUMBERS), _format(rng, dtype), rng.randint(-6, -1), rng.random() < 0.3,
        rng.getrandbits(31),
    )  # fmt: skip
    net, steps = Writer(), []
    source.write(net)
    for _ in range(rng.randint(2, MOST_STEPS)):
        step = _written(net, lambda: _step(rng, dtype))
        steps += [step] if step else []
    if not steps or rng.random() < 0.25:
        step = _written(net, lambda: _product(rng, dtype))
        steps += [step] if step else []
    # An image that is an output as well keeps its layout, which leaves fewer kernels to choose.
    several = rng.random() < 0.3
    also = tuple(n for n in range(len(steps) - 1) if several and rng.random() < 0.3)
    return Chain(source, tuple(steps), also, rng.random() < 0.5)


def _written(net: Writer, draw: Callable[[], Step]) -> Step | None:
    """The first of a few that fits the images so far."""
    for _ in range(ATTEMPTS):
        step = draw()
        with contextlib.suppress(UnfitError):
            step.write(net)
            return step
    return None


def _format(rng: Random, dtype: str, rectified: bool = False) -> Format:
    """Mostly of one type; behind a ReLU mostly with the least number for zero."""
    if rng.random() < 0.2:
        dtype = rng.choice(tuple(LIMITS))
    least, largest = LIMITS[dtype]
    zero = rng.choice((least, largest, (least + largest + 1) // 2, rng.randint(least, largest)))
    if rectified and rng.random() < 0.7:
        zero = least
    return Format(dtype, zero, rng.choice((60, 120, 250, 1000)))


def _weights(rng: Random, numbers: Sequence[str] = ('any', 'near zero', 'near zero')) -> Weights:
    zeros = (0, 0, 0, 0, rng.randint(-128, 127))
    dtype, zero = ('u8', 128) if rng.random() < 0.15 else ('i8', rng.choice(zeros))
    kind = rng.choice((*numbers, 'ends' if rng.random() < 0.3 else 'any'))
    each = rng.random() < 0.6
    exponents = tuple(rng.randint(-9, -5) for _ in range(rng.randint(2, 9) if each else 1))
    bias = rng.choice(('', 'bias', 'bias', 'bias with zero point'))
    return Weights(
        kind, dtype, zero, exponents, rng.random() < 0.5, bias, rng.getrandbits(31)
    )  # fmt: skip


def _conv(rng: Random, dtype: str) -> Conv:
    window = rng.choice(((1, 1), (3, 3), (3, 3), (rng.randint(1, 4), rng.randint(1, 4))))
    strides = rng.choice(((1, 1), (1, 1), (2, 2), (rng.randint(1, 2), rng.randint(1, 2))))
    rows, columns = window[0] // 2, window[1] // 2
    pads = rows, columns, rows, columns
    if rng.random() < 0.2:
        pads = rng.randint(0, 2), rng.randint(0, 2), rng.randint(0, 2), rng.randint(0, 2)
    residual, channels = '', rng.choice(CHANNELS)
    if rng.random() < 0.2:  # as large as the image, which can be added then
        residual, channels = rng.choice(('left', 'right')), 0
        window, strides = rng.choice(((1, 1), (3, 3))), (1, 1)
        pads = (1, 1, 1, 1) if window == (3, 3) else (0, 0, 0, 0)
    groups = rng.choice((1, 1, 1, 1, 0, 0, 2, 3))
    if groups == 0:
        channels = 0
    activation = rng.choice(('', 'Relu', 'Relu', 'Relu6', 'LeakyRelu'))
    stored = _format(rng, dtype, activation in ('Relu', 'Relu6'))
    return Conv(
        channels, groups, window, strides, pads, _weights(rng), residual, activation,
        rng.getrandbits(8), stored,
    )  # fmt: skip


def _product(rng: Random, dtype: str) -> Product:
    weights = replace(_weights(rng), bias='')
    return Product(rng.choice((1, 3, 10, 17)), weights, _format(rng, dtype))


def _step(rng: Random, dtype: str) -> Step:
    stored, pick = _format(rng, dtype), rng.getrandbits(8)
    kind = rng.choices(
        ('conv', 'add', 'max', 'mean', 'concat', 'elementwise', 'transpose'), (7, 1, 1, 1, 1, 2, 1)
    )[0]
    if kind == 'conv':
        return _conv(rng, dtype)
    if kind == 'add':
        activation = rng.choice(('', 'Relu'))
        return Add(activation, pick, _format(rng, dtype, bool(activation)))
    if kind == 'max':
        same = rng.random() < 0.7
        return Pool(
            'MaxPool', rng.choice((2, 3)), rng.choice((1, 2)), None if same else stored
        )  # fmt: skip
    if kind == 'mean':
        return Pool('AveragePool', 2, 2, stored)
    if kind == 'concat':
        return Concat(pick, stored)
    if kind == 'elementwise':
        op = rng.choice(('Relu', 'Mul', 'LeakyRelu'))
        return Elementwise(op, _format(rng, dtype, op == 'Relu'))
    return Transpose()
