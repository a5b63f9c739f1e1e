"""Groups planned and measured on a fleet (runtime/fleet.py), into one store.

Goes in: groups with what is wanted of each, and where the fleet is. Comes out: a `Plan` of each,
measured on a device of one kind; every measurement is in the caller's store as soon as it is taken,
and what was tuned is remembered as if it had been measured here (store/tuned.py). So the same
command, started again, finds all that arrived before, and workers of other kinds do not meet it.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from tilewright import knobs
from tilewright.errors import InputError, MissingError
from tilewright.machine.detect import describe_host
from tilewright.machine.isa import best_isa
from tilewright.machine.machine import Machine
from tilewright.machine.measure import fingerprint, load_machine
from tilewright.ops.group import Group
from tilewright.runtime.measure import Progress
from tilewright.runtime.worker import REFERENCE_FLOPS_PER_S, START_LIMIT_S
from tilewright.store import choices
from tilewright.store.records import Record, Store, Validators, open_store, package_version
from tilewright.targets.plan import Plan
from tilewright.targets.target import Report, Wanted, target_of

if TYPE_CHECKING:
    from tilewright.runtime.fleet import Fleet, FleetDevice, Tell

_OPEN: dict[tuple[str, str], Fleet] = {}


def fleet_at(where: str | Fleet, target: str) -> Fleet:
    """An open fleet, opened once for a process and a target."""
    if not isinstance(where, str):
        return where
    fleet = _OPEN.get((where, target))
    if fleet is None or fleet.client.status != 'running':
        from tilewright.runtime.fleet import open_fleet

        fleet = _OPEN[where, target] = open_fleet(where, devices_of, target, package_version())
    return fleet


@atexit.register
def close_fleets() -> None:
    """End what `fleet_at` opened, with the workers that it started."""
    while _OPEN:
        _OPEN.popitem()[1].close()


@cache
def devices_of(target: str) -> tuple[FleetDevice, ...]:
    """The devices of this process for a target. The cores of a host are one device."""
    from tilewright.runtime.fleet import FleetDevice

    if target == 'cpu':
        facts = describe_host()
        held = Validators.current(fingerprint(facts, best_isa(facts.isas)))
        return (FleetDevice(target, '', facts.model, **asdict(held)),)
    from tilewright.runtime.gpu.session import device_names, open_device
    from tilewright.targets.gpu.tuning import Place, validators_of

    found = []
    for name in device_names(target):
        place = Place.of(open_device(target, name), target, name)
        held = validators_of(place)
        found.append(FleetDevice(target, name, place.machine.name, **asdict(held)))
    return tuple(found)


def own_kind(fleet: Fleet, label: str = '') -> str:
    """The kind of this host's own device (the one called `label`), which workers must have."""
    kinds = fleet.kinds()
    own = [device for device in devices_of(fleet.target) if label in ('', device.label)]
    for device in own:
        if device.kind in kinds:
            return device.kind
    here = ', '.join(sorted({device.label for device in own})) or 'nothing'
    raise InputError(
        f'no worker of {fleet.where} is of the kind of this host ({here}, the same package and '
        f'compiler); they are: {kinds_text(fleet)}'
    )


def kinds_text(fleet: Fleet) -> str:
    return '; '.join(
        f'{len(devices)} x {devices[0].label} ({devices[0].machine}, {devices[0].compiler})'
        for devices in fleet.kinds().values()
    )


def machine_for(fleet: Fleet, kind: str) -> Machine | None:
    """The measured machine that all workers of a kind plan for: this host's own if it is of that
    kind, else that of one of them; None on a GPU, which each of them opens.
    """
    if fleet.target != 'cpu':
        return None
    if any(device.kind == kind for device in devices_of('cpu')):
        return load_machine()[0]
    pieces = {'the machine': tuple}
    found = fleet.run(_own_machine, pieces, kind, lambda *_: None, 10 * START_LIMIT_S)
    return dict(found)['the machine']


def _own_machine(device: FleetDevice, tell: Tell) -> Machine:
    return load_machine()[0]


def plans(
    fleet: Fleet,
    kind: str,
    pieces: Mapping[str, tuple[Group, Wanted]],
    store: Store | None = None,
    progress: Report | None = None,
) -> Iterator[tuple[str, Plan]]:
    """The plan of every piece, measured on devices of a kind, in the order they end.

    Measurements and tuned choices are stored here as they arrive.
    """
    one = fleet.kinds()[kind][0]
    held = Validators(one.machine, one.package, one.compiler)

    with nullcontext(store) if store is not None else open_store() as kept:

        def arguments(name: str) -> tuple:
            group, wanted = pieces[name]
            known = kept.find(group.digest, _threads(wanted), held)
            threads = _threads(wanted)  # whatever the environment of the worker says
            here = replace(wanted, threads=threads or None, store=None, progress=None)
            return group, here, known

        def told(name: str, value: Mapping[str, Any]) -> None:
            if 'record' in value:
                kept.put(Record.from_json(value['record']))
            elif 'kept' in value:
                choices.keep(*value['kept'])

        # The longest first, so that no device works alone at the end.
        order = sorted(pieces, key=lambda name: -pieces[name][0].flops)
        slowest = max((group.flops for group, _ in pieces.values()), default=0)
        limit = START_LIMIT_S + 3 * knobs.get('time_limit') + slowest / REFERENCE_FLOPS_PER_S
        found = fleet.run(
            measured_plan, {name: lambda name=name: arguments(name) for name in order}, kind, told,
            limit,
        )  # fmt: skip
        for done, (name, plan) in enumerate(found, 1):
            if progress is not None:
                label = pieces[name][0].label
                progress(Progress('fleet', label, done, len(pieces), 0.0, plan.best.time_ms))
            yield name, plan


def _threads(wanted: Wanted) -> int:
    """What the store calls threads: none on a GPU."""
    if not isinstance(wanted.machine, Machine):
        return 0
    return wanted.threads or knobs.get('threads') or wanted.machine.cores


def measured_plan(
    device: FleetDevice, tell: Tell, group: Group, wanted: Wanted, known: Sequence[Record]
) -> Plan:
    """On a worker: what its target measures of a group. All that is stored here is told, too.

    At the end once more: what a worker of this host stored last may not have been told before it
    died, and is not measured again.
    """
    held = Validators(device.machine, device.package, device.compiler)
    with open_store() as store:
        for record in known:
            store.put(record)
        store.heard = lambda record: tell({'record': record.to_json()})
        here = replace(wanted, store=store, device=device.name, progress=lambda _: tell(''))
        with choices.heard(lambda key, answer: tell({'kept': [key, answer]})):
            plan = target_of(device.target).plan(group, here)
        for record in store.find(group.digest, _threads(wanted), held):
            store.heard(record)
        return plan


def best_of(plan: Plan) -> Any:
    """The schedule that won; raises where none worked."""
    found = plan.best.measurement
    if found is None or not found.ok:
        why = found.message if found else 'nothing was measured'
        raise MissingError(f'no kernel for {plan.group.label} works on the fleet: {why}')
    return plan.best
