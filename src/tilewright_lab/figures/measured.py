"""Where the samples of a figure come from: a data set that is given, or one that is measured now.

Goes in: `Options`. Comes out: one layer after the other, with its samples and their predictions.

What is measured goes to a file in the cache directory whose name says what it depends on: machine,
threads, seed and the code that generates and runs kernels. So the same command goes on where it was
interrupted, and a changed model finds its samples there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tilewright import knobs
from tilewright.errors import InputError
from tilewright.machine.compiler import cache_dir, compiler, compiler_version
from tilewright.machine.isa import host_isas
from tilewright.machine.machine import Machine
from tilewright.model.cpu.predict import predict
from tilewright.model.cpu.prediction import Prediction
from tilewright.ops.group import Group
from tilewright.ops.suites import expand
from tilewright.runtime.worker import REFERENCE_FLOPS_PER_S, START_LIMIT_S, Worker
from tilewright.store.records import package_version
from tilewright.targets.fleet import fleet_at, own_kind
from tilewright_lab.figures.collect import collect, finals
from tilewright_lab.figures.dataset import DataSet, LayerData, Recorder, Records, read
from tilewright_lab.figures.evaluate import deciding
from tilewright_lab.figures.figures import Options, Reporter, Silence, place_of


@dataclass(frozen=True, slots=True)
class Priced:
    """A layer's data, measured times, and what the model says of every sample that has one."""

    layer: LayerData
    times_ms: dict[str, float]
    predictions: dict[str, Prediction]

    @property
    def predicted_s(self) -> dict[str, float]:
        return {key: prediction.seconds for key, prediction in self.predictions.items()}


def price(layer: LayerData, machine: Machine) -> Priced:
    """The model on every sample: nothing is measured."""
    times = layer.times_ms()
    predictions = {}
    for key in times:
        schedule = layer.samples[key].schedule
        predictions[key] = predict(layer.group, schedule, machine)
    return Priced(layer, times, predictions)


@dataclass(frozen=True, slots=True)
class Source:
    """What a figure evaluates: the machine that the model is given, and where the data are."""

    machine: Machine
    data: DataSet
    path: Path
    recorder: Recorder | None

    @property
    def measures(self) -> bool:
        return self.recorder is not None


@contextmanager
def source(options: Options) -> Iterator[Source]:
    """The data of a figure, open for as long as it works on them."""
    if options.data is not None:
        data = read(options.data)
        yield Source(options.machine or data.machine, data, options.data, None)
        return
    machine = options.machine
    if machine is None or machine.isa not in host_isas():
        raise InputError(
            f'{machine.name if machine else "no machine"} cannot be measured on this host; give '
            f'data that were taken on it by --data'
        )
    versions = {'package': package_version(), 'compiler': compiler_version(compiler())}
    head = DataSet(machine, options.threads, options.seed, versions)
    with Recorder(data_file(head), head) as recorder:
        yield Source(machine, recorder.data, recorder.path, recorder)


def figure(
    options: Options, retime: bool, row_of: Callable[[Priced, Source], dict],
    line: Callable[[dict], str], more: Callable[[list[dict]], dict[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    """A figure of MOpt for JSON: the rows of its layers, each said as soon as it is there, and
    `more` that follows from them. What is finished comes out, also after an interrupt.
    """
    rows: list[dict] = []
    interrupted = False
    with source(options) as found:
        try:
            for priced in layers(options, found, retime):
                row = row_of(priced, found)
                rows.append(row)
                options.report.say(line(row))
        except KeyboardInterrupt:
            interrupted = True
        return {
            'figure': options.name,
            'layers_asked': options.layers,
            'samples_asked': options.samples,
            'threads': found.data.threads,
            'seed': found.data.seed,
            'machine': found.machine.to_json(),
            'measured_on': found.data.machine.name,
            'data': place_of(found.path),
            'data_versions': found.data.versions,
            'complete': not interrupted,
            'interrupted': interrupted,
            **more(rows),
            'layers': rows,
        }


def data_file(head: DataSet) -> Path:
    """Where samples that are measured now go."""
    machine, code = head.machine.fingerprint or head.machine.name, head.versions['package']
    name = f'samples-{machine}-{head.threads}t-seed{head.seed}-{code.rpartition("+")[2]}.jsonl'
    return cache_dir() / 'reproduce' / name.replace('/', '-')


def layers(options: Options, found: Source, retime: bool) -> Iterator[Priced]:
    """Every layer that was asked for, as soon as its samples are there.

    `retime`: those that losses depend on are also timed against each other. Layers that a given
    data set does not have are an error only if it has none of them.
    """
    wanted = [(name, group) for name, group, _ in expand(options.layers)]
    if found.recorder is None:
        wanted = [(name, group) for name, group in wanted if name in found.data.layers]
        if not wanted:
            raise InputError(
                f'--data {found.path} has no layer of {options.layers}; it has '
                f'{", ".join(found.data.layers) or "none"}'
            )
    options.report.plan(len(wanted))
    if options.fleet and found.recorder is not None:
        collect_ahead(options, found.recorder, wanted, retime)  # what is on record stays as it is
    with Worker(seed=options.seed) as worker:
        for name, group in wanted:
            options.report.begin(name)
            if found.recorder is None:
                layer = found.data.layers[name]
                if layer.group.digest != group.digest:
                    raise InputError(f'{name} in {found.path} is another problem than {name} now')
                yield price(layer, found.machine)
            else:
                yield _sampled(
                    found.recorder, found.machine, name, group, options.samples, retime, worker,
                    options.report,
                )  # fmt: skip
            options.report.finish()


def _sampled(
    recorder: Records, machine: Machine, name: str, group: Group, samples: int, retime: bool,
    worker: Worker, report: Reporter,
) -> Priced:  # fmt: skip
    """Add to the record of a layer what is missing."""
    layer = collect(recorder, name, group, samples, worker, report)
    if retime and layer.times_ms():
        keys = deciding(layer, price(layer, machine).predicted_s)
        finals(recorder, layer, keys, worker, report)
    return price(layer, machine)


@dataclass(frozen=True, slots=True)
class TellingRecorder:
    """A record that somebody else writes."""

    data: DataSet
    tell: Callable[[Any], None]

    def put(self, kind: str, layer: str, **fields: Any) -> None:
        record = {'kind': kind, 'layer': layer, **fields}
        self.data.add(record)
        self.tell(record)


def collect_ahead(
    options: Options, recorder: Recorder, wanted: list[tuple[str, Group]], retime: bool
) -> None:
    """Take the samples of every layer on workers of this host's kind; each goes to the record as
    soon as it is told.
    """
    assert options.fleet is not None
    fleet = fleet_at(options.fleet, 'cpu')
    data = recorder.data

    def arguments(name: str, group: Group) -> tuple:
        known = {name: data.layers[name]} if name in data.layers else {}
        return replace(data, layers=known), name, group, options.samples, retime

    def told(_: str, record: dict[str, Any]) -> None:
        recorder.put(record.pop('kind'), record.pop('layer'), **record)

    pieces = {name: partial(arguments, name, group) for name, group in wanted}
    limit = START_LIMIT_S + max(group.flops for _, group in wanted) / REFERENCE_FLOPS_PER_S
    limit += 3 * knobs.get('time_limit')
    found = fleet.run(collect_piece, pieces, own_kind(fleet), told, limit)
    for done, (name, _) in enumerate(found, 1):
        options.report.step(f'{name} sampled', done, len(wanted), 0.0)


def collect_piece(
    device: Any, tell: Callable[[Any], None], data: DataSet, name: str, group: Group, samples: int,
    retime: bool,
) -> None:  # fmt: skip
    """The samples of one layer, on a worker."""
    with Worker(seed=data.seed) as worker:
        _sampled(
            TellingRecorder(data, tell), data.machine, name, group, samples, retime, worker,
            Silence(),
        )  # fmt: skip
