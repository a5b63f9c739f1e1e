"""TVM as a contestant: MetaSchedule tunes the layer, and its schedules are kept on disk.

Goes in: a `Job` whose options say how many trials to make and where tuned schedules are kept.
Comes out: `Variant`. Settings as documented for MetaSchedule on a CPU: target llvm with this host's
`mcpu` and the threads as `num-cores`, evolutionary search with the xgboost cost model, batches of
64.

A layer is tuned once for each (layer, target, trials, versions): MetaSchedule's own JSON database
is kept, with the seconds that the search took. The database holds traces of schedules, no code.
Runs only in TVM's own environment (tvm_environment.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from tilewright import knobs
from tilewright.errors import InputError
from tilewright.ops.convolution import Convolution
from tilewright.ops.pointwise import LEAKY_SLOPE
from tilewright.ops.windows import axis_names
from tilewright_lab.peers.contestants import Job, Variant

BATCH = 64
SEED = 0
# Workers of the search first load every tensor intrinsic that TVM knows, which takes more than the
# usual 30 s on some machines: every build would then count as hung.
WORKER_LIMIT_S = 180.0
_DONE = 'done.json'


def tuned(job: Job) -> Variant:
    """[Job] -> [Variant]: schedules from disk or from a search, then compiled."""
    tvm: Any = import_module('tvm')
    schedule: Any = import_module('tvm.s_tir.meta_schedule')

    trials, folder = int(job.options['trials']), Path(job.options['cache'])
    target = tvm.target.Target(target_of(job.threads))
    function = workload(job.conv, job.out.shape)
    kept = folder / key_of(job.group.label, target_of(job.threads), trials)
    done = kept / _DONE
    if not done.is_file():
        _tune(schedule, function, target, trials, kept, job)
    tuning_s = json.loads(done.read_text())['tuning_s']
    database = schedule.database.JSONDatabase(work_dir=str(kept))
    chosen = schedule.tir_integration.compile_tir(database, function, target)
    if chosen is None:
        raise RuntimeError(f'none of {trials} trials worked; ask for more with --tvm-trials')
    main = tvm.compile(chosen.mod, target)['main']
    names = ('In', 'Ker', 'Bias')
    arrays = [job.arrays[name] for name in names if name in job.arrays]
    tensors = [tvm.runtime.from_dlpack(array) for array in (*arrays, job.out)]
    return Variant(
        job,
        lambda: main(*tensors),
        lambda: job.out,
        lambda: f'metaschedule_{trials}_trials',
        tuning_s,
    )


def target_of(threads: int) -> dict[str, Any]:
    """This host's processor, as LLVM names it, and the threads that a kernel may use.

    Held to AVX2, it is the first one that had it.
    """
    codegen: Any = import_module('tvm.target.codegen')
    held = knobs.get('isa') == 'avx2'

    return {
        'kind': 'llvm',
        'mcpu': 'haswell' if held else codegen.llvm_get_system_cpu(),
        'mtriple': codegen.llvm_get_system_triple(),
        'num-cores': threads,
    }


def key_of(label: str, target: dict[str, Any], trials: int) -> str:
    """The name under which tuned schedules are kept: all that they depend on."""
    versions = {name: import_module(name).__version__ for name in ('tvm', 'xgboost')}
    facts = {'label': label, 'target': target, 'trials': trials, 'seed': SEED, **versions}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def workload(conv: Convolution, shape: tuple[int, ...]) -> Any:
    """The layer by its definition, NCHW in and out, as TVM's tensor expressions.

    Out[n,k,h,w] = sum of In[n, g*Cg + c, h*sh + r*dh - pt, w*sw + s*dw - pl] * Ker[k,c,r,s]
    """
    if conv.transposed:
        raise InputError(f'{conv.label}: TVM is given convolutions, none transposed; leave it out')
    te: Any = import_module('tvm.te')
    topi: Any = import_module('tvm.topi')

    per_group, outputs_per_group = conv.c // conv.groups, conv.k // conv.groups
    image = te.placeholder((conv.n, conv.c, *conv.size), 'float32', name='In')
    filters = te.placeholder((conv.k, per_group, *conv.taps), 'float32', name='Ker')
    before, after = conv.pad[: conv.rank], conv.pad[conv.rank :]
    padded = image
    if any(conv.pad):
        padded = topi.nn.pad(image, [0, 0, *before], [0, 0, *after], name='padded')
    c = te.reduce_axis((0, per_group), name='c')
    names = axis_names(conv.rank)[1]
    taps = [te.reduce_axis((0, t), name=d) for d, t in zip(names, conv.taps, strict=True)]

    def product(n: Any, k: Any, *place: Any) -> Any:
        channel = c if conv.groups == 1 else k // outputs_per_group * per_group + c
        axes = zip(place, conv.stride, taps, conv.dilation, strict=True)
        value = padded[(n, channel, *(h * s + r * d for h, s, r, d in axes))]
        return te.sum(value * filters[(k, c, *taps)], axis=[c, *taps])

    out = te.compute(shape, product, name='conv')
    arguments = [image, filters]
    if conv.bias:
        bias = te.placeholder((conv.k,), 'float32', name='Bias')
        arguments.append(bias)
        sums = out
        out = te.compute(shape, lambda n, k, *at: sums[(n, k, *at)] + bias[k], name='biased')
    after = {
        None: lambda y: y,
        'relu': topi.nn.relu,
        'relu6': lambda y: topi.clip(y, 0.0, 6.0),
        'leaky_relu': lambda y: topi.nn.leaky_relu(y, LEAKY_SLOPE),
        'sigmoid': topi.sigmoid,
        'tanh': topi.tanh,
        'silu': lambda y: topi.multiply(y, topi.sigmoid(y)),
    }[conv.activation]
    return te.create_prim_func([*arguments, after(out)])


def _tune(schedule: Any, function: Any, target: Any, trials: int, kept: Path, job: Job) -> None:
    """Search into `kept`; it counts only when `done.json` is there, written last."""
    utils: Any = import_module('tvm.ir.utils')
    measured = 0

    class Report(schedule.measure_callback.PyMeasureCallback):
        def apply(self, *arguments: Any) -> None:
            nonlocal measured
            measured += len(arguments[2])  # the candidates of this batch
            job.progress(f'tuning tvm, {measured} of {trials} trials', measured, trials)

    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    job.progress(f'tuning tvm, 0 of {trials} trials', 0, trials)
    begin = time.monotonic()
    schedule.tune_tir(
        function,
        target,
        str(kept),
        trials,
        num_trials_per_iter=min(BATCH, trials),
        builder=schedule.builder.LocalBuilder(timeout_sec=WORKER_LIMIT_S),
        runner=schedule.runner.LocalRunner(timeout_sec=WORKER_LIMIT_S),
        cost_model='xgb',
        num_tuning_cores=len(os.sched_getaffinity(0)),
        seed=SEED,
        measure_callbacks=[
            *schedule.MeasureCallback.create('default'),
            utils.derived_object(Report)(),
        ],
    )
    facts = {'label': job.group.label, 'trials': trials, 'tuning_s': time.monotonic() - begin}
    scratch = kept / f'{_DONE}.part'
    scratch.write_text(json.dumps(facts))
    os.replace(scratch, kept / _DONE)
