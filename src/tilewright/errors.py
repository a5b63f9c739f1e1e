"""The error tree. Each message says the offending value, the limit and the remedy, in one sentence.

`exit_code` is what the command line returns for an error of that kind (docs/contracts.md):
1 a check failed, 2 bad input, 3 something that is needed is missing.
"""


class TilewrightError(Exception):
    """Root of every error that this package raises on purpose."""

    exit_code = 1


class InputError(TilewrightError):
    """The user's input is wrong: a size, a spec, an array, a file."""

    exit_code = 2


class SpecError(InputError):
    """A layer spec or a suite name cannot be read, or describes an impossible problem."""


class ArrayError(InputError):
    """An array passed to a built kernel has the wrong dtype, shape or kind."""


class ScheduleError(InputError):
    """A schedule is not legal for its operator or its machine."""


class MissingError(TilewrightError):
    """Something needed is not there: a compiler, a peer, a device, an optional package."""

    exit_code = 3


class CompilerError(TilewrightError):
    """The C compiler refused generated code; the message carries its first complaint."""


class StoreError(TilewrightError):
    """The tuning store or the cache directory cannot be used."""

    exit_code = 2


class CheckError(TilewrightError):
    """A computed result does not match its reference."""


class PlanError(TilewrightError):
    """A memory plan of ours would let a task read bytes that are not those of its value."""


class ModelError(InputError):
    """A network cannot be read, or contains what is not supported; all such things at once."""


class UnsupportedError(ModelError):
    """A network has nodes that are not supported: all of them, by name, in `nodes`."""

    def __init__(self, text: str, nodes: tuple[str, ...]) -> None:
        super().__init__(text)
        self.nodes = nodes
