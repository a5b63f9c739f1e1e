"""The short form of a plan or a network in a notebook. Goes in: cells; comes out: HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def short_form(title: str, said: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A heading, a line below it, and a table."""
    heads = ''.join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = ''.join(
        '<tr>' + ''.join(f'<td>{escape(cell)}</td>' for cell in row) + '</tr>' for row in rows
    )
    return (
        f'<div><b>{escape(title)}</b><br><small>{escape(said)}</small>'
        f'<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )
