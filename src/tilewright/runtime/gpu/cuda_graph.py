"""Launches captured in a CUDA graph, and seconds between two events; given back on every way out.

Goes in: the driver's functions, a stream, prepared launches. Comes out: a function that replays
them. A capture that fails half-way is ended, so that the stream stays usable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tilewright.errors import StoreError

Checked = Callable[..., Any]


class Launch(NamedTuple):
    """One launch: the driver's arguments, and what they point to, kept alive."""

    arguments: tuple
    keep: object


@contextlib.contextmanager
def captured(
    cu: Any, checked: Checked, stream: Any, launches: Sequence[Launch], copies: int
) -> Iterator[Callable[[], None]]:
    """A graph of `copies` times all launches, as a function that starts it once."""
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    checked(cu.cuStreamBeginCapture(stream, mode))
    try:
        for _ in range(copies):
            for launch in launches:
                checked(cu.cuLaunchKernel(*launch.arguments), ' while capturing')
    except StoreError:
        status, *broken = cu.cuStreamEndCapture(stream)  # whatever it says: the first error counts
        if int(status) == 0 and broken and int(broken[0]):
            cu.cuGraphDestroy(broken[0])
        raise
    graph = checked(cu.cuStreamEndCapture(stream))
    try:
        instance = checked(cu.cuGraphInstantiate(graph, 0))
    finally:
        checked(cu.cuGraphDestroy(graph))
    try:
        yield lambda: checked(cu.cuGraphLaunch(instance, stream))
    finally:
        cu.cuGraphExecDestroy(instance)


@contextlib.contextmanager
def stopwatch(
    cu: Any, checked: Checked, stream: Any
) -> Iterator[Callable[[Callable[[], None]], float]]:
    """A function that gives the seconds, by the device's clock, of what another one starts."""
    events = []

    def seconds(start: Callable[[], None]) -> float:
        first, last = events
        checked(cu.cuEventRecord(first, stream))
        start()
        checked(cu.cuEventRecord(last, stream))
        checked(cu.cuStreamSynchronize(stream), ' in a kernel that was timed')
        return checked(cu.cuEventElapsedTime(first, last)) * 1e-3

    try:
        for _ in range(2):
            events.append(checked(cu.cuEventCreate(0)))
        yield seconds
    finally:
        for event in events:
            cu.cuEventDestroy(event)
