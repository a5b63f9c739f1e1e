"""PyTorch modules as graphs: every operator of the tables against PyTorch itself."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tilewright import zoo
from tilewright.errors import ModelError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.lower import lower
from tilewright.importers.torch import HANDLERS, import_torch

torch = pytest.importorskip('torch')
F = torch.nn.functional


class Several(torch.nn.Module):
    """Many functions of the same inputs, so that one export serves all."""

    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, *inputs):
        return tuple(function(*inputs) for function in self.functions)


def both(functions, *inputs):
    """What PyTorch computes, and what the imported graph does, by numpy."""
    module = Several(functions)
    graph = import_torch(module, example_inputs=inputs)
    arrays = {v.name: t.numpy() for v, t in zip(graph.inputs, inputs, strict=True)}
    got = evaluate(lower(graph), arrays)
    with torch.no_grad():
        want = module(*inputs)
    return [value.numpy() for value in want], list(got.values())


def check(functions, *inputs):
    want, got = both(functions, *inputs)
    assert len(want) == len(got) == len(functions)
    for number, (expected, found) in enumerate(zip(want, got, strict=True)):
        assert found.shape == expected.shape, number
        assert found.dtype == expected.dtype, number
        np.testing.assert_allclose(
            found.astype(np.float64), expected, rtol=2e-5, atol=2e-5, err_msg=f'function {number}'
        )


def tensor(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype('f4'))


def test_element_wise_operators():
    x = tensor(2, 3, 4)
    y = tensor(3, 1, seed=1)
    smooth = [
        torch.abs, torch.sigmoid, torch.tanh, torch.exp, torch.erf, torch.sin, torch.cos, torch.tan,
        torch.sinh, torch.cosh, torch.asinh, torch.atan, torch.neg, torch.sign, torch.floor,
        torch.ceil, torch.round, torch.trunc, torch.expm1, torch.relu, torch.square, torch.exp2,
        F.gelu, F.silu, F.hardswish, F.hardsigmoid, F.mish, F.elu, F.selu, F.celu, F.softplus,
        F.relu6, F.leaky_relu, F.logsigmoid, F.softsign, F.tanhshrink, F.hardshrink, F.softshrink,
        F.hardtanh, lambda x: F.threshold(x, 0.1, 20), lambda x: F.gelu(x, approximate='tanh'),
        lambda x: F.elu(x, 0.7), lambda x: x.clamp(-0.5), lambda x: x.clamp(max=0.3),
        lambda x: x.clamp(-0.5, 0.3), lambda x: x.pow(2), lambda x: x.abs().pow(1.3),
        lambda x: 2.0 ** x, lambda x: (x.abs() + 1).rsqrt(), lambda x: (x.abs() + 1).log1p(),
        lambda x: (x.abs() + 1).log(), lambda x: (x.abs() + 1).log2(), lambda x: x.abs().sqrt(),
        lambda x: (x.abs() + 1).log10(), lambda x: (x.abs() + 1).acosh(), lambda x: 1 / (x + 9),
        lambda x: x.tanh().asin(), lambda x: x.tanh().acos(), lambda x: (x.tanh() / 2).atanh(),
        lambda x: F.prelu(x, torch.tensor([0.3])), lambda x: x.isnan().float(), torch.isinf,
    ]  # fmt: skip
    check([lambda x, y, f=f: f(x) for f in smooth], x, y)
    pairs = [
        torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.lt, torch.le, torch.gt,
        torch.ge, torch.eq, torch.ne, lambda x, y: x / (y.abs() + 1), lambda x, y: x - 3 * y,
        lambda x, y: torch.add(x, y, alpha=2.5), lambda x, y: torch.where(x > y, x, 0.5),
        lambda x, y: torch.fmod(x, y.abs() + 0.5), lambda x, y: torch.remainder(x, y.abs() + 0.5),
        lambda x, y: torch.div(x, y.abs() + 0.1, rounding_mode='floor'),
        lambda x, y: torch.div(x, y.abs() + 0.1, rounding_mode='trunc'),
        lambda x, y: x.masked_fill(y > 0, 3.0), lambda x, y: x.clamp(y - 0.1, y + 0.1),
        lambda x, y: x.abs() ** y, lambda x, y: (x > 0) & (y > 0), lambda x, y: (x > 0) | (y > 0),
        lambda x, y: (x > 0) ^ (y > 0), lambda x, y: torch.logical_not(x > y),
        lambda x, y: torch.logical_and(x, y > 0), lambda x, y: ~(x > y), lambda x, y: 3 - y,
    ]  # fmt: skip
    check(pairs, x, y)


def test_dtypes_are_promoted_as_pytorch_does():
    x, n = tensor(3, 4), torch.arange(12).reshape(3, 4) - 5
    check(
        [
            lambda x, n: x + n, lambda x, n: n + 2, lambda x, n: n * 0.5, lambda x, n: n / 2,
            lambda x, n: n // torch.tensor(3).float(), lambda x, n: n.sqrt().isnan(),
            lambda x, n: n > 1.5, lambda x, n: x.double() + n, lambda x, n: n.int() + n,
            lambda x, n: x.to(torch.int32), lambda x, n: torch.remainder(n, 3), lambda x, n: n & 3,
            lambda x, n: torch.where(n > 0, x, n), lambda x, n: n.sum(), lambda x, n: x.mean(),
            lambda x, n: torch.cat([x, n]), lambda x, n: (n > 0).sum(1), lambda x, n: ~n,
            lambda x, n: torch.div(n, 2, rounding_mode='trunc'), lambda x, n: n.float().softmax(0),
        ],
        x, n,
    )  # fmt: skip


def test_shapes_reductions_and_gathers():
    x = tensor(2, 6, 4, 5)
    i = torch.tensor([3, 0, 1])
    check(
        [
            lambda x, i: x.view(2, -1), lambda x, i: x.flatten(1), lambda x, i: x[:, None, 0],
            lambda x, i: x.permute(0, 2, 3, 1), lambda x, i: x.transpose(1, -1),
            lambda x, i: x[:, 1:5:2], lambda x, i: x[..., -2:], lambda x, i: x.select(2, -1),
            lambda x, i: torch.cat([x, x[:, :1]], 1), lambda x, i: torch.stack([x, x], -1),
            lambda x, i: x.split([1, 5], 1)[1], lambda x, i: x.chunk(3, 1)[2],
            lambda x, i: x.unbind(0)[1], lambda x, i: x.repeat(1, 2, 1, 1), lambda x, i: x.flip(1),
            lambda x, i: x.roll(1, 2), lambda x, i: x[:, :1].expand(2, 3, 4, 5),
            lambda x, i: F.pad(x, (1, 2, 0, 1)), lambda x, i: F.pad(x, (1, -1), value=7.0),
            lambda x, i: F.pad(x, (1, 2, 2, 1), mode='reflect'),
            lambda x, i: F.pad(x, (1, 2, 2, 1), mode='replicate'),
            lambda x, i: x.mean((2, 3), keepdim=True), lambda x, i: x.mean(1), lambda x, i: x.sum(),
            lambda x, i: x.amax((1, 2)), lambda x, i: x.amin(-1), lambda x, i: x.prod(3),
            lambda x, i: x.max(), lambda x, i: x.min(2)[0], lambda x, i: x.max(1)[1],
            lambda x, i: x.argmax(1), lambda x, i: x.argmin(), lambda x, i: x.var(1),
            lambda x, i: x.std((2, 3), correction=0), lambda x, i: x.cumsum(1),
            lambda x, i: (x > 0).any(1), lambda x, i: (x > 0).all(), lambda x, i: x.norm(dim=1),
            lambda x, i: x.index_select(1, i), lambda x, i: x[:, i], lambda x, i: x[:, i, i - 4],
            lambda x, i: F.embedding(i, x.reshape(-1, 5)), lambda x, i: x.new_zeros(3),
            lambda x, i: x[0, 0].gather(1, i.expand(4, 3)), lambda x, i: torch.ones_like(x),
            lambda x, i: torch.full((2, 2), 3.5), lambda x, i: torch.arange(1.0, 3.0, 0.5) + i[0],
            lambda x, i: F.softmax(x, -1), lambda x, i: F.log_softmax(x, 1),
            lambda x, i: F.pixel_shuffle(x[:, :4], 2), lambda x, i: F.normalize(x),
            lambda x, i: F.channel_shuffle(x, 2), lambda x, i: x.squeeze(0),
            lambda x, i: x[:1].squeeze(), lambda x, i: x.norm(1), lambda x, i: x.norm(torch.inf),
        ],
        x, i,
    )  # fmt: skip


def test_layers():
    x, v = tensor(2, 6, 7, 9), tensor(2, 6, 11, seed=2)
    layers = [
        torch.nn.Conv2d(6, 8, 3, 2, 1, groups=2), torch.nn.Conv2d(6, 4, (1, 3), padding='same'),
        torch.nn.ConvTranspose2d(6, 4, 3, 2, 1, 1, groups=2), torch.nn.BatchNorm2d(6),
        torch.nn.BatchNorm2d(6, affine=False), torch.nn.GroupNorm(3, 6), torch.nn.GroupNorm(2, 6),
        torch.nn.LayerNorm(9), torch.nn.LayerNorm((7, 9), bias=False),
        torch.nn.Linear(9, 4), torch.nn.Linear(9, 4, bias=False), torch.nn.MaxPool2d(3, 2, 1),
        torch.nn.AvgPool2d(3, 2, 1), torch.nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False),
        torch.nn.AvgPool2d(3, 2, 1, divisor_override=5), torch.nn.AdaptiveAvgPool2d((1, 1)),
        torch.nn.AdaptiveAvgPool2d((3, 4)), torch.nn.AdaptiveAvgPool2d((7, 3)),
        torch.nn.AdaptiveMaxPool2d((3, 4)), torch.nn.LPPool2d(2, 2), torch.nn.Dropout(),
        torch.nn.LocalResponseNorm(3), torch.nn.Upsample(scale_factor=2), torch.nn.PReLU(6),
        torch.nn.Upsample(size=(9, 5), mode='bilinear'), torch.nn.ReflectionPad2d(2),
        torch.nn.Upsample(scale_factor=1.5, mode='bilinear', align_corners=True),
        torch.nn.Upsample(scale_factor=2, mode='bicubic'), torch.nn.UpsamplingNearest2d((3, 5)),
    ]  # fmt: skip
    for layer in layers:
        for name, buffer in layer.named_buffers():
            if 'running' in name:
                buffer.copy_(tensor(*buffer.shape, seed=3).abs() + 0.5)
    lines = [
        torch.nn.Conv1d(6, 4, 3, dilation=2), torch.nn.ConvTranspose1d(6, 4, 3, 2),
        torch.nn.MaxPool1d(2), torch.nn.AvgPool1d(3, 1, 1), torch.nn.BatchNorm1d(6),
        torch.nn.AdaptiveAvgPool1d(4), torch.nn.AdaptiveMaxPool1d(4), torch.nn.Linear(11, 2),
    ]  # fmt: skip

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.images, self.lines = torch.nn.ModuleList(layers), torch.nn.ModuleList(lines)

        def forward(self, x, v):
            products = (x @ x.transpose(2, 3), v[0] @ v[1].T, torch.bmm(v, v.transpose(1, 2)))
            instance = F.instance_norm(x[:1])
            places = F.max_pool2d(x, 2, return_indices=True)[1]
            return (
                *(f(x) for f in self.images), *(f(v) for f in self.lines), *products, instance,
                places,
            )  # fmt: skip

    module = Layers().eval()
    graph = import_torch(module, example_inputs=(x, v))
    assert [value.name for value in graph.inputs] == ['x', 'v']
    got = evaluate(lower(graph), {'x': x.numpy(), 'v': v.numpy()})
    with torch.no_grad():
        want = module(x, v)
    for number, (expected, found) in enumerate(zip(want, got.values(), strict=True)):
        np.testing.assert_allclose(
            found, expected.numpy(), rtol=2e-5, atol=2e-5, err_msg=f'layer {number}'
        )


@pytest.mark.parametrize('name', ['alexnet', 'squeezenet'])
def test_networks_of_the_zoo(name):
    network = zoo.network(name, **zoo.SMALL[name])
    module = zoo.torch_module(name, **zoo.SMALL[name])
    image = zoo.example(network)
    graph = import_torch(module, {zoo.INPUT: network.shape})
    got = evaluate(lower(graph), {zoo.INPUT: image})['output']
    with torch.no_grad():
        want = module(torch.from_numpy(image)).numpy()
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def written(change, copied=True):
    """A function that changes its argument in place."""

    def function(x, *others):
        y = x.clone() if copied else torch.zeros_like(x)
        change(y, x, *others)
        return y

    return function


def test_elements_written_in_place():
    """Slices, chosen elements and masks of a tensor that are assigned to."""
    x, i = tensor(4, 6, 5), torch.tensor([[3, 0, 1], [2, 2, 2]])

    def slices(y, x, i):
        y[1:3] = 7
        y[:, ::2] = x[:, 1::2]
        y[-1, ..., 1:-1] += 2
        y[:, :, 2] = x.sum(2)
        y[2:2] = 5

    def masks(y, x, i):
        y[x > 0.5] = -1
        y[x[:, :, 0] > 0] = 0.25

    def placed(y, x, i):
        y[0].scatter_(1, i, x[1, :2, :3])
        y[1].scatter_(0, i, 3.0)
        y[2].scatter_add_(1, i, x[0, :2, :3])
        y[:, i[0]] = 4.0
        y[3].index_add_(0, i[0], x[3, :3])
        y[:2].index_put_((i[1, :2] % 2, i[0, :2]), x[0, 0], accumulate=True)

    check([written(slices), written(slices, copied=False), written(masks), written(placed)], x, i)


def test_pad_modes_and_orders():
    x = torch.tensor([[2.0, 1.0, 2.0, 3.0, -1.0], [0.0, 0.0, -0.5, 9.0, 0.0]])
    check(
        [
            lambda x: F.pad(x[None], (2, 1), mode='circular'), lambda x: x.topk(3)[0],
            lambda x: x.topk(2, 0, largest=False)[1], lambda x: x.sort(stable=True)[1],
            lambda x: x.sort(descending=True)[0], lambda x: x.argsort(dim=1, stable=True),
            lambda x: x.cumprod(1), lambda x: x.sum().sort()[0], lambda x: x.sum().sort()[1],
            lambda x: torch.where(x > 2, torch.nan, x).sort(stable=True)[1],
        ],
        x,
    )  # fmt: skip


def test_images_sampled_at_computed_places_and_windows_added_up():
    x, places = tensor(2, 3, 6, 7), tensor(2, 4, 5, 2, seed=1)
    check(
        [
            lambda x, p: F.grid_sample(x, p, align_corners=False),
            lambda x, p: F.grid_sample(x, p, 'nearest', 'border', align_corners=True),
            lambda x, p: F.fold(F.unfold(x, 3, 1, 1, 2), (6, 7), 3, 1, 1, 2),
        ],
        x, places,
    )  # fmt: skip


def test_arithmetic_of_truth_values():
    x = tensor(7)
    check([lambda x: (x > 0) + (x < -1), lambda x: (x > 0) * (x < 1)], x)


def test_quotients_and_remainders_are_those_of_pytorch():
    """Of 1 and 0.1, a little more than a tenth, the quotient rounded down is 9."""
    x = torch.tensor([1.0, -1.0, 0.7, -0.3, 6.0, 5.0, -7.5, 0.0, 1e6, -1e6, 3.0, -3.0])
    y = torch.tensor([0.1, 0.1, -0.1, -0.1, 0.2, torch.inf, torch.inf, 3.0, 0.3, 0.3, 0.0, 2.0])
    check(
        [
            torch.remainder, torch.fmod, lambda x, y: torch.div(x, y, rounding_mode='floor'),
            lambda x, y: x.int() // 2, lambda x, y: torch.arange(-6, 6) // torch.tensor([-4]),
            lambda x, y: torch.remainder(x, 0.1), lambda x, y: x // -0.1,
        ],
        x, y,
    )  # fmt: skip


def test_small_numbers_keep_their_digits():
    x = torch.tensor([1e-9, -1e-9, 1e-6, -3e-4, 0.0, 0.5, -0.5, 20.0])
    functions = [torch.log1p, torch.expm1, lambda x: F.logsigmoid(20 + x), torch.tanh]
    module = Several(functions)
    got = evaluate(lower(import_torch(module, example_inputs=(x,))), {'inputs_0': x.numpy()})
    for found, want in zip(got.values(), module(x.double()), strict=True):
        np.testing.assert_allclose(found, want.float().numpy(), rtol=3e-6, atol=1e-30)


def test_an_exported_program_is_taken_as_it_is():
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.ReLU(inplace=True)).eval()
    x = tensor(1, 2, 5, 5)
    graph = import_torch(torch.export.export(module, (x,)))
    assert [node.op for node in graph.nodes] == ['Conv', 'Relu']
    got = evaluate(lower(graph), {graph.inputs[0].name: x.numpy()})['output']
    with torch.no_grad():
        np.testing.assert_allclose(got, module(x).numpy(), rtol=1e-5, atol=1e-6)


def test_all_unsupported_operators_are_listed_at_once():
    class Strange(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.qr(x)[0], x.erfinv(), torch.linalg.qr(x + 1)[0], x.cummax(0)[0]

    with pytest.raises(ModelError) as caught:
        import_torch(Strange(), example_inputs=(tensor(3, 3),))
    text = str(caught.value)
    assert '2 x aten.linalg_qr.default (first:' in text
    assert '1 x aten.erfinv.default (first:' in text
    assert '1 x aten.cummax.default' in text


def test_modules_are_left_as_they_were():
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    module[1].eval()
    graph = import_torch(module, example_inputs=(tensor(1, 2, 5, 5),))
    assert module.training
    assert module[0].training
    assert not module[1].training
    before = graph.constants['p_0_weight'].copy()
    with torch.no_grad():
        module[0].weight.zero_()
    assert np.array_equal(graph.constants['p_0_weight'], before)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('calls', torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x + self.calls


class Two(torch.nn.Module):
    def forward(self, x, y):
        return x + y


class Branching(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ('module', 'given', 'sentence'),
    [
        (Counting(), {'example_inputs': (tensor(2),)}, "changes 'calls' when it is called"),
        (Two(), {}, "there is nothing for 'x': give example_inputs"),
        (Two(), {'shapes': {'x': (1,), 'z': (1,)}}, "there is no 'z'"),
        (Two(), {'shapes': {'x': (1,)}}, "there is nothing for 'y'"),
        (Two(), {'example_inputs': (tensor(2), tensor(3))}, 'does not run on the example inputs'),
        (Two(), {'example_inputs': (tensor(2),)}, 'does not run on the example inputs'),
        (Branching(), {'example_inputs': (tensor(2),)}, 'cannot be traced by torch.export'),
        (Several([lambda x: x[x > 0]]), {'example_inputs': (tensor(4),)}, 'by truth values'),
        (Two(), {'example_inputs': (tensor(2).half(), tensor(2).bfloat16())}, 'on bfloat16'),
        (Two(), {'example_inputs': 3}, 'example_inputs is a int; give a tuple'),
        (Two(), {'example_inputs': {'x': tensor(2)}}, 'example_inputs is a dict; give a tuple'),
        (Two(), {'shapes': [(1,), (1,)]}, 'shapes is a list; give a dictionary'),
        (Two(), {'shapes': {'x': (1,), 'y': 1}}, "shapes gives 'y' as 1; give whole numbers"),
        (Two(), {'shapes': {'x': (1,), 'y': (-1,)}}, 'sizes are at least 0'),
        (Two(), {'shapes': {'x': (1,), 'y': (2**40,)}}, 'elements; the limit is'),
        (len, {}, 'is neither a torch.nn.Module'),
    ],
)
def test_what_cannot_be_imported_is_one_sentence(module, given, sentence):
    with pytest.raises(ModelError, match=sentence) as caught:
        import_torch(module, **given)
    assert '\n' not in str(caught.value)


def test_modules_are_traced_in_several_threads():
    """PyTorch's tracer is for one at a time."""
    x = tensor(1, 2, 5, 5)
    modules = [torch.nn.Conv2d(2, count, 3) for count in (1, 2, 3, 4)]
    with ThreadPoolExecutor(len(modules)) as pool:
        graphs = list(pool.map(lambda one: import_torch(one, example_inputs=(x,)), modules))
    assert [graph.constants['p_weight'].shape[0] for graph in graphs] == [1, 2, 3, 4]


def test_tables_name_operators_that_exist():
    for name in HANDLERS:
        _, packet, overload = name.split('.')
        assert hasattr(getattr(torch.ops.aten, packet), overload), name


def test_what_cannot_be_traced_is_one_sentence_with_the_place(capfd):
    """Not the pages that PyTorch prints of the graph so far."""
    with pytest.raises(ModelError) as caught:
        import_torch(Branching(), {'x': (2, 2)})
    said = str(caught.value)
    assert said.startswith('Branching cannot be traced by torch.export: ')
    line = inspect.getsourcelines(Branching)[1] + 2
    assert f'{__file__}:{line}, return x if x.sum() > 0 else -x' in said
    assert '\n' not in said
    assert capfd.readouterr() == ('', '')
