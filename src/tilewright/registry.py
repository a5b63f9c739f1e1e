"""A table of named values that others may add to: schemas, instruction sets.

Goes in: the values that the package brings, each itself or as a hook `'module:NAME'`, which is
imported when it is first asked for. Comes out: a mapping from name to value, in that order and then
in the order of registration. Hooks let a value name what lies in a layer above its own, so that it
is complete and yet no import runs up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Generic, Protocol, TypeVar

from tilewright.errors import InputError


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar('T', bound=Named)


@cache
def _imported(hook: str) -> Any:
    module, _, name = hook.partition(':')
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"hook {hook!r} cannot be resolved ({error}); write 'package.module:name'"
        ) from None


def resolve(hook: Any) -> Any:
    """What a hook stands for; anything but text stands for itself."""
    return _imported(hook) if isinstance(hook, str) else hook


class Registry(Mapping[str, T], Generic[T]):
    """name -> value. `what` is what error messages call one of them, such as 'a CPU schema'."""

    def __init__(self, what: str, shipped: Iterable[T | str]) -> None:
        self.what = what
        self._hooks = tuple(shipped)
        self._shipped: dict[str, T] = {}
        self._values: dict[str, T] = {}

    def _load(self) -> dict[str, T]:
        if not self._shipped:
            found = [resolve(hook) for hook in self._hooks]
            self._shipped = {value.name: value for value in found}
            self._values = self._shipped | self._values
        return self._values

    def __getitem__(self, name: str) -> T:
        return self._load()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._load()))

    def __len__(self) -> int:
        return len(self._load())

    def register(self, value: T) -> T:
        """Add a value under its name, behind those there are."""
        if value.name in self._load():
            raise InputError(
                f'there is {self.what} {value.name!r} already; give this one another name, or '
                f'unregister that one first'
            )
        self._values[value.name] = value
        return value

    def unregister(self, name: str) -> None:
        if name not in self._load():
            raise InputError(self.unknown(name))
        del self._values[name]

    def unknown(self, name: object) -> str:
        """The sentence for a name that is not in the table."""
        return f'{name!r} is not {self.what}; choose one of {", ".join(self)}'

    def is_shipped(self, name: str) -> bool:
        """Whether a name means what it means in the package, in every process of this version."""
        value = self._load().get(name)
        return value is not None and value is self._shipped.get(name)

    @property
    def is_extended(self) -> bool:
        """Whether something was added or taken away."""
        return self._load() != self._shipped
