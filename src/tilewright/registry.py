"""A table of named values that others may add to: schemas, instruction sets, dialects, operators.

Goes in: the values that the package brings, each itself or as a hook `'module:NAME'`: in a mapping
it is imported when its name is first asked for, in a list together with the others. Comes out: a
mapping from name to value, in that order and then in the order of registration. Hooks let a value
name what lies in a layer above its own, so that it is complete and yet no import runs up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from functools import cache
from importlib import import_module
from typing import Any, Generic, TypeVar

from tilewright.errors import InputError, TilewrightError

T = TypeVar('T')


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


class Registry(MutableMapping[str, T], Generic[T]):
    """name -> value. `what` is what error messages call one of them, such as 'a CPU schema'.

    `shipped` are the package's own: a mapping, or values that have a `name`.
    """

    def __init__(self, what: str, shipped: Mapping[str, Any] | Iterable[T | str]) -> None:
        self.what = what
        self._hooks: Any = shipped
        self._shipped: dict[str, T] = {}
        self._values: dict[str, T] = {}

    def _load(self) -> dict[str, T]:
        if not self._shipped:
            if isinstance(self._hooks, Mapping):
                self._shipped = dict(self._hooks)
            else:
                found = [resolve(hook) for hook in self._hooks]
                self._shipped = {value.name: value for value in found}
            self._values = self._shipped | self._values
        return self._values

    def __getitem__(self, name: str) -> T:
        value: Any = self._load()[name]
        if isinstance(value, str):
            value = self._shipped[name] = self._values[name] = resolve(value)
        return value

    def __setitem__(self, name: str, value: T) -> None:
        self._load()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._load()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._load()))

    def __len__(self) -> int:
        return len(self._load())

    def named(self, name: str, error: type[TilewrightError] = InputError) -> T:
        """The value of a name; the error lists all names."""
        if name not in self:
            raise error(self.unknown(name))
        return self[name]

    def register(self, value: T, name: str = '') -> T:
        """Add a value under a name, its own if none is given, behind those there are."""
        name = name or getattr(value, 'name', '')
        if name in self:
            raise InputError(
                f'there is {self.what} {name!r} already; choose another name, or unregister it'
            )
        self[name] = value
        return value

    def unregister(self, name: str) -> None:
        """Take back what was registered; the package's own stay."""
        if name not in self.added:
            raise InputError(
                f'{name!r} was not registered as {self.what}; registered are '
                f'{", ".join(self.added) or "none"}'
            )
        del self[name]

    def unknown(self, name: object) -> str:
        """The sentence for a name that is not in the table."""
        return f'{name!r} is not {self.what}; choose one of {", ".join(self)}'

    def is_shipped(self, name: str) -> bool:
        """Whether a name means what it means in the package, in every process of this version."""
        value = self._load().get(name)
        return value is not None and value is self._shipped.get(name)

    @property
    def added(self) -> tuple[str, ...]:
        """Names that were registered beside the package's: other processes lack them."""
        return tuple(name for name in self if name not in self._shipped)
