"""Calls of a device that are recorded once and started together, again and again.

Goes in: calls in an order in which they may run, and for each the numbers of those it waits for.
Comes out: a `Recorded`. On CUDA it is one graph, whose branches run side by side; on OpenCL one
in-order stream that C queues (enqueue.c), kernels with their arguments bound; on the host a loop.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Sequence
from typing import Any

from tilewright.runtime.gpu.batch import opencl_batch
from tilewright.runtime.gpu.cuda import CudaDevice, checked
from tilewright.runtime.gpu.cuda_graph import Launch, capturing, stopwatch
from tilewright.runtime.gpu.device import Call, Device
from tilewright.runtime.gpu.opencl import OpenCLDevice

Waits = Sequence[Sequence[int]]
OVERLAPS = (9, 0)  # the compute capability from which a kernel starts while another one ends
OVERLAP = True


class Recorded(abc.ABC):
    """All calls as one."""

    @abc.abstractmethod
    def run(self) -> None:
        """Start them; they may run behind the caller's back until the device is synchronized."""

    @abc.abstractmethod
    def time(self, repeats: int, copies: int = 1) -> list[float]:
        """Seconds of one run, `repeats` times: each the mean of `copies` that follow each other."""


def recorded(device: Device, calls: Sequence[Call], waits: Waits | None = None) -> Recorded:
    """[Call] -> [Recorded]; without `waits` each call waits for the one before it."""
    if isinstance(device, CudaDevice):
        return _CudaGraph(device, calls, in_a_row(len(calls)) if waits is None else waits)
    if isinstance(device, OpenCLDevice):
        return _OpenCLStream(device, calls)
    return _Loop(device, calls)


def in_a_row(count: int) -> list[tuple[int, ...]]:
    """Every call waits for the one before it."""
    return [(number - 1,) if number else () for number in range(count)]


class _Loop(Recorded):
    def __init__(self, device: Device, calls: Sequence[Call]) -> None:
        self.device, self.calls = device, tuple(calls)

    def run(self) -> None:
        for call in self.calls:
            self.device.launch(call)

    def time(self, repeats: int, copies: int = 1) -> list[float]:
        return self.device.time(self.calls, repeats) if self.calls else [0.0] * repeats


class _OpenCLStream(Recorded):
    """Kernels of their own for every call, since arguments stay bound to a kernel."""

    def __init__(self, device: OpenCLDevice, calls: Sequence[Call]) -> None:
        self.device, self.calls = device, tuple(calls)
        self.launches = device.bound(self.calls)
        self.functions = device.api.address('EnqueueNDRangeKernel'), device.api.address('Finish')
        self.plain = [(kernel.value, whole, block) for kernel, whole, block in self.launches]

    def run(self) -> None:
        if self.plain:
            opencl_batch(self.functions, self.device.queue.value, self.plain, 1)

    def time(self, repeats: int, copies: int = 1) -> list[float]:
        return self.device.time(self.calls, repeats) if self.calls else [0.0] * repeats


class _CudaGraph(Recorded):
    """A graph of kernel nodes with the edges that the memory they touch asks for.

    From Hopper on a kernel of ours may start while the one before it ends: its blocks are placed,
    then wait (`GRID_BEGINS` of the CUDA dialect), and starting up costs no time of its own.
    """

    def __init__(self, device: CudaDevice, calls: Sequence[Call], waits: Waits) -> None:
        self.device, cu = device, device.cu
        launches = [device.prepare(call) for call in calls]
        graph = checked(cu.cuGraphCreate(0))
        try:
            nodes: list[Any] = []
            for launch, earlier in zip(launches, waits, strict=True):
                early = [n for n in earlier if self._overlaps(launches[n], launch)]
                before = [nodes[n] for n in earlier if n not in early]
                nodes.append(self._added(graph, before, launch))
                self._tie(graph, [nodes[n] for n in early], nodes[-1])
            self.instance = checked(cu.cuGraphInstantiate(graph, 0))
        finally:
            checked(cu.cuGraphDestroy(graph))
        self._close = weakref.finalize(self, cu.cuGraphExecDestroy, self.instance)
        self._close.atexit = False  # the driver may have ended before we do

    def _overlaps(self, first: Launch, second: Launch) -> bool:
        """Whether the second may start before the first has ended: both are plain kernels."""
        plain = not any(one.run or one.together for one in (first, second))
        return OVERLAP and plain and self.device.machine.capability >= OVERLAPS

    def _tie(self, graph: Any, early: Sequence[Any], node: Any) -> None:
        """Edges from kernels that end while this one starts."""
        cu = self.device.cu
        for one in early:
            edge = cu.CUgraphEdgeData()
            edge.type = cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
            edge.from_port = cu.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
            made = cu.cuGraphAddDependencies(graph, [one], [node], [edge], 1)
            checked(made, ' while a graph was made')

    def _added(self, graph: Any, before: Sequence[Any], launch: Launch) -> Any:
        """The node of one launch; what a library starts is captured as a graph inside."""
        cu, doing = self.device.cu, ' while a graph was made'
        if launch.run is None:
            node = cu.cuGraphAddKernelNode(graph, before, len(before), _node(cu, launch))
            return checked(node, doing)
        launch.run()  # the first call loads code, which no capture may
        self.device.synchronize()
        with capturing(cu, checked, self.device.stream, (launch,), 1) as inside:
            return checked(cu.cuGraphAddChildGraphNode(graph, before, len(before), inside), doing)

    def run(self) -> None:
        checked(self.device.cu.cuGraphLaunch(self.instance, self.device.stream))

    def time(self, repeats: int, copies: int = 1) -> list[float]:
        def several() -> None:
            for _ in range(copies):
                self.run()

        with stopwatch(self.device.cu, checked, self.device.stream) as seconds:
            return [seconds(several) / copies for _ in range(repeats)]


def _node(cu: Any, launch: Launch) -> Any:
    """The parameters of a kernel node; the graph copies the arguments that they point to."""
    function, gx, gy, gz, bx, by, bz, shared, _, table, _ = launch.arguments
    made = cu.CUDA_KERNEL_NODE_PARAMS()
    made.func = function
    made.gridDimX, made.gridDimY, made.gridDimZ = gx, gy, gz
    made.blockDimX, made.blockDimY, made.blockDimZ = bx, by, bz
    made.sharedMemBytes = shared
    made.kernelParams = table
    return made
