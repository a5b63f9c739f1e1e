"""Training steps of DeepCuts' networks on a GPU beside PyTorch: checked, then timed in turns.

    python -m tilewright_lab.scripts.gpu_training resnet50 --batch 16 --json training.json
    python -m tilewright_lab.scripts.gpu_training --list          the workloads and their batches
    python -m tilewright_lab.scripts.gpu_training resnet50 --plan h200 [--build]    no GPU: what is
        predicted; NVRTC compiles all kernels

A step is forward, loss, backward and SGD with momentum, in fp32 with TF32 off. Either side is one
CUDA graph whose data, parameters and momenta stay on the device. Before anything is timed, the loss
and the gradients (momenta after one step from zero) are compared with PyTorch's in float64, and
PyTorch's own in float32 with them (`TIMES_THEIRS`; --no-check leaves that out). Dropout drops
nothing on either side. --turn FILE locks a file while the GPU is used; with --ahead h200 schedules
are chosen and kernels compiled before that, so that several processes may do so meanwhile
(gpu_training_all.py starts them); --fill does only that, and has Inductor compile its step as well.
--inductor-from FILE takes Inductor's time of a workload from the table of an earlier run on such a
machine, which the row says, with PyTorch's time of that run beside this one's.
A JSON file holds one row for each workload and way of tuning:
rows that are there and complete are not measured again (--again does), and a row says how far it
got, and what went wrong.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import json
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tilewright as tw
from tilewright import zoo
from tilewright.cli.output import versions
from tilewright.graph.training import TrainedGraph, step_program
from tilewright.importers.torch import import_training
from tilewright.network.training import GPU_LIMIT, TrainingStep
from tilewright.ops.group import Group
from tilewright.runtime.gpu.recorded import recorded
from tilewright_lab.compare.on_paper import as_driver_says, on_paper
from tilewright_lab.peers.torch_graph import replayed, torch_on_gpu

# Batches of the training workloads; `image` of networks of words is their length.
BATCHES = {
    'resnet50': (16, 64), 'densenet121': (16, 64), 'inception_v3': (16, 64),
    'mobilenet_v2': (16, 64), 'deepspeech2': (8, 32), 'attention_rnn': (16, 64),
    'dlrm': (128, 2048), 'bert_base': (4, 16),
}  # fmt: skip
SIZES = {'dlrm': 100_000}
RATE, MOMENTUM = 1e-4, 0.9
# Our error of gradients against float64 is right if it is small, or at most so many times PyTorch's
# own: products by matrix units (3xTF32) have about twice the error of multiply-adds in fp32.
SMALL_ERROR, TIMES_THEIRS = 1e-5, 2.5
SMALL_CHANGE = 1e-4  # of the loss after a step
LISTED = 40  # tasks that a profile prints


class Workload:
    """A network in training mode, its inputs and what is expected of it, all on the host."""

    def __init__(self, name: str, batch: int, small: bool = False) -> None:
        sizes = zoo.SMALL[name] if small else {'image': SIZES[name]} if name in SIZES else {}
        self.name, self.batch = name, batch
        self.module = zoo.torch_module(name, batch=batch, **sizes).train().requires_grad_(True)
        for layer in self.module.modules():
            if isinstance(layer, torch.nn.Dropout):
                layer.p = 0.0  # masks are drawn otherwise than PyTorch's, and could not be compared
        given = zoo.inputs(zoo.network(name, batch=batch, **sizes))
        self.inputs = [torch.from_numpy(array) for array in given.values()]
        torch.manual_seed(0)
        self.scores = self._scores()
        images = name in zoo.NAMES
        self.loss: Callable = torch.nn.functional.cross_entropy if images else _squares
        self.target = (
            torch.randint(0, self.scores.shape[1], (batch,)) if images
            else torch.randn(self.scores.shape)
        )  # fmt: skip

    def imported(self) -> TrainedGraph:
        return import_training(self.module, self.loss, (*self.inputs, self.target))

    def _scores(self) -> Any:
        """What the network returns, without its numbers if possible: its shape is asked for."""
        module = copy.deepcopy(self.module)
        with torch.no_grad():
            try:
                found = copy.deepcopy(module).to('meta')(*(x.to('meta') for x in self.inputs))
            except RuntimeError:  # an operator that PyTorch has no shape function for
                found = module(*self.inputs)
        return found[0] if isinstance(found, tuple) else found


def _squares(scores: Any, target: Any) -> Any:
    first = scores[0] if isinstance(scores, tuple) else scores
    return torch.nn.functional.mse_loss(first, target)


class Theirs:
    """PyTorch's step on a device; `compiled`: forward, loss, backward and updates by Inductor."""

    def __init__(
        self, workload: Workload, device: str, compiled: bool = False,
        dtype: torch.dtype = torch.float32, change: float = 0.0,
    ) -> None:  # fmt: skip
        def there(x: Any) -> Any:
            return (x * (1 + change)).to(device, dtype) if x.is_floating_point() else x.to(device)

        self.module = copy.deepcopy(workload.module).to(device, dtype)
        self.inputs = [there(x) for x in workload.inputs]
        self.target, self.loss = there(workload.target), workload.loss
        fused = device == 'cuda' and not compiled  # one kernel for all updates: the fastest there
        self.optimizer = torch.optim.SGD(self.module.parameters(), RATE, MOMENTUM, fused=fused)
        self.forward, self.update = self._forward, self.optimizer.step
        if compiled:
            self.forward, self.update = torch.compile(self._forward), torch.compile(self.update)

    def _forward(self) -> Any:
        return self.loss(self.module(*self.inputs), self.target)

    def __call__(self) -> Any:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward()
        loss.backward()
        self.update()
        return loss.detach()

    def gradients(self) -> dict[str, np.ndarray]:
        """Of the last step."""
        named = self.module.named_parameters()
        return {name: p.grad.double().cpu().numpy() for name, p in named if p.grad is not None}


def checked(step: TrainingStep, workload: Workload, device: str) -> dict:
    """Losses of two steps and gradients of the first beside PyTorch's in float64; its own in
    float32 as well.

    Networks that amplify roundings are told from wrong ones by PyTorch's error in float32, with the
    inputs as they are and changed in their last bit.
    """
    exact = Theirs(workload, device, dtype=torch.float64)
    want_loss, want, want_next = float(exact()), exact.gradients(), float(exact())
    del exact
    given = [x.numpy() for x in (*workload.inputs, workload.target)]
    ours, state = float(step(*given)), step.arrays()
    following = {'ours': float(step(*given)), 'float64': want_next}
    found = {name: state[f'{name}/momentum_buffer'].reshape(w.shape) for name, w in want.items()}
    errors = {'ours': _errors(found, want)}
    losses = {'ours': ours, 'float64': want_loss}
    for name, change in (('torch', 0.0), ('torch_nudged', 2.0**-23)):
        theirs = Theirs(workload, device, change=change)
        losses[name] = float(theirs())
        errors[name] = _errors(theirs.gradients(), want)
        following[name] = float(theirs())
        del theirs
    whole = {name: one.pop('') for name, one in errors.items()}
    typical = {name: statistics.median(one.values()) for name, one in errors.items()}
    off, off_next = (
        {n: abs(loss - one['float64']) / max(abs(one['float64']), 1e-12) for n, loss in one.items()}
        for one in (losses, following)
    )
    own = errors['ours']
    worst = sorted(own, key=lambda name: -own[name])[:5]
    return {
        'losses': losses, 'following_losses': following, 'loss_error': off['ours'],
        'gradient_errors': whole,
        'typical_errors': typical,
        'worst': {name: {n: one[name] for n, one in errors.items()} for name in worst},
        'right': all(map(_is_as_good, (off, whole, typical)))
        and _is_as_good(off_next, SMALL_CHANGE),
    }  # fmt: skip


def _errors(found: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The length of the difference over that of the gradient, of each parameter and of all ('')."""
    apart = {name: float(np.linalg.norm(found[name] - w)) for name, w in want.items()}
    length = {name: float(np.linalg.norm(w)) for name, w in want.items()}
    every = math.hypot(*apart.values()) / max(math.hypot(*length.values()), 1e-30)
    return {'': every, **{name: apart[name] / max(length[name], 1e-30) for name in want}}


def _is_as_good(errors: Mapping[str, float], small: float = SMALL_ERROR) -> bool:
    """Whether our error is small, or about as large as PyTorch's."""
    theirs = max(errors['torch'], errors['torch_nudged'])
    return errors['ours'] <= max(TIMES_THEIRS * theirs, small)


def profiled(step: TrainingStep, repeats: int = 3) -> list[dict]:
    """Every task alone, those of one kind together, the longest first."""
    net: Any = step.network
    found: dict[str, dict] = {}
    for task in net.gpu_tasks:
        seconds = statistics.median(net.device.time(task.calls, repeats))
        _add(found, task, task.name, task.group, seconds)
    return sorted(found.values(), key=lambda row: -row['us'])


def print_tasks(rows: list[dict]) -> None:
    for row in rows[:LISTED]:
        print(
            f'{row["us"]:9.1f} us x{row["count"]:<3d} predicted {row["predicted_us"]:9.1f} bound '
            f'{row["bound_us"]:8.1f} {row["schema"]:10s} {row["intrinsic"]:12s} {row["first"]} | '
            f'{row["label"][:90]}'
        )


def planned(given: argparse.Namespace, batch: int) -> None:
    """The tasks of a step on a GPU that is not here, their schedules and predicted times."""
    begin = time.process_time()

    def say(text: str) -> None:
        print(f'{text} after {time.process_time() - begin:.1f} s of this process', flush=True)

    workload = Workload(given.network, batch, given.small)
    trained = workload.imported()
    say('imported')
    program, _ = step_program(trained, tw.SGD(RATE, MOMENTUM))
    say(f'{len(program.tasks)} tasks')
    net, paper = on_paper(program, as_driver_says(given.plan), given.max_rel_err)
    say(
        f'{len(net.gpu_tasks)} tasks, {len(net.calls)} kernels, {len(paper.kernels)} distinct, '
        f'{len(net.launches[0])} launches, {net.arena_bytes / 2**20:.0f} MB, '
        f'{len(net.carried)} in place'
    )
    rows: dict[str, dict] = {}
    for task in net.gpu_tasks:
        _add(rows, task, task.name, task.group, task.predicted_s)
    ordered = sorted(rows.values(), key=lambda row: -row['us'])
    total = Counter[str]()
    for row in ordered:
        total[f'{row["schema"]} {row["intrinsic"]}'] += row['us']
    print(f'predicted one by one: {sum(total.values()):.0f} us')
    for kind, us in total.most_common():
        print(f'{us:10.0f} us {kind}')
    print_tasks(ordered)
    if given.build:
        made = paper.built()
        spilling = [k.name for k, (_, found) in made.items() if found.spill_bytes]
        say(f'NVRTC compiled {len(made)} kernels, {len(spilling)} of them spill')


def _add(rows: dict[str, dict], task: Any, name: str, group: Group, seconds: float) -> None:
    """Count a task among those of its group and schedule."""
    row = rows.setdefault(
        f'{group.digest} {task.schedule.digest}',
        {'us': 0.0, 'count': 0, 'predicted_us': 0.0, 'bound_us': 0.0, 'first': name,
         'label': group.label, 'schema': task.schedule.schema,
         'intrinsic': task.schedule.intrinsic},
    )  # fmt: skip
    row['us'] += 1e6 * seconds
    row['count'] += 1
    row['predicted_us'] += 1e6 * task.predicted_s
    row['bound_us'] += 1e6 * task.bound_s


class Journal:
    """Rows by name in a file that is written after every stage."""

    def __init__(self, path: Path | None, key: str) -> None:
        self.path, self.key, self.begin = path, key, time.perf_counter()
        self.rows = self._read()

    def _read(self) -> dict[str, dict]:
        if self.path is None or not self.path.exists():
            return {}
        return json.loads(self.path.read_text())['rows']

    @property
    def done(self) -> bool:
        return self.rows.get(self.key, {}).get('stage') == 'timed'

    def put(self, stage: str, **found: Any) -> None:
        seconds = round(time.perf_counter() - self.begin, 1)
        row = self.rows.setdefault(self.key, {})
        row |= {'stage': stage, **found}
        row.setdefault('stages_s', {})[stage] = seconds
        print(f'{self.key}: {stage} after {seconds} s', flush=True)
        if self.path is not None:
            with _turn(self.path.with_suffix('.lock')):  # other processes have rows of their own
                self.rows = self._read() | {self.key: row}
                said = {'versions': versions(), 'rows': self.rows}
                fresh = self.path.with_suffix(f'.{os.getpid()}')
                fresh.write_text(json.dumps(said, indent=1) + '\n')
                fresh.replace(self.path)  # whole, for those who read it meanwhile


def run(given: argparse.Namespace, batch: int) -> None:
    key = f'{given.network}-b{batch}-{given.tune}-{given.libraries}'
    if given.max_rel_err != GPU_LIMIT:
        key += f'-{given.max_rel_err:g}'
    journal = Journal(given.json, key)
    if journal.done and not given.again:
        print(f'{key}: measured already')
        return
    if not given.no_check:  # what was checked before stays
        journal.rows.pop(key, None)
    try:
        _measured(given, journal, key, batch)
    except Exception as error:
        journal.put('failed', error=f'{type(error).__name__}: {error}')
        raise


def _measured(given: argparse.Namespace, journal: Journal, key: str, batch: int) -> None:
    workload = Workload(given.network, batch, given.small)
    journal.put('drawn', network=given.network, batch=batch)
    trained, rule = workload.imported(), tw.SGD(RATE, MOMENTUM)
    journal.put('imported')
    if given.ahead:
        program, _ = step_program(trained, rule)
        on_paper(program, as_driver_says(given.ahead), given.max_rel_err)[1].built()
        journal.put('prepared')
    if given.fill:
        torch_on_gpu()
        torch.set_grad_enabled(True)
        _inductor(workload)
        journal.put('filled')
        return
    with _turn(given.turn):
        journal.put('begins')
        options = {
            'target': given.target, 'tune': given.tune, 'libraries': given.libraries,
            'max_rel_err': given.max_rel_err,
        }  # fmt: skip
        step = TrainingStep(trained, rule, False, options)
        net: Any = step.network
        schemas = Counter(task.schedule.schema for task in net.gpu_tasks)
        journal.put(
            'compiled', tasks=len(net.gpu_tasks), kernels=len(net.calls),
            launches=len(net.launches[0]), schemas=dict(schemas),
            arena_mb=net.arena_bytes / 2**20, in_place=len(net.carried),
            predicted_us=1e6 * sum(task.predicted_s for task in net.gpu_tasks),
        )  # fmt: skip
        if given.target == 'cuda':
            torch_on_gpu()
            torch.set_grad_enabled(True)
        _compared(given, journal, key, workload, step)


@contextmanager
def _turn(path: Path | None) -> Iterator[None]:
    """Alone among the processes that name the same file."""
    if path is None:
        yield
        return
    with path.open('a') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compared(
    given: argparse.Namespace, journal: Journal, key: str, workload: Workload, step: TrainingStep
) -> None:
    """Checked, then timed in turns."""
    net: Any = step.network
    on_gpu = given.target == 'cuda'
    if not given.no_check:
        verdict = checked(step, workload, 'cuda' if on_gpu else 'cpu')
        journal.put('checked', **verdict)
        print(f'losses {verdict["losses"]}, gradients off by {verdict["gradient_errors"]}')
    if not on_gpu:
        return
    step(*(x.numpy() for x in (*workload.inputs, workload.target)))  # data, also if unchecked
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    timers: dict[str, Callable[[int], list[float]]] = {
        'ours': partial(net.time_again, copies=given.copies)
    }
    theirs = Theirs(workload, 'cuda')
    timers['torch'] = replayed(torch, 'torch', theirs, {}, 1, given.copies).time
    if given.inductor:
        begin = time.perf_counter()
        try:
            quick = _inductor(workload)
            timers['inductor'] = replayed(torch, 'inductor', quick, {}, 1, given.copies).time
            journal.put('inductor', inductor_s=time.perf_counter() - begin)
        except Exception as error:  # whatever it raises: the others are timed
            journal.put('inductor', inductor_error=f'{type(error).__name__}: {error}'[:500])
    journal.put('captured', torch_mb=torch.cuda.max_memory_allocated() / 2**20)
    samples: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(given.rounds):
        for name, timer in timers.items():
            samples[name] += timer(3)
    earlier = _earlier(given, workload.batch) if 'inductor' not in samples else {}
    journal.put('timed', **_ratios(samples, earlier.get('inductor')),
                **({'earlier_us': earlier} if earlier else {}))  # fmt: skip
    row = journal.rows[key]
    print(f'{key}: {row["us"]}, ratio {row["ratio"]:.3f}, right: {row.get("right")}', flush=True)
    if given.profile:
        rows = profiled(step)
        alone = recorded(net.device, net.launches[0]).time(5, given.copies)
        journal.put('timed', profile=rows, in_a_row_us=1e6 * statistics.median(alone))
        print(f'kernels in a row: {journal.rows[key]["in_a_row_us"]:.0f} us')
        print(f'tasks one by one: {sum(r["us"] for r in rows):.0f} us')
        print_tasks(rows)


def _inductor(workload: Workload) -> Theirs:
    """Inductor's step, compiled."""
    theirs = Theirs(workload, 'cuda', compiled=True)
    for _ in range(2):  # the second finds gradients and momenta, which is compiled anew
        theirs()
    return theirs


def _earlier(given: argparse.Namespace, batch: int) -> dict[str, float]:
    """Medians of the same workload in the table of an earlier run, if there is one."""
    if given.inductor_from is None:
        return {}
    rows = json.loads(given.inductor_from.read_text())['rows']
    return rows.get(f'{given.network}-b{batch}-model-none', {}).get('us', {})


def _ratios(samples: Mapping[str, list[float]], inductor: float | None = None) -> dict:
    """Medians, and the best of the others over ours."""
    us = {name: round(1e6 * statistics.median(found), 1) for name, found in samples.items()}
    us |= {} if inductor is None else {'inductor': inductor}
    best = min(value for name, value in us.items() if name != 'ours')
    kept = {name: [1e6 * s for s in found] for name, found in samples.items()}
    return {'us': us, 'ratio': best / us['ours'], 'samples_us': kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n')[0])
    parser.add_argument('network', nargs='?', choices=list(BATCHES))
    parser.add_argument('--batch', type=int, help='default: the smaller of its two')
    parser.add_argument('--json', type=Path)
    parser.add_argument('--tune', default='model', choices=['model', 'measure'])
    parser.add_argument('--libraries', default='none', choices=['none', 'auto', 'only'])
    parser.add_argument('--target', default='cuda', choices=['cuda', 'opencl', 'host'])
    parser.add_argument('--max-rel-err', type=float, default=GPU_LIMIT)
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--copies', type=int, default=3, help='steps in one sample')
    parser.add_argument('--inductor', action='store_true', help='torch.compile takes part')
    parser.add_argument('--inductor-from', type=Path, metavar='FILE')
    parser.add_argument('--fill', action='store_true',
                        help='compile only, by us with --ahead, and by Inductor')  # fmt: skip
    parser.add_argument('--profile', action='store_true', help='time every task by itself')
    parser.add_argument('--small', action='store_true', help='the same structure with small layers')
    parser.add_argument('--plan', metavar='GPU', help='predict for this GPU, run nothing')
    parser.add_argument('--build', action='store_true', help='compile what was planned')
    parser.add_argument('--again', action='store_true')
    parser.add_argument('--list', action='store_true')
    parser.add_argument('--no-check', action='store_true', help='compare no gradients')
    parser.add_argument('--turn', type=Path, help='a file that is locked while the GPU is used')
    parser.add_argument('--ahead', metavar='GPU',
                        help='choose and compile for this GPU before it is opened')  # fmt: skip
    given = parser.parse_args()
    if given.list or given.network is None:
        for name, batches in BATCHES.items():
            print(name, *batches)
        return
    (planned if given.plan else run)(given, given.batch or BATCHES[given.network][0])


if __name__ == '__main__':
    main()
