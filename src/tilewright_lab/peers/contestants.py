"""The table of contestants, and what each is given and gives: layers or networks, on CPU or GPU.

A contestant is a row of `CONTESTANTS`: a name, what it can run, and a function by its name,
'module:function', which is imported where the contestant runs:

    work      device   the function                            where
    layer     cpu      () -> (settings, Job -> Variant) each   a process of its own, process.py
    network   cpu      the same with NetworkJob and -Variant   the same, network_process.py
    layer     gpu      (session, ours) -> [Entrant]            the process of compare/gpu_duel.py
    network   gpu      (subject, rivals) -> [Entrant], [row]   this one, compare/gpu_networks.py

A contestant on a CPU yields several variants: its documented settings that may matter. All are
timed, and the fastest is kept. `--against`, its help and its errors follow from this table.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.ops.convolution import Convolution
from tilewright.ops.group import Group
from tilewright.ops.specs import Layer
from tilewright.runtime import verify

Arrays = dict[str, np.ndarray]
OURS = 'tilewright'
ORACLE = 'oracle'
# Tells a wrong answer from one that was rounded in fp16 or bf16 on a long way.
REDUCED_TOLERANCE = 0.1


def layer_arrays(group: Group, seed: int) -> Arrays:
    """Random data of a layer as callers give it."""
    arrays = verify.random_arrays(group, seed)
    for name, source in group.given:
        (arrays[name],) = verify.random_arrays(source, seed).values()
    return arrays


@dataclass(frozen=True, slots=True)
class Job:
    """One layer to prepare: the problem, its data, the output buffer, and the threads to use.

    Our own kernel also needs its `library`, and is told its `algorithm`: the schedule's schema.
    A peer that tunes has `options`, and tells `progress` (what, done, of how many).
    """

    conv: Convolution
    group: Group
    arrays: dict[str, np.ndarray]
    out: np.ndarray
    threads: int
    library: str | None = None
    algorithm: str = ''
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: Callable[[str, int, int], object] = lambda what, done, total: None

    @classmethod
    def of(cls, conv: Convolution, seed: int, threads: int, **more: Any) -> Job:
        """A job on random data; `more`: library, algorithm, options, progress."""
        group = Layer(conv).group
        arrays = layer_arrays(group, seed)
        out = verify.guarded_empty(group.output.shape)
        return cls(conv, group, arrays, out, threads, **more)

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        return {t.name: self.arrays[t.name] for t in self.group.with_role('input')}

    @property
    def constants(self) -> dict[str, np.ndarray]:
        return {t.name: self.arrays[t.name] for t in self.group.with_role('constant')}


@dataclass(frozen=True, slots=True)
class Variant:
    """A contestant with one choice of settings, ready to be called.

    `run` computes the layer once. `result` gives the NCHW answer of the last run, `algorithm` what
    the library says it does. Libraries hold bare pointers into the arrays of `job`. `tuning_s` is
    how long a search by measuring took, where there was one.
    """

    job: Job
    run: Callable[[], object]
    result: Callable[[], np.ndarray]
    algorithm: Callable[[], str]
    tuning_s: float | None = None


@dataclass(frozen=True, slots=True)
class NetworkJob:
    """One network to prepare.

    model    the ONNX file
    zoo      the arguments of `zoo.torch_module`, where the network is one of the zoo
    outputs  buffers to write results into, by name; those of the oracle are empty
    options  what our own contestant is told; `progress` is told what is done
    """

    model: Path
    zoo: Mapping[str, Any] | None
    inputs: Arrays
    outputs: Arrays
    threads: int
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: Callable[[str, int, int], object] = lambda what, done, total: None


@dataclass(frozen=True, slots=True)
class NetworkVariant:
    """A contestant with one choice of settings. `run` computes the network once, `result` gives
    the answers of the last run, `algorithm` what the library says it does."""

    job: NetworkJob
    run: Callable[[], object]
    result: Callable[[], Arrays]
    algorithm: Callable[[], str] = lambda: ''


@dataclass(slots=True)
class Entrant:
    """One contestant, ready: `time(repeats)` in seconds for each, `answer()` in NCHW.

    keep   what a captured graph reads and writes has to live as long as the graph
    """

    name: str
    time: Callable[[int], list[float]]
    answer: Callable[[], np.ndarray]
    settings: dict[str, Any] = field(default_factory=dict)
    tuning_s: float | None = None
    close: Callable[[], object] = lambda: None
    turns: list[list[float]] = field(default_factory=list)
    verdict: dict = field(default_factory=dict)
    keep: object = None

    def to_json(self) -> dict:
        samples = [s for turn in self.turns for s in turn]
        return {
            'name': self.name,
            'settings': self.settings,
            'tuning_s': self.tuning_s,
            'median_us': 1e6 * statistics.median(samples) if samples else None,
            'samples_us': [[1e6 * s for s in turn] for turn in self.turns],
            **self.verdict,
        }


Variants = Iterator[tuple[dict[str, Any], Callable[[Job], Variant]]]
NetworkVariants = Iterator[tuple[dict[str, Any], Callable[[NetworkJob], NetworkVariant]]]


@dataclass(frozen=True, slots=True)
class Registration:
    """A row of the table: one contestant on one kind of work.

    function   'module:function', as the module's docstring says
    packages   what it needs, and `extra` the extra of this package that brings it
    peer       False for ours, and for the oracle that answers are checked against
    tuned      it searches by measuring, for minutes: it takes part only when asked for by name
    reads      whether it takes .onnx files; others run networks of the zoo alone
    tools      further packages it needs, of which only programs are run: they are not imported
    reduced    it computes in less than float32: its answers may be further off, it takes part only
               when asked for by name, and its time is not compared with ours in float32
    """

    function: str
    packages: tuple[str, ...] = ()
    extra: str = 'bench'
    peer: bool = True
    tuned: bool = False
    reads: bool = False
    tools: tuple[str, ...] = ()
    reduced: bool = False

    @property
    def tolerance(self) -> float | None:
        """How far its answers on networks may be off; None: as far as anyone's in float32."""
        return REDUCED_TOLERANCE if self.reduced else None

    @property
    def usual(self) -> bool:
        """Whether it takes part without being asked for."""
        return not (self.tuned or self.reduced)

    def load(self) -> Callable[..., Any]:
        return imported(self.function)


def imported(function: str) -> Callable[..., Any]:
    """'module:function' -> the function."""
    module, _, name = function.partition(':')
    return getattr(import_module(module), name)


Place = tuple[str, str]  # (work, device)
PLACES: dict[Place, str] = {
    ('layer', 'cpu'): 'layers', ('network', 'cpu'): 'networks', ('layer', 'gpu'): 'a GPU',
    ('network', 'gpu'): 'networks of a GPU',
}  # fmt: skip
_LAYERS = 'tilewright_lab.peers.layers'
_NETWORKS = 'tilewright_lab.peers.networks'
_MOBILE = 'tilewright_lab.peers.mobile'
_GPU_LAYERS = 'tilewright_lab.peers.gpu_layers'
_GPU_NETWORKS = 'tilewright_lab.peers.gpu_networks'


def _mobile(function: str, package: str, **more: Any) -> Registration:
    return Registration(f'{_MOBILE}:{function}', (package,), 'bench-mobile', reads=True, **more)


CONTESTANTS: dict[Place, dict[str, Registration]] = {
    ('layer', 'cpu'): {
        'torch': Registration(f'{_LAYERS}:torch_variants', ('torch',), 'torch'),
        'onnxruntime': Registration(f'{_LAYERS}:onnxruntime_variants', ('onnxruntime', 'onnx')),
        'openvino': Registration(f'{_LAYERS}:openvino_variants', ('openvino', 'onnx')),
        'tvm': Registration(f'{_LAYERS}:tvm_variants', ('tvm', 'xgboost'), tuned=True),
        OURS: Registration(f'{_LAYERS}:tilewright_variants', peer=False),
    },
    ('network', 'cpu'): {
        'torch': Registration(f'{_NETWORKS}:torch_variants', ('torch',), 'torch'),
        'torch-compile': Registration(f'{_NETWORKS}:torch_compile_variants', ('torch',), 'torch'),
        'onnxruntime': Registration(
            f'{_NETWORKS}:onnxruntime_variants', ('onnxruntime',), reads=True
        ),
        'openvino': Registration(f'{_NETWORKS}:openvino_variants', ('openvino',), reads=True),
        'openvino-low': Registration(
            f'{_NETWORKS}:openvino_low_variants', ('openvino',), reads=True, reduced=True
        ),
        'ncnn': _mobile('ncnn_variants', 'ncnn', tools=('pnnx',)),
        'ncnn-low': _mobile('ncnn_low_variants', 'ncnn', tools=('pnnx',), reduced=True),
        'mnn': _mobile('mnn_variants', 'MNN'),
        'mnn-low': _mobile('mnn_low_variants', 'MNN', reduced=True),
        ORACLE: Registration(f'{_NETWORKS}:oracle_variants', ('onnxruntime',), peer=False),
        OURS: Registration(f'{_NETWORKS}:tilewright_variants', peer=False, reads=True),
    },
    ('layer', 'gpu'): {
        'cudnn': Registration(f'{_GPU_LAYERS}:cudnn'),
        'cudnn_tf32': Registration(f'{_GPU_LAYERS}:cudnn_tf32'),
        'inductor': Registration(f'{_GPU_LAYERS}:inductor', tuned=True),
        'general': Registration(f'{_GPU_LAYERS}:general'),
        'cuda': Registration(f'{_GPU_LAYERS}:cuda'),
        'opencl': Registration(f'{_GPU_LAYERS}:opencl'),
    },
    ('network', 'gpu'): {
        'torch': Registration(f'{_GPU_NETWORKS}:torch'),
        'inductor': Registration(f'{_GPU_NETWORKS}:inductor', tuned=True),
    },
}


def table_of(work: str = 'layer', device: str = 'cpu') -> dict[str, Registration]:
    """The contestants on one kind of work, by name."""
    if (work, device) not in CONTESTANTS:
        known = ', '.join(map('/'.join, CONTESTANTS))
        raise InputError(f'there are no contestants on {work}/{device}; choose from {known}')
    return CONTESTANTS[work, device]


def register(
    name: str, function: str, packages: tuple[str, ...] = (), work: str = 'layer',
    device: str = 'cpu', **more: Any,
) -> None:  # fmt: skip
    """Add a peer by the name of a function, 'module:function'; `more` are fields of its row."""
    module, _, attribute = function.partition(':')
    if not module or not attribute:
        raise InputError(f'function is {function!r}; give the name of a function, module:function')
    table_of(work, device)[name] = Registration(function, packages, **more)


def unregister(name: str, work: str = 'layer', device: str = 'cpu') -> None:
    del table_of(work, device)[name]


def peer_names(work: str = 'layer', device: str = 'cpu') -> tuple[str, ...]:
    """All peers on one kind of work, those that were registered included."""
    return tuple(name for name, row in table_of(work, device).items() if row.peer)


def peers_help() -> str:
    """All peers, for people."""
    return '; '.join(
        f'on {said}: {", ".join(peer_names(*place))}' for place, said in PLACES.items()
    )
