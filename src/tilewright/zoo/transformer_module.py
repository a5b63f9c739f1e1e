"""A transformer of the zoo as a PyTorch module, by PyTorch's own attention and normalisations."""

from __future__ import annotations

from collections.abc import Mapping
from keyword import iskeyword
from typing import Any

import numpy as np

from tilewright.zoo.transformers import DEPTH, HEAD, PATCH, Transformer


def module_of(torch: Any, network: Transformer, weights: Mapping[str, np.ndarray]) -> Any:
    """[torch, Transformer, arrays by name] -> torch.nn.Module."""
    functional: Any = torch.nn.functional
    t = network

    def tensor(name: str) -> Any:
        array = weights[name]
        turned = name.endswith('.weight') and array.ndim == 2
        return torch.from_numpy(np.array(array.T if turned else array, order='C'))

    def attribute(name: str) -> str:
        """`class` is no attribute in code that PyTorch writes."""
        text = name.replace('.', '_')
        return f'{text}_' if iskeyword(text) else text

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in t.weights:
                parameter = torch.nn.Parameter(tensor(name), requires_grad=False)
                self.register_parameter(attribute(name), parameter)

        def of(self, name: str) -> Any:
            return getattr(self, attribute(name))

        def linear(self, x: Any, name: str) -> Any:
            return functional.linear(x, self.of(f'{name}.weight'), self.of(f'{name}.bias'))

        def norm(self, x: Any, name: str) -> Any:
            scale, shift = self.of(f'{name}.scale'), self.of(f'{name}.shift')
            return functional.layer_norm(x, (t.hidden,), scale, shift, t.epsilon)

        def embedded(self, given: Any) -> Any:
            if t.side:
                patches, bias = self.of('patches.weight'), self.of('patches.bias')
                x = functional.conv2d(given, patches, bias, PATCH).flatten(2).transpose(1, 2)
                x = torch.cat([self.of('class').expand(t.batch, 1, t.hidden), x], 1)
                return x + self.of('places')
            x = functional.embedding(given, self.of('words'))
            x = x + self.of('places')[t.past : t.past + t.words]
            return x if t.before else self.norm(x + self.of('kinds')[0], 'norm')

        def attention(self, x: Any, name: str, past: Any, kept: list) -> Any:
            parts = self.linear(x, f'{name}.qkv').chunk(3, -1)
            q, k, v = (p.view(t.batch, t.rows, t.heads, HEAD).transpose(1, 2) for p in parts)
            if past is not None:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            kept += [k, v]
            causal = t.causal and t.words > 1
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return y.transpose(1, 2).reshape(t.batch, t.rows, t.hidden)

        def forward(self, given: Any, *past: Any) -> Any:
            x, kept = self.embedded(given), []
            form = 'tanh' if t.causal else 'none'
            for n in range(DEPTH):
                name = f'layer{n}'
                before = past[2 * n : 2 * n + 2] if past else None
                y = self.norm(x, f'{name}.norm1') if t.before else x
                x = x + self.linear(self.attention(y, name, before, kept), f'{name}.out')
                x = x if t.before else self.norm(x, f'{name}.norm1')
                y = self.norm(x, f'{name}.norm2') if t.before else x
                y = functional.gelu(self.linear(y, f'{name}.up'), approximate=form)
                x = x + self.linear(y, f'{name}.down')
                x = x if t.before else self.norm(x, f'{name}.norm2')
            if t.before:
                x = self.norm(x, 'norm')
            if not t.causal:
                return self.linear(x[:, 0] if t.side else x, 'head')
            return functional.linear(x[:, -1], self.of('words')), *kept

    return Module()
