"""Times of GPU calls by replays of a CUDA graph, as short as they can be trusted.

Arguments are prepared once for a call, and a graph holds as many copies as make up `TARGET_S`; a
call that takes long needs fewer copies and replays. The figure is the median of the replays.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.cuda import CudaDevice, checked, holder
from tilewright.runtime.device import Call

TARGET_S = 250e-6
COPIES = (2, 24)
REPLAYS = 3
LONG_S = 1e-3  # calls from here on are replayed once, without warming up


class GraphTimer:
    """Seconds of calls on one device."""

    def __init__(self, device: CudaDevice) -> None:
        self.device, self.cu = device, device.cu
        self.events = [checked(self.cu.cuEventCreate(0)) for _ in range(2)]

    def __call__(self, calls: Sequence[Call]) -> float:
        """The calls have run before: their first run is not timed here."""
        ready = [self._prepare(call) for call in calls]
        once = self._between(lambda: self._launch(ready))
        copies = round(min(max(TARGET_S / max(once, 1e-9), COPIES[0]), COPIES[1]))
        graph = self._graph(ready, copies)
        try:
            long = once > LONG_S
            if not long:
                self._replay(graph)
            times = [
                self._between(lambda: self._replay(graph)) / copies
                for _ in range(1 if long else REPLAYS)
            ]
        finally:
            checked(self.cu.cuGraphExecDestroy(graph))
        return statistics.median(times)

    def _prepare(self, call: Call) -> tuple:
        """Arguments of a launch, and the memory that they point to."""
        kernel = call.program.kernel
        holders = [holder(value) for value in self.device.check(call)]
        pointers = np.array([holder.ctypes.data for holder in holders], np.uint64)
        grid = call.grid or kernel.grid
        arguments = (
            call.program.handle[1], *grid, kernel.threads, 1, 1, kernel.shared_bytes,
            self.device.stream, pointers.ctypes.data, 0,
        )  # fmt: skip
        return arguments, pointers, holders

    def _launch(self, ready: list[tuple]) -> None:
        for arguments, _, _ in ready:
            checked(self.cu.cuLaunchKernel(*arguments))

    def _replay(self, graph: Any) -> None:
        checked(self.cu.cuGraphLaunch(graph, self.device.stream))

    def _between(self, run: Any) -> float:
        start, end = self.events
        checked(self.cu.cuEventRecord(start, self.device.stream))
        run()
        checked(self.cu.cuEventRecord(end, self.device.stream))
        self.device.synchronize()
        return checked(self.cu.cuEventElapsedTime(start, end)) * 1e-3

    def _graph(self, ready: list[tuple], copies: int) -> Any:
        cu = self.cu
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(cu.cuStreamBeginCapture(self.device.stream, mode))
        for _ in range(copies):
            self._launch(ready)
        graph = checked(cu.cuStreamEndCapture(self.device.stream))
        instance = checked(cu.cuGraphInstantiate(graph, 0))
        checked(cu.cuGraphDestroy(graph))
        return instance
