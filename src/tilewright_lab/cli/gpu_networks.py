"""`tilewright bench NETWORK --target cuda`: compiled networks on a GPU against PyTorch's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from tilewright import zoo
from tilewright.cli.optimize import INTERRUPTED
from tilewright.cli.output import Output
from tilewright.errors import CheckError, InputError, MissingError
from tilewright.graph.passes import default_fusion
from tilewright.machine.compiler import cache_dir
from tilewright.network.arguments import check_precision
from tilewright.network.compile import compile
from tilewright.runtime.gpu.network import GpuNetwork
from tilewright.runtime.gpu.recorded import Recorded, recorded
from tilewright.runtime.gpu.session import open_device
from tilewright.search.gpu.moves import schedule_text
from tilewright_lab.cli.bench import BenchOptions, progress, words_of
from tilewright_lab.compare.gpu_networks import (
    INDUCTOR,
    GpuNetworkResult,
    Subject,
    answer_of,
    duel,
    mean_ratio,
    table,
)
from tilewright_lab.peers.contestants import OURS, Entrant
from tilewright_lab.peers.inductor import FILL_S, LIMIT_S, Folder, Rivals
from tilewright_lab.peers.peers import check_names
from tilewright_lab.peers.torch_graph import COPIES

ALONE = 5  # times of a task alone
DEFAULT_PEERS = {'cuda': 'torch'}


def run(networks: Sequence[str], options: BenchOptions, out: Output) -> int:
    """Compile and compare network by network; comes out: the exit code.

    Whatever is finished is reported, also after an interrupt, and is in the JSON file as soon as a
    network is; losing rows stay. Inductor prepares all networks first, for at most `seconds`: where
    it does not end, a row says so. `cold` says whether the cache directory was empty at first: then
    seconds of compiling are those of a first time.
    """
    target, tune = options.target, options.tune
    named = options.against if options.against is not None else DEFAULT_PEERS.get(target, '')
    peers = check_names(words_of(named), 'network', 'gpu')
    unknown = [name for name in networks if name not in zoo.KNOWN]
    if unknown:
        raise InputError(
            f'{unknown[0]!r} is not a network of the zoo, and others cannot be compared on a GPU; '
            f'choose from {", ".join(zoo.KNOWN)}'
        )
    options.check()
    check_precision(options.precision, target)
    limit = options.seconds or LIMIT_S
    cold = not any(cache_dir().glob('*'))
    opened = open_device(target, options.device)
    drawn, batch = options.drawn_seed, options.batch or 1
    out.say(f'{opened.name} ({target})')
    code, done = 0, []
    said: dict[str, Any] = {
        'peers': list(peers), 'seed': drawn, 'target': target, 'device': opened.name,
        'machine': opened.machine.to_json(), 'tune': tune, 'trials': options.trials,
        'batch': batch, 'rounds': options.rounds, 'copies': COPIES, 'libraries': options.libraries,
        'fuse': options.fuse or default_fusion(target), 'cold': cold,
        'precision': options.precision,
    }  # fmt: skip
    compiling = {'target': target, 'device': options.device, 'trials': options.trials,
                 'libraries': options.libraries, 'fuse': options.fuse,
                 'precision': options.precision}  # fmt: skip
    tunes = ('model', tune) if options.untuned and tune != 'model' else (tune,)
    with ExitStack() as stack:
        try:
            subjects = [Subject.of(name, drawn, batch, options.precision) for name in networks]
            rivals = None
            if INDUCTOR in peers and target == 'cuda':
                rivals = stack.enter_context(
                    Rivals(Folder.of(opened.name), min(FILL_S, limit / 2), limit)
                )
                said['inductor'] = rivals.begin(subjects, progress)
            for subject in subjects:
                ours = _ours(subject, compiling, tunes, options.fleet)
                done.append(duel(subject, ours, peers, options.rounds, progress, rivals))
                progress('')
                ours_us, ratio = done[-1].ours_us or 0.0, done[-1].ratio or 0.0
                out.say(f'{subject.name}: ours {ours_us:.1f} us, ratio {ratio:.3f}')
                if out.json_file != '-':
                    out.write(_results(done, len(networks)) | said)
        except KeyboardInterrupt:
            out.warn(f'interrupted after {len(done)} of {len(networks)} networks')
            code = INTERRUPTED
    out.say(table(done, peers))
    out.write(_results(done, len(networks)) | said)
    return code or _exit_code(done)


def _results(done: Sequence[GpuNetworkResult], asked: int) -> dict[str, Any]:
    return {
        'networks': [result.to_json() for result in done],
        'geometric_mean': {'best_peer_over_ours': mean_ratio(done)},
        'least': min((r.ratio for r in done if r.ratio is not None), default=None),
        'complete': len(done) == asked,
    }


def _ours(
    subject: Subject, compiling: dict[str, Any], tunes: Sequence[str], fleet: str | None
) -> list[Callable[[], Entrant]]:
    """Ours with branches side by side, compiled in each way, and the last also in a row."""
    made: dict[str, tuple[GpuNetwork, float, dict[str, float]]] = {}

    def network(tune: str) -> tuple[GpuNetwork, float, dict[str, float]]:
        """The network, the seconds that it took, and those of its stages."""
        if tune not in made:
            stages = _Stages()
            graph = zoo.graph(**subject.arguments)
            # Answers are compared with the peers', and seconds are those of compiling.
            where = fleet if tune == 'measure' else None
            found = compile(
                graph, progress=stages, tune=tune, check=False, fleet=where, **compiling
            )  # fmt: skip
            assert isinstance(found, GpuNetwork)
            made[tune] = found, stages.seconds, stages.spent
        return made[tune]

    def entrant(tune: str, parallel: bool) -> Entrant:
        net, spent, stages = network(tune)
        stream = recorded(net.device, net.calls, net.waits if parallel else None)
        settings = {'tune': tune, 'parallel': parallel, 'kernels': len(net.calls),
                    'stages_s': stages}  # fmt: skip
        if parallel:
            settings['tasks'] = _tasks(net, subject)
        label = f'{OURS}/{tune}, {"side by side" if parallel else "in a row"}'
        return Entrant(
            label, lambda repeats: _timed(net, stream, repeats),
            lambda: answer_of(net, stream, subject), settings, spent, keep=net,
        )  # fmt: skip

    makers = [lambda tune=tune: entrant(tune, True) for tune in tunes]
    return [*makers, lambda: entrant(tunes[-1], False)]


def _tasks(net: GpuNetwork, subject: Subject) -> list[dict[str, Any]]:
    """Every task with what it takes alone, its data where the call before left them."""
    stamps = net.stamps(dict(subject.inputs), ALONE)
    alone = np.median(np.diff(stamps, axis=1), axis=0)
    return [
        {
            'task': task.name, 'label': task.group.label, 'kernels': len(task.calls),
            'schedule': schedule_text(task.schedule), 'alone_us': 1e6 * float(seconds),
            'predicted_us': 1e6 * task.predicted_s, 'bound_us': 1e6 * task.bound_s,
            'flops': task.group.flops,
        }
        for task, seconds in zip(net.gpu_tasks, alone, strict=True)
    ]  # fmt: skip


def _timed(net: GpuNetwork, stream: Recorded, repeats: int) -> list[float]:
    net.device.use()
    stream.run()
    net.device.synchronize()
    return stream.time(repeats, COPIES)


class _Stages:
    """Shows how far a compilation is, and adds up the seconds of its stages: search, measure,
    select and build; a stage is told of when a piece of it is done.
    """

    def __init__(self) -> None:
        self.began = self.last = time.perf_counter()
        self.spent: dict[str, float] = {}

    def __call__(self, state: Any) -> None:
        progress(f'{state.stage} {state.key} {state.done}/{state.total}')
        now = time.perf_counter()
        self.spent[state.stage] = self.spent.get(state.stage, 0.0) + now - self.last
        self.last = now

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began


def _exit_code(done: Sequence[GpuNetworkResult]) -> int:
    """1 when nothing of ours worked on a network, 3 when a contestant is missing."""
    if any(result.ours_us is None for result in done):
        return CheckError.exit_code
    missing = any(c.get('status') == 'missing' for r in done for c in r.contestants)
    return MissingError.exit_code if missing else 0
