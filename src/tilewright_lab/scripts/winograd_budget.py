"""Does Winograd keep its error budget where nothing is measured? Random layers, run and compared.

    python -m tilewright_lab.scripts.winograd_budget [--layers 500] [--seed 1] [--json FILE]

Layers have random sizes, filters, strides and groups, and behind the convolution every activation
of `tw.conv2d` and what networks have there: functions that saturate, residuals, gates, norms,
steps. Weights and other operands are N(0, 1), images N(0, 1) or uniform in [0, 1). For each layer
two kernels are made without timing anything:

    chosen   what the ranking puts first
    limit    the shape of tiles whose predicted error comes nearest to the budget

and compared with the float64 reference; errors are shares of the largest output. Where no shape of
tiles is within the budget the layer is `refused`: the direct algorithm is what is left then.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.cli.output import versions
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.winograd.space import winograd_schedule
from tilewright.machine.compiler import build
from tilewright.machine.isa import best_isa
from tilewright.machine.machine import Machine
from tilewright.machine.measure import load_machine
from tilewright.ops.group import Group, Tensor
from tilewright.ops.pointwise import ACTIVATIONS, pointwise
from tilewright.ops.reference import reference
from tilewright.ops.stage import Access, Dim, Expr, call, const, read, var
from tilewright.ops.winograd import geometry, tile_of
from tilewright.ops.winograd_error import DEFAULT_LIMIT, predicted_error
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank_winograd import rank_winograd, tiles_within

X, Z = read(0), read(1)  # the convolution's result; another operand


def _between(x: Expr, low: float, high: float) -> Expr:
    return call('min', call('max', x, const(low)), const(high))


def _scaled(x: Expr, factor: float) -> Expr:
    return call('mul', x, const(factor))


_HARD = _between(call('add', _scaled(X, 1 / 6), const(0.5)), 0, 1)
_SOFT = call(
    'add', call('max', X, const(0)), call('log1p', call('exp', call('neg', call('abs', X))))
)
# name -> (expression, which other operand it has: '', one a 'channel', one a 'pixel')
EPILOGUES: dict[str, tuple[Expr, str]] = {
    **{name: (expr, '') for name, expr in ACTIVATIONS.items()},
    'plain': (X, ''),
    'clip': (_between(X, -1, 1), ''),
    'hard_sigmoid': (_HARD, ''),
    'hard_swish': (call('mul', X, _HARD), ''),
    'elu': (call('where', call('gt', X, const(0)), X, call('expm1', X)), ''),
    'softplus': (_SOFT, ''),
    'mish': (call('mul', X, call('tanh', _SOFT)), ''),
    'gelu': (
        _scaled(call('mul', X, call('add', const(1), call('erf', _scaled(X, 0.5**0.5)))), 0.5), '',
    ),
    'softsign': (call('div', X, call('add', const(1), call('abs', X))), ''),
    'sine': (call('sin', X), ''),
    'square': (call('mul', X, X), ''),
    'root': (call('sqrt', call('max', X, const(0))), ''),
    'logarithm': (call('log1p', call('abs', X)), ''),
    'exponential': (call('exp', _scaled(X, 1 / 16)), ''),
    'rounded': (call('round', X), ''),
    'positive': (call('where', call('gt', X, const(0)), const(1), const(0)), ''),
    'residual': (call('add', X, Z), 'pixel'),
    'difference': (call('max', call('sub', Z, X), const(0)), 'pixel'),
    'residual_relu6': (_between(call('add', X, Z), 0, 6), 'pixel'),
    'gate_of_other': (call('mul', X, call('sigmoid', Z)), 'pixel'),
    'gate_of_result': (call('mul', Z, call('sigmoid', X)), 'pixel'),
    'smaller_of_both': (call('min', call('max', X, const(0)), Z), 'pixel'),
    'norm': (call('mul', X, Z), 'channel'),
    'small_norm': (_scaled(call('mul', X, Z), 1e-3), 'channel'),
    'norm_tanh': (call('tanh', call('mul', X, Z)), 'channel'),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer, what is behind it, and how its image is drawn."""

    group: Group
    epilogue: str
    image: str
    seed: int


def behind(group: Group, name: str) -> Group:
    """A convolution with an epilogue of the table behind it."""
    expr, other = EPILOGUES[name]
    out = group.output
    dims = tuple(Dim(d, size) for d, size in zip('nkhw', out.shape, strict=True))
    last = group.stages[-1]
    inner = replace(out, name='Before', role='inner')
    others, reads = [], []
    if other == 'channel':
        others, reads = [Tensor('Other', ('k',), out.shape[1:2], 'constant')], [
            Access('Other', (var('k'),))
        ]  # fmt: skip
    elif other == 'pixel':
        others = [Tensor('Other', out.dims, out.shape)]
        reads = [Access('Other', tuple(var(d.name) for d in dims))]
    kept = [inner if t.name == out.name else t for t in group.tensors]
    stages = (
        *group.stages[:-1],
        replace(last, write=replace(last.write, tensor='Before')),
        pointwise(name, dims, out.name, 'Before', expr, *reads),
    )
    return Group(
        f'{group.label}+{name}', (*kept, *others, out), stages,
        (*group.storage, ('Before', 'register')),
    )  # fmt: skip


def draw(count: int, seed: int, names: Sequence[str] = tuple(EPILOGUES)) -> Iterator[Layer]:
    """Random layers that Winograd applies to; every epilogue in turn."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        r, s = (int(rng.choice((1, 2, 3, 3, 3, 4, 5))) for _ in range(2))
        if r * s == 1:
            s = 3
        stride = int(rng.choice((1, 1, 1, 2)))
        groups = int(rng.choice((1, 1, 1, 2)))
        h, w = (int(rng.integers(r + 3, 33)) for _ in range(2))
        c, k = (groups * int(2 ** rng.uniform(0, most)) for most in (9, 6))
        pad = int(rng.integers(0, 2))
        conv = tw.conv2d(
            n=int(rng.choice((1, 1, 2))), c=c, h=h, w=w, k=k, r=r, s=s, stride=stride,
            pad=(pad * (r // 2), pad * (s // 2)), groups=groups if k > groups or c > groups else 1,
            bias=bool(rng.integers(0, 2)),
        )  # fmt: skip
        name = names[number % len(names)]
        image = 'normal' if rng.random() < 0.5 else 'uniform'
        yield Layer(behind(conv, name), name, image, int(rng.integers(2**31)))


def arrays_of(layer: Layer) -> dict[str, np.ndarray]:
    """Every input and constant of a layer."""
    rng = np.random.default_rng(layer.seed)
    return {
        t.name: (
            rng.random(t.shape)
            if t.name == 'In' and layer.image == 'uniform'
            else rng.standard_normal(t.shape)
        ).astype(np.float32)
        for t in layer.group.tensors
        if t.role in ('input', 'constant')
    }


def schedules(group: Group, machine: Machine, limit: float) -> dict[str, Schedule]:
    """What is tried of a layer: nothing where every shape of tiles is refused."""
    ranked = rank_winograd(group, machine, 1, 1, limit)
    if not ranked:
        return {}
    nearest = max(tiles_within(group, limit), key=lambda m: predicted_error(group, m))
    found = {'chosen': ranked[0].schedule}
    options = dict(found['chosen'].options)
    if (options['m'], options.get('mw', options['m'])) != tile_of(nearest):
        found['limit'] = winograd_schedule(group, best_isa(), nearest, 4, 1, 1, (1, 2, 4))
    return found


def errors(layer: Layer, tried: Mapping[str, Schedule]) -> dict[str, dict]:
    """The error of each schedule, predicted and as it is."""
    group, arrays = layer.group, arrays_of(layer)
    with np.errstate(all='ignore'):
        want = reference(group, arrays)
    largest = np.abs(want).max()
    found = {}
    for what, schedule in tried.items():
        options = dict(schedule.options)
        m = options['m'], options.get('mw', options['m'])
        made = Kernel.load(build(generate(group, schedule), compiler_flags(schedule)), group)
        out = np.empty(group.output.shape, np.float32)
        made.run(arrays, made.pack(arrays), out)
        error = float(np.abs(out - want).max() / largest) if largest else 0.0
        f = geometry(group, m).name
        found[what] = {'f': f, 'predicted': predicted_error(group, m), 'error': error}
    return found


def measured(layer: Layer, machine: Machine, limit: float) -> dict:
    """One layer for JSON; `within` is None where Winograd is refused."""
    tried = errors(layer, schedules(layer.group, machine, limit))
    worst = max((row['error'] for row in tried.values()), default=None)
    return {
        'layer': layer.group.label, 'epilogue': layer.epilogue, 'image': layer.image,
        'seed': layer.seed, 'kernels': tried,
        'within': None if worst is None else worst <= limit,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n')[0])
    parser.add_argument('--layers', type=int, default=500)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--max-rel-err', type=float, default=DEFAULT_LIMIT)
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    machine, _ = load_machine(measure=False)
    rows = []
    for layer in draw(given.layers, given.seed):
        row = measured(layer, machine, given.max_rel_err)
        rows.append(row)
        said = {True: 'within', False: 'BEYOND', None: 'refused'}[row['within']]
        shown = (f'{r["f"]} {r["predicted"]:.1e} {r["error"]:.1e}' for r in row['kernels'].values())
        print(f'{said:8} {row["layer"]}', *shown, flush=True)
    counts = {said: sum(r['within'] is said for r in rows) for said in (True, False, None)}
    result = {
        'seed': given.seed, 'max_rel_err': given.max_rel_err, 'layers': len(rows),
        'within': counts[True], 'beyond': counts[False], 'refused': counts[None],
        'versions': versions(), 'rows': rows,
    }  # fmt: skip
    print({k: v for k, v in result.items() if k not in ('rows', 'versions')})
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + '\n')
    sys.exit(bool(counts[False]))


if __name__ == '__main__':
    main()
