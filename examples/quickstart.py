"""One convolution: optimise it, build it, run it, compare it with the reference."""

import numpy as np

import tilewright as tw
from tilewright.ops.reference import reference

op = tw.conv2d(c=64, h=56, w=56, k=64, r=3, s=3, pad=1, bias=True, activation='relu')
plan = tw.optimize(op)

random = np.random.default_rng(0)
x = random.standard_normal((1, 64, 56, 56), np.float32)
weights = random.standard_normal((64, 64, 3, 3), np.float32)
bias = random.standard_normal(64, np.float32)
conv = plan.build(weights=weights, bias=bias)
y = conv(x)

want = reference(op, {'In': x, 'Ker': weights, 'Bias': bias})
print(f'{plan.best.time_ms:.3f} ms, bound {plan.algorithm_bound_ms:.3f} ms')
print(f'largest error {np.abs(y - want).max() / np.abs(want).max():.1e} of the largest output')
