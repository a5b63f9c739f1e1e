"""Work on the devices of other processes and machines: pieces handed out by dask.distributed.

Goes in: where the scheduler is, a function that can be imported by its name, and arguments for each
piece. Comes out: the result of every piece, as soon as it is there; what a piece tells while it
works arrives in the caller's thread. runtime/pool.py is the same for processes of this host.

Every worker names its devices as resources of dask, one for each *kind*: a target, a machine, the
versions that measurements depend on. A piece asks for one device of a kind, so that it never meets
another machine or version, and a worker that joins later takes part at once. A device is locked
while a piece has it, also for other processes of its host.

A worker that dies or is preempted loses its piece, which dask gives to another one; a worker that
says nothing for as long as its piece may take is restarted. What was told before is not lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import platform
import queue
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from tilewright.errors import CheckError, InputError, MissingError, StoreError, TilewrightError
from tilewright.machine.private import check_private, make_private

try:
    import dask.config
    from distributed import Client, Future, KilledWorker, Scheduler, SpecCluster, WorkerPlugin
    from distributed import get_worker as this_worker
    from distributed.deploy.subprocess import SubprocessWorker
except ImportError:
    raise MissingError("a fleet needs dask.distributed: pip install 'tilewright[fleet]'") from None

CONNECT_S = 10.0
START_S = 180.0  # of workers that are started here, on a host that may be busy
WORKERS_S = 60.0  # how long a fleet may be without a worker that can do the work
POLL_S = 0.05
TRIES = 8  # of a piece, each of which dask gives to several workers
QUIET = {  # nothing of it is shown where a fleet is started here
    'distributed.scheduler.dashboard.status.task-stream-length': 0,
    'distributed.logging.distributed': 'critical',
}

Tell = Callable[[Any], None]
Describe = Callable[[str], 'Sequence[FleetDevice]']


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """A device of a worker; what is measured on one holds for all of its kind.

    name      by which its target opens it
    label     for people
    machine, package, compiler   what measurements depend on (store/records.py)
    """

    target: str
    name: str
    label: str
    machine: str
    package: str
    compiler: str

    @property
    def kind(self) -> str:
        text = json.dumps([self.target, self.machine, self.package, self.compiler])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def resource(self) -> str:
        return f'tilewright-{self.kind}'


class DevicesPlugin(WorkerPlugin):
    """Names the devices of a worker to its scheduler; dask sets it up on those that join later."""

    def __init__(self, describe: Describe, target: str, package: str) -> None:
        self.describe, self.target = describe, target
        self.name = f'tilewright-{package}-{target}'

    async def setup(self, worker: Any) -> None:
        found = await asyncio.to_thread(self.describe, self.target)
        kinds = [device.resource for device in found]
        await worker.set_resources(**{kind: float(kinds.count(kind)) for kind in kinds})


def open_fleet(where: str, describe: Describe, target: str, package: str) -> Fleet:
    """The fleet at 'tcp://HOST:PORT', in a scheduler file, or 'local:N': workers started here."""
    local = re.fullmatch(r'local:(\d+)', where)
    if local:
        return _local_fleet(int(local[1]), describe, target, package)
    if '://' in where:
        given: dict[str, Any] = {'address': where}
    elif where.endswith('.json'):
        if not Path(where).is_file():
            raise InputError(f'--fleet {where} is not a file; name the file that the scheduler '
                             f'wrote (dask scheduler --scheduler-file {where})')  # fmt: skip
        given = {'scheduler_file': where}
    else:
        raise InputError(
            f'--fleet {where!r} is not a fleet; give tcp://HOST:PORT, local:N or a scheduler file '
            f'that ends in .json'
        )
    try:
        with dask.config.set({'distributed.comm.timeouts.connect': CONNECT_S}):
            client = Client(**given, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError, KeyError) as error:
        raise MissingError(
            f'no scheduler answers at {where} ({_brief(error)}); start one with `dask scheduler`, '
            f'or check the address and the firewall'
        ) from None
    return Fleet(client, describe, target, package, where, (client,))


def _local_fleet(count: int, describe: Describe, target: str, package: str) -> Fleet:
    """A scheduler in this process and so many workers, each in a process of its own."""
    if not 1 <= count <= 256:
        raise InputError(f'--fleet local:{count}; ask for 1 to 256 workers')
    worker = {
        'cls': SubprocessWorker,
        'options': {'worker_kwargs': {
            'nthreads': 1, 'memory_limit': 0, 'death_timeout': WORKERS_S,
            'dashboard': False, 'silence_logs': 'CRITICAL',
        }},
    }  # fmt: skip
    options = {
        'host': '127.0.0.1',
        'port': 0,
        'dashboard': False,
        'dashboard_address': '127.0.0.1:0',
    }
    with dask.config.set(QUIET):
        cluster = SpecCluster(
            workers=dict.fromkeys(range(count), worker),
            scheduler={'cls': Scheduler, 'options': options},
            silence_logs=logging.CRITICAL,  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
        client = Client(cluster, timeout=CONNECT_S, set_as_default=False)
    try:
        client.wait_for_workers(count, timeout=START_S)
    except TimeoutError:
        client.close()
        cluster.close()
        raise MissingError(
            f'{count} workers did not start within {START_S:g} s; ask for fewer by --fleet local:N'
        ) from None
    return Fleet(client, describe, target, package, f'local:{count}', (client, cluster))


@dataclass(slots=True)
class _Piece:
    """A piece under way: its future, when it was last heard of, and the worker that has it."""

    future: Future
    tries: int = 1
    heard: float = 0.0  # 0: it waits for a device
    worker: str = ''


class Fleet:
    """An open fleet for one target; use it in a `with` statement and from one thread.

    describe   target -> the devices of the process that calls it; imported by name on workers
    package    the version and build that workers have to have, as `describe` gives it
    closing    what `close` closes
    """

    def __init__(
        self, client: Client, describe: Describe, target: str, package: str, where: str = '',
        closing: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        self.client, self.describe, self.target, self.where = client, describe, target, where
        self.package = package
        self._closing = closing
        self._topic = f'tilewright-{uuid4()}'
        self._told: queue.SimpleQueue[tuple[str, str, str]] = queue.SimpleQueue()
        try:
            client.subscribe_topic(self._topic, self._hear)
            self.devices = self._introduced()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for each in self._closing:
            with contextlib.suppress(Exception):  # of a scheduler that is gone
                each.close()

    def kinds(self) -> dict[str, tuple[FleetDevice, ...]]:
        """The devices that were there when the fleet was opened, by kind."""
        found: dict[str, list[FleetDevice]] = {}
        for devices in self.devices.values():
            for device in devices:
                found.setdefault(device.kind, []).append(device)
        return {kind: tuple(devices) for kind, devices in found.items()}

    def _introduced(self) -> dict[str, tuple[FleetDevice, ...]]:
        """Ask every worker for its devices and its version; comes out: the devices by worker."""
        try:
            self.client.wait_for_workers(1, timeout=CONNECT_S)
        except TimeoutError:
            raise MissingError(
                f'the scheduler at {self.where} has no workers; start some with `dask worker '
                f'{self.where} --nthreads 1`'
            ) from None
        try:
            found: Any = self.client.run(_introduce, self.describe, self.target, on_error='return')
        except Exception as error:  # of dask, where versions cannot talk
            found = {'every worker': error}
        wrong = {worker: why for worker, said in found.items() if (why := self._why_not(said))}
        right = {worker: said for worker, said in found.items() if worker not in wrong}
        if wrong:
            worker, why = next(iter(wrong.items()))
            text = (
                f'{len(wrong)} of {len(found)} workers of {self.where} cannot be used, such as '
                f'{worker} ({why}); install tilewright {self.package} and Python {_python()} there'
            )
            if not right:
                raise MissingError(text)
            warnings.warn(text, stacklevel=4)
        devices = {worker: tuple(said[1]) for worker, said in right.items()}
        if not any(devices.values()):
            raise MissingError(
                f'no worker of {self.where} has a device for target {self.target}; `tilewright '
                f'doctor` on a worker says what is missing there'
            )
        self._register()
        return devices

    def _register(self) -> None:
        """Have all workers name their devices; one that dies meanwhile breaks dask's broadcast."""
        plugin = DevicesPlugin(self.describe, self.target, self.package)
        for left in reversed(range(TRIES)):
            try:
                self.client.register_plugin(plugin)
                return
            except OSError as error:
                if not left:
                    raise MissingError(
                        f'the workers of {self.where} cannot be reached ({_brief(error)}); look '
                        f'at their logs'
                    ) from None
                time.sleep(1.0)

    def _why_not(self, said: Any) -> str:
        """Why a worker is of another version than this process; '' if it is not."""
        if not isinstance(said, tuple):
            return _brief(said)
        python, devices = said
        others = {device.package for device in devices} - {self.package}
        if others:
            return f'tilewright {", ".join(others)}'
        return '' if python == _python() else f'Python {python}'

    def run(
        self,
        function: Callable[..., Any],
        pieces: Mapping[str, Callable[[], tuple]],
        kind: str,
        told: Callable[[str, Any], object],
        limit: float,
    ) -> Iterator[tuple[str, Any]]:
        """(name, function(device, tell, *arguments)) of every piece, in the order they end.

        pieces   name -> its arguments, asked for whenever it is handed out
        told     called here with the name of a piece and what its `tell` was given, JSON each
        limit    seconds of silence after which the worker of a piece is restarted

        Errors of this package that the function raises are raised here.
        """

        def submit(name: str) -> Future:
            device = next(d for d in self._all() if d.kind == kind)
            return self.client.submit(
                _work, function, name, self._topic, self.describe, device, pieces[name](),
                key=f'tilewright-{uuid4()}', pure=False, resources={device.resource: 1},
            )  # fmt: skip

        under_way = {name: _Piece(submit(name)) for name in pieces}
        alone_since = time.monotonic()
        try:
            while under_way:
                self._drain(under_way, told, POLL_S)
                ended = [name for name, piece in under_way.items() if piece.future.done()]
                if ended:
                    self._drain(under_way, told, 0.0)  # what it told before it ended
                for name in ended:
                    piece = under_way.pop(name)
                    again, result = self._result(name, piece)
                    if again:
                        under_way[name] = _Piece(submit(name), piece.tries + 1)
                    else:
                        yield name, result
                if self._has_workers():
                    alone_since = time.monotonic()
                elif time.monotonic() - alone_since > WORKERS_S:
                    raise MissingError(
                        f'the fleet at {self.where} has had no workers for {WORKERS_S:g} s; start '
                        f'some and run the same command again, which goes on from here'
                    )
                self._wake(under_way, limit)
        finally:
            self.client.cancel([piece.future for piece in under_way.values()], force=True)

    def _all(self) -> list[FleetDevice]:
        return [device for devices in self.devices.values() for device in devices]

    def _hear(self, event: tuple[float, Any]) -> None:
        """Called in the client's own thread."""
        self._told.put(tuple(event[1]))

    def _drain(
        self, under_way: dict[str, _Piece], told: Callable[[str, Any], object], wait: float
    ) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                name, worker, text = (
                    self._told.get(timeout=wait) if wait else self._told.get_nowait()
                )
                if name in under_way:
                    under_way[name].heard, under_way[name].worker = time.monotonic(), worker
                if text:
                    told(name, json.loads(text))

    def _result(self, name: str, piece: _Piece) -> tuple[bool, Any]:
        """(whether it has to be handed out again, else its result)."""
        try:
            return False, piece.future.result(timeout=CONNECT_S)
        except TilewrightError:
            raise
        except (KilledWorker, CancelledError, TimeoutError, OSError) as error:
            if self.client.status != 'running':
                raise StoreError(
                    f'the scheduler at {self.where} is gone; start it and run the same command '
                    f'again, which goes on from here'
                ) from None
            if piece.tries >= TRIES:
                raise CheckError(f'{name} was lost with {TRIES} workers: {_brief(error)}') from None
            return True, None
        except Exception as error:
            raise CheckError(f'{name} failed on {piece.worker or "a worker"}: '
                             f'{type(error).__name__}: {_brief(error)}') from error  # fmt: skip

    def _has_workers(self) -> bool:
        if self.client.status != 'running':
            return False
        return bool(self.client.scheduler_info(n_workers=-1)['workers'])

    def _wake(self, under_way: Mapping[str, _Piece], limit: float) -> None:
        """Restart the workers that have been silent for too long; dask hands their pieces out."""
        now = time.monotonic()
        for name, piece in under_way.items():
            if piece.heard and now - piece.heard > limit:
                warnings.warn(
                    f'{piece.worker} said nothing of {name} for {limit:g} s and is restarted',
                    stacklevel=3,
                )
                piece.heard = 0.0
                try:
                    self.client.restart_workers(
                        [piece.worker], timeout=CONNECT_S, raise_for_error=False
                    )
                except ValueError:  # a worker without a nanny is not restarted
                    self.client.retire_workers([piece.worker], close_workers=True)


def _brief(error: BaseException) -> str:
    return ' '.join(str(error).split())[:200] or type(error).__name__


# --- on a worker ---


def _introduce(describe: Describe, target: str) -> tuple[str, Sequence[FleetDevice]]:
    return _python(), describe(target)


def _python() -> str:
    return '.'.join(platform.python_version_tuple()[:2])


def _work(
    function: Callable[..., Any], name: str, topic: str, describe: Describe, wanted: FleetDevice,
    arguments: tuple,
) -> Any:  # fmt: skip
    """A piece, on a worker: it waits for a free device of its kind, and tells what it does."""
    worker = this_worker()

    def tell(value: Any) -> None:
        worker.log_event(topic, [name, worker.contact_address, value and json.dumps(value)])

    devices = [device for device in describe(wanted.target) if device.kind == wanted.kind]
    with claimed(devices, partial(tell, '')) as device:
        return function(device, tell, *arguments)


@contextlib.contextmanager
def claimed(
    devices: Sequence[FleetDevice], waiting: Callable[[], object] = lambda: None
) -> Iterator[FleetDevice]:
    """One of these devices for this thread alone, among all processes of the host and user."""
    folder = Path(tempfile.gettempdir()) / f'tilewright-devices-{os.getuid()}'
    make_private(folder)
    check_private(folder)
    with contextlib.ExitStack() as stack:
        names = [re.sub(r'\W+', '-', f'{device.target}-{device.name}') for device in devices]
        files = [stack.enter_context((folder / f'{name}.lock').open('w')) for name in names]
        said = 0.0
        while True:
            for file, device in zip(files, devices, strict=True):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue
                waiting()
                yield device
                return
            if time.monotonic() - said > 1.0:
                waiting()
                said = time.monotonic()
            time.sleep(POLL_S)
