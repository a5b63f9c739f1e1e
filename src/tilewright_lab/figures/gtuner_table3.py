"""GTuner's Tables 3 and 4 (DAC'22, Sec. 4.4): whole networks, their latency and what tuning took.

Goes in: a GPU, names of networks of the zoo. Comes out: for each network and each way of searching
(`METHODS`), compiled with as many trials a group as the paper has: the time of a call and the
seconds of everything from the graph to the network that runs. Beside them what `tilewright bench
NETWORKS --target cuda --against torch,inductor` measured (`--data`), and the paper's columns, which
are of an RTX 3090. `--data` with a result of this figure prints that, and measures nothing.

All networks are tuned together by a method and a seed, in an empty store of their own, so that
nothing that another method has measured, chosen or compiled helps: groups that several networks
have are searched once, and no core waits for the last group of a network. What that took is shared
by a network's number of groups, beside the seconds of its own compilation. Rows are written as they
are made, and a run that was interrupted goes on with the next method and seed.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import knobs, zoo
from tilewright.errors import InputError, MissingError, TilewrightError
from tilewright.graph.passes import GPU_PASSES
from tilewright.machine.compiler import cache_dir
from tilewright.network.arguments import GPU_TARGETS
from tilewright.network.compile import compile, prepare
from tilewright.ops.core import core
from tilewright.ops.group import Group
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.rank.files import own_folder
from tilewright.runtime.gpu.device import Device
from tilewright.runtime.gpu.network import GpuNetwork
from tilewright.runtime.gpu.recorded import recorded
from tilewright.runtime.gpu.session import open_device
from tilewright.runtime.measure import Progress
from tilewright.search.gpu.moves import schedule_text
from tilewright.store.choices import GPU_DECIDES, code_version
from tilewright.targets.gpu import tuning as measure
from tilewright.targets.gpu.assemble import chosen_by_model, measured
from tilewright.targets.gpu.cost import GpuCost
from tilewright.targets.gpu.site import KEPT, LOOKED
from tilewright.targets.gpu.tuning import How, Place, is_searched
from tilewright_lab.compare.gpu_networks import OURS, Subject, answer_of, duel
from tilewright_lab.figures import gtuner_table3_text as tables
from tilewright_lab.figures.figures import Options, place_of
from tilewright_lab.figures.remembered import result_in
from tilewright_lab.peers.contestants import Entrant
from tilewright_lab.peers.torch_graph import COPIES

ROUNDS = 10  # turns of timing a network
SEEDS = 3
# What the names of the tables stand for; 'genetic' goes on learning from what it measures.
METHODS: Mapping[str, How] = {
    'gat': How('gat', 'genetic'),
    'online': How('analytical', 'online'),
    'forest': How('forest', 'genetic'),
    'analytical': How('analytical', 'top'),
}
OK = 'ok'
text = tables.text
plot = tables.plot


def run(options: Options) -> dict[str, Any]:
    """Compile and time; comes out: JSON."""
    before = result_in(options.data, options.name)
    if before is not None:
        return before
    networks = networks_of(options)
    if options.target not in GPU_TARGETS:
        raise InputError(
            f'--target {options.target!r}: networks are tuned on one of {", ".join(GPU_TARGETS)}'
        )
    if importlib.util.find_spec('torch') is None:
        raise MissingError(
            f'{options.name} checks answers against PyTorch, which is not installed: pip install '
            f'torch'
        )
    rivals = {} if options.data is None else tables.rivals_of(options.data)
    device, report = open_device(options.target), options.report
    journal = Journal.of(options, device)
    until = time.monotonic() + (options.seconds or float('inf'))
    seeds = [options.seed + i for i in range(SEEDS)]
    report.plan(len(seeds) * len(METHODS))
    interrupted = False
    bench = _Bench(options, networks, device, journal)
    try:
        for seed in seeds:
            for method in METHODS:
                report.begin(f'{method}, seed {seed}')
                left = [n for n in networks if journal.row(n, method, seed) is None]
                if left and bench.time_left(until):
                    for row in bench.made(left, method, seed):
                        report.say(tables.line(row))
                report.finish()
    except KeyboardInterrupt:
        interrupted = True
    rows = [
        row for seed in seeds for n in networks for method in METHODS
        if (row := journal.row(n, method, seed)) is not None
    ]  # fmt: skip
    return {
        'figure': options.name, 'target': options.target, 'device': device.name,
        'machine': device.machine.to_json(), 'trials': options.samples, 'seeds': seeds,
        'candidates': measure.SAMPLED, 'cores': measure.usable_cores(), 'small': options.small,
        'rounds': ROUNDS, 'copies': COPIES, 'networks': list(networks),
        'methods': {name: {'model': how.model, 'search': how.search}
                    for name, how in METHODS.items()},
        'rivals': rivals, 'paper': tables.paper_of(networks), 'layers': rows,
        'data': place_of(journal.path), 'interrupted': interrupted,
        'complete': len(rows) == len(seeds) * len(networks) * len(METHODS),
    }  # fmt: skip


def networks_of(options: Options) -> tuple[str, ...]:
    """The names that are asked for, each once."""
    named = [name.strip() for name in options.networks.split(',') if name.strip()]
    for name in named:
        zoo.network(name)  # says what is known, where it is not
    if not named:
        raise InputError(f'{options.name} compiles networks of the zoo; name one by --networks')
    return tuple(dict.fromkeys(named))


@dataclass
class Journal:
    """Rows that were made, in a file that is whole after each of them."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, options: Options, device: Device) -> Journal:
        """By everything that rows depend on. Rows that failed are made again."""
        parts = [
            options.target, device.name, device.machine.to_json(), options.samples,
            options.networks, options.small, measure.SAMPLED, ROUNDS, code_version(GPU_DECIDES),
            _own_models(), {name: asdict(how) for name, how in METHODS.items()},
        ]  # fmt: skip
        key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
        path = cache_dir() / 'reproduce' / f'{options.name}-{options.target}-{key}.json'
        try:
            rows = json.loads(path.read_text())['rows']
            return cls(path, [row for row in rows if row['status'] == OK])
        except (OSError, ValueError, KeyError, TypeError):
            return cls(path)

    def row(self, network: str, method: str, seed: int) -> dict[str, Any] | None:
        """The row that was made before."""
        asked = network, method, seed
        found = ((r['network'], r['method'], r['seed']) == asked for r in self.rows)
        return next((r for r, mine in zip(self.rows, found, strict=True) if mine), None)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(f'.{os.getpid()}')
        fresh.write_text(json.dumps({'rows': self.rows}))
        os.replace(fresh, self.path)


class _Bench:
    """Networks on one device."""

    def __init__(
        self, options: Options, networks: Sequence[str], device: Device, journal: Journal
    ) -> None:
        self.options, self.device, self.journal = options, device, journal
        self.networks = networks
        self.subjects: dict[str, Subject] = {}
        self.groups: dict[str, dict[str, Group]] = {}
        self.spent: list[float] = []
        self.begin, self.stages = 0.0, dict[str, float]()  # of a compilation: when each ended

    def time_left(self, until: float) -> bool:
        """Whether a method and seed may be begun: what the shortest took so far has to be left."""
        return time.monotonic() + min(self.spent, default=0.0) < until

    def made(self, networks: Sequence[str], method: str, seed: int) -> Iterator[dict[str, Any]]:
        """Rows of a method and a seed, made in a store of their own and written down."""
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix='tilewright-store-') as folder:
            how = replace(METHODS[method], seed=seed)
            with _empty(Path(folder), seed):
                trouble = self.tune_together(how)
                took = time.perf_counter() - begin
                for network in networks:
                    row = self.row(network, method, how, took, trouble)
                    self.journal.add(row)
                    yield row
                    gc.collect()  # the network's memory on the device
        self.spent.append(time.perf_counter() - begin)

    def tune_together(self, how: How) -> str:
        """Tune the groups of all networks; the choices are in the store. Comes out: an error."""
        groups = {d: g for n in self.networks for d, g in self.groups_of(n).items()}
        looked = LOOKED if how.from_nothing else None
        place = Place.of(self.device, self.options.target)
        self.begin, self.stages = time.perf_counter(), {}
        try:
            chosen = chosen_by_model(
                groups, self.device.machine, KEPT, DEFAULT_LIMIT, looked=looked,
                estimate=how.estimate,
            )  # fmt: skip
            measured(
                groups, chosen, place, self.options.samples, DEFAULT_LIMIT, self._tell, how
            )  # fmt: skip
        except TilewrightError as error:
            return str(error)
        return ''

    def row(
        self, network: str, method: str, how: How, took: float, trouble: str
    ) -> dict[str, Any]:  # fmt: skip
        """One network that is tuned already, compiled and timed; an error of ours is a row, too."""
        groups = self.searched(network)
        said: dict[str, Any] = {
            'network': network, 'method': method, 'seed': how.seed, 'model': how.model,
            'search': how.search, 'groups': len(groups), 'together_s': took,
        }  # fmt: skip
        try:
            if trouble:
                raise InputError(trouble)
            graph = zoo.graph(**self.subject(network).arguments)  # not a part of what is timed
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter('always')
                self.begin, self.stages = time.perf_counter(), {}
                net = compile(
                    graph, self.options.target, tune='measure', trials=self.options.samples,
                    model=how.model, search=how.search, check=False, progress=self._tell,
                )  # fmt: skip
                seconds = time.perf_counter() - self.begin
            assert isinstance(net, GpuNetwork)
            every = set[str]().union(*(self.searched(n) for n in self.networks))
            share = took * len(groups) / max(len(every), 1)
            said |= {'own_s': seconds, 'seconds': seconds + share, 'stages_s': self.stages}
            said |= {'warnings': [str(one.message) for one in warned]}
            return said | self.timed(net, network)
        except TilewrightError as error:
            return said | {'status': 'failed', 'message': str(error)}

    def sizes(self, network: str) -> dict[str, int]:
        return zoo.SMALL.get(network, {}) if self.options.small else {}

    def subject(self, network: str) -> Subject:
        if network not in self.subjects:
            made = Subject.of(network, self.options.seed, 1, 'fp32', **self.sizes(network))
            self.subjects[network] = made
        return self.subjects[network]

    def groups_of(self, network: str) -> dict[str, Group]:
        """A network's groups by their digests."""
        if network not in self.groups:
            graph = zoo.graph(network, **self.sizes(network))
            program = prepare(graph, None, None, GpuCost(self.device.machine), GPU_PASSES)
            self.groups[network] = {task.group.digest: task.group for task in program.tasks}
        return self.groups[network]

    def searched(self, network: str) -> frozenset[str]:
        """Digests of the distinct groups that are tuned for a network."""
        cores = (core(group, front=True) for group in self.groups_of(network).values())
        return frozenset(one.digest for one in cores if is_searched(one))

    def timed(self, net: GpuNetwork, network: str) -> dict[str, Any]:
        """The time of a call, as the bench takes it, what it runs, and what its tasks took when
        they were tuned, one after the other.
        """
        found = duel(
            self.subject(network), [lambda: entrant_of(net, self.subject(network))], (), ROUNDS
        )
        only = dict(found.contestants[0])
        tasks = [
            {'task': task.name, 'label': task.group.label,
             'schedule': schedule_text(task.schedule)} for task in net.gpu_tasks
        ]  # fmt: skip
        wanted = ('status', 'message', 'median_us', 'samples_us', 'max_rel_err')
        alone = 1e6 * sum(task.predicted_s for task in net.gpu_tasks)
        return {name: only.get(name) for name in wanted} | {'alone_us': alone, 'tasks': tasks}

    def _tell(self, progress: Progress) -> None:
        self.stages[progress.stage] = time.perf_counter() - self.begin
        self.options.report.step(
            f'{progress.stage} {progress.key}', progress.done, progress.total, progress.left_s
        )


def entrant_of(net: GpuNetwork, subject: Subject) -> Entrant:
    """A network as the bench asks it: image on the device, branches side by side."""
    stream = recorded(net.device, net.calls, net.waits)

    def answer() -> np.ndarray:
        return answer_of(net, stream, subject)

    def timed(repeats: int) -> list[float]:
        net.device.use()
        stream.run()
        net.device.synchronize()
        return stream.time(repeats, COPIES)

    return Entrant(OURS, timed, answer, keep=net)


def _own_models() -> dict[str, str]:
    """What a user's own models are, by the names of their files."""
    folder = own_folder()
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files if f.is_file()}


@contextmanager
def _empty(store: Path, seed: int) -> Iterator[None]:
    """The cache directory is another one meanwhile; a user's own models are there as well."""
    models = own_folder()
    if models.is_dir():
        shutil.copytree(models, store / models.name, dirs_exist_ok=True)
    store.mkdir(parents=True, exist_ok=True)
    with knobs.held('cache_dir', str(store)), knobs.held('seed', str(seed)):
        yield
