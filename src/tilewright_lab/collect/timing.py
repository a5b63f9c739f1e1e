"""Times of GPU calls by replays of a CUDA graph, as short as they can be trusted.

Arguments are prepared once for a call, and a graph holds as many copies as make up `TARGET_S`; a
call that takes long needs no graph. The figure is the median of three runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tilewright.runtime.gpu.cuda import CudaDevice, checked
from tilewright.runtime.gpu.cuda_graph import captured, stopwatch
from tilewright.runtime.gpu.device import Call

TARGET_S = 250e-6
COPIES = (2, 24)
REPLAYS = 3
LONG_S = 1e-3  # calls from here on are timed one by one: launching is nothing beside them


class GraphTimer:
    """Seconds of calls on one device.

    busy   every sample is the second of two replays, queued while the first one runs: a host whose
           cores compile may be slow to start a replay, and that must not be measured
    """

    def __init__(self, device: CudaDevice, busy: bool = False) -> None:
        self.device, self.busy = device, busy

    def __call__(self, calls: Sequence[Call]) -> float:
        """The calls have run before: their first run is not timed here."""
        cu, stream = self.device.cu, self.device.stream
        ready = [self.device.prepare(call) for call in calls]

        def once() -> None:
            for launch in ready:
                checked(cu.cuLaunchKernel(*launch.arguments))

        with stopwatch(cu, checked, stream) as seconds:
            alone = seconds(once)
            if alone > LONG_S:
                return statistics.median([alone, *(seconds(once) for _ in range(REPLAYS - 1))])
            copies = round(min(max(TARGET_S / max(alone, 1e-9), COPIES[0]), COPIES[1]))
            with captured(cu, checked, stream, ready, copies) as replay:
                samples = []
                for number in range(REPLAYS):
                    if self.busy or number == 0:
                        replay()
                    samples.append(seconds(replay) / copies)
                return statistics.median(samples)
