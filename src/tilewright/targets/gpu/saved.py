"""`.tw` files of networks on a GPU: schedules and weights, no code; loaded without a search.

Goes in: a program and the choice for each of its groups. Comes out: a file (store/network_file.py),
and from it a network. Kernels are generated and compiled anew where they are loaded, and found in
the cache the next time (code.py). Schedules are for the GPU that they were chosen for; on another
one they are chosen again by the model.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

from tilewright.errors import InputError, ModelError
from tilewright.graph.program import Program
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.runtime.gpu.network import GpuNetwork
from tilewright.runtime.gpu.session import open_device
from tilewright.schedule.choice import Choice
from tilewright.store import network_file
from tilewright.store.network_file import SavedGpu
from tilewright.targets.gpu.assemble import KEPT, Report, bound, chosen_by_model
from tilewright.targets.gpu.choose import is_legal


def save(
    path: str | os.PathLike[str],
    program: Program,
    choices: Mapping[str, Choice],
    machine: GpuMachine,
    target: str,
    max_rel_err: float,
    algorithm: str = 'auto',
) -> None:
    """Write a network as a file."""
    said = {digest: choice.to_json() for digest, choice in choices.items()}
    network_file.write_gpu(
        path, SavedGpu(program, said, machine, target, float(max_rel_err), algorithm)
    )


def load(
    path: str | os.PathLike[str],
    target: str | None = None,
    name: str = '',
    progress: Report | None = None,
) -> GpuNetwork:
    """The network of a file, on the device of its target, by a part of its name.

    A `target` that is given has to be that of the file.
    """
    saved = network_file.read_gpu(path)
    if target is not None and target != saved.target:
        raise InputError(
            f'{path} was compiled for target {saved.target!r}, not for {target!r}; compile the '
            f'model again with it'
        )
    device = open_device(saved.target, name)
    groups = {task.group.digest: task.group for task in saved.program.tasks}
    if device.machine.to_json() == saved.machine.to_json():
        best = _legal(path, saved, groups)
    else:
        warnings.warn(
            f'{path} was compiled for {saved.machine.name}; schedules are chosen again for '
            f'{device.machine.name}',
            stacklevel=2,
        )
        found = chosen_by_model(
            groups, device.machine, KEPT, saved.max_rel_err, progress, algorithm=saved.algorithm
        )
        best = {digest: choices[0] for digest, choices in found.items()}
    return bound(saved.program, best, device, saved.max_rel_err, progress=progress)


def _legal(
    path: str | os.PathLike[str], saved: SavedGpu, groups: Mapping[str, Group]
) -> dict[str, Choice]:
    """The choices of a file, each of them one that can be generated for its group."""
    best = {}
    for digest, group in groups.items():
        try:
            best[digest] = Choice.from_json(saved.choices[digest])
            fits = is_legal(group, best[digest].schedule, saved.machine)
        except (InputError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(f'{path} cannot be used: {error}') from None
        if not fits:
            raise ModelError(f'{path} cannot be used: its schedule for {group.label} is not legal')
    return best
