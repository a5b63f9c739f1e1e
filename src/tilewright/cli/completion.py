"""`tilewright completion SHELL`: a script that completes verbs, options and their values.

Goes in: the parser's tree of commands. Comes out: text for bash, zsh or fish, complete in itself,
so that pressing TAB starts no Python. It is made anew whenever verbs change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_args

HELP = ('--help', '-h')


@dataclass(frozen=True, slots=True)
class Option:
    """Names of an option, what it may be followed by, and whether anything follows at all."""

    names: tuple[str, ...]
    choices: tuple[str, ...]
    takes_value: bool
    help: str


@dataclass(frozen=True, slots=True)
class Verb:
    """A command by its words: ('model', 'train')."""

    words: tuple[str, ...]
    help: str
    options: tuple[Option, ...]
    inner: tuple[str, ...]


def verbs_of(command: Any, words: tuple[str, ...] = ()) -> Iterator[Verb]:
    """All commands of a parser, the outermost first."""
    inner = dict(getattr(command, 'commands', {}))
    shown = [p for p in command.params if p.param_type_name == 'option' and not p.hidden]
    text = (command.help or '').strip().split('\n')[0]
    yield Verb(words, text, tuple(map(_option, shown)), tuple(inner))
    for name, one in inner.items():
        yield from verbs_of(one, (*words, name))


def _option(parameter: Any) -> Option:
    annotation = parameter.type_descriptor.annotation
    kinds = [k for k in (annotation, *get_args(annotation)) if isinstance(k, type)]
    choices = tuple(str(m.value) for kind in kinds if issubclass(kind, Enum) for m in kind)
    names = (*parameter.opts, *parameter.secondary_opts)
    return Option(names, choices, not parameter.is_flag, parameter.help or '')


def script(shell: str, command: Any, program: str = 'tilewright') -> str:
    """The script for a shell."""
    verbs = list(verbs_of(command))
    if shell == 'fish':
        return _fish(verbs, program)
    head = f'#compdef {program}\nautoload -U +X bashcompinit && bashcompinit\n'
    return (head if shell == 'zsh' else '') + _bash(verbs, program)


def _bash(verbs: list[Verb], program: str) -> str:
    """Words of the command in hand, values of the option before the cursor, else files."""
    inner = {' '.join(v.words): v.inner for v in verbs if v.inner}
    paths = '|'.join(f'"{path}"' for path in inner)
    cases, values = [], []
    for verb in verbs:
        path = ' '.join(verb.words)
        names = [n for o in verb.options for n in o.names] + list(HELP)
        cases.append(f'    "{path}") words="{" ".join([*verb.inner, *names])}" ;;')
        for option in verb.options:
            if option.choices:
                marks = '|'.join(f'"{path}:{name}"' for name in option.names)
                values.append(f'    {marks}) files="" words="{" ".join(option.choices)}" ;;')
    name = re.sub(r'\W', '_', program)
    return '\n'.join(
        [
            f'_{name}() {{',
            '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"',
            '  local path="" words="" word files=yes',
            '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
            '    case "$word" in -*) continue ;; esac',
            f'    case "$path" in {paths}) path="${{path:+$path }}$word" ;; esac',
            '  done',
            '  case "$path" in',
            *cases,
            '  esac',
            '  case "$path:$previous" in',
            *values,
            '  esac',
            '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
            '  case "$files$current" in',
            '    yes-*) ;;',
            '    yes*) COMPREPLY+=($(compgen -f -- "$current")) ;;',
            '  esac',
            '}',
            f'complete -F _{name} {program}',
            '',
        ]
    )


def _fish(verbs: list[Verb], program: str) -> str:
    lines = []
    outer = next(v for v in verbs if not v.words)
    for verb in verbs:
        if not verb.words:
            seen = f'not __fish_seen_subcommand_from {" ".join(outer.inner)}'
        else:
            seen = '; and '.join(f'__fish_seen_subcommand_from {word}' for word in verb.words)
        when = f"complete -c {program} -n '{seen}'"
        helps = {v.words[-1]: v.help for v in verbs if v.words[:-1] == verb.words and v.words}
        lines += [f'{when} -a {name} -d {_quoted(helps[name])}' for name in verb.inner]
        for option in verb.options:
            names = ' '.join(
                f'-l {name[2:]}' if name.startswith('--') else f'-s {name[1:]}'
                for name in option.names
            )
            value = f" -x -a '{' '.join(option.choices)}'" if option.choices else ''
            value = value or (' -r' if option.takes_value else '')
            lines.append(f'{when} {names}{value} -d {_quoted(option.help)}')
    return '\n'.join([*lines, ''])


def _quoted(text: str) -> str:
    escaped = text.replace('\\', '\\\\').replace("'", "\\'")
    return f"'{escaped}'"
