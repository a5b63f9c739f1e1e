"""Launches captured in a CUDA graph, and seconds between two events; given back on every way out.

Goes in: the driver's functions, a stream, prepared launches. Comes out: a function that replays
them. A capture that fails half-way is ended, so that the stream stays usable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tilewright.errors import TilewrightError

Checked = Callable[..., Any]


class Launch(NamedTuple):
    """One launch: the driver's arguments, and what they point to, kept alive.

    `run`: what starts it instead, on the device's stream, where a library does. `together`: all
    blocks run at once, or none.
    """

    arguments: tuple
    keep: object
    run: Callable[[], None] | None = None
    together: bool = False


def start(cu: Any, checked: Checked, launch: Launch, doing: str) -> None:
    """Start one launch, or record it where its stream is being captured."""
    if launch.run is not None:
        launch.run()
    elif launch.together:
        checked(cu.cuLaunchCooperativeKernel(*launch.arguments[:-1]), doing)
    else:
        checked(cu.cuLaunchKernel(*launch.arguments), doing)


@contextlib.contextmanager
def capturing(
    cu: Any, checked: Checked, stream: Any, launches: Sequence[Launch], copies: int
) -> Iterator[Any]:
    """The graph of `copies` times all launches in a row; it is given back in the end.

    A library may load code or ask for memory when it is first called, which a capture of the usual
    kind refuses; such a call has been made once before, and is captured by the relaxed kind.
    """
    modes = cu.CUstreamCaptureMode
    relaxed = any(launch.run is not None for launch in launches)
    mode = (
        modes.CU_STREAM_CAPTURE_MODE_RELAXED if relaxed
        else modes.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    )  # fmt: skip
    checked(cu.cuStreamBeginCapture(stream, mode))
    try:
        for _ in range(copies):
            for launch in launches:
                start(cu, checked, launch, ' while capturing')
    except TilewrightError:
        status, *broken = cu.cuStreamEndCapture(stream)  # whatever it says: the first error counts
        if int(status) == 0 and broken and int(broken[0]):
            cu.cuGraphDestroy(broken[0])
        raise
    graph = checked(cu.cuStreamEndCapture(stream))
    try:
        yield graph
    finally:
        checked(cu.cuGraphDestroy(graph))


@contextlib.contextmanager
def captured(
    cu: Any, checked: Checked, stream: Any, launches: Sequence[Launch], copies: int
) -> Iterator[Callable[[], None]]:
    """A graph of `copies` times all launches, as a function that starts it once."""
    with capturing(cu, checked, stream, launches, copies) as graph:
        instance = checked(cu.cuGraphInstantiate(graph, 0))
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
