"""Options of Python as words of a command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import _native


def option(name: str, value: Any) -> list[str]:
    """The words of an option: none for None and False, the option alone for True, and one for each item of a list or a dict."""
    flag = "--" + name.strip("_").replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, Mapping):
        return [w for key, v in value.items() for w in (flag, f"{key}={joined(v)}")]
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, os.PathLike)):
        return [w for v in value for w in (flag, text(v))]
    return [flag, text(value)]


def text(value: Any) -> str:
    """A value as a word."""
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def joined(values: Any) -> str:
    """One value, or several with commas between them."""
    if isinstance(values, Iterable) and not isinstance(values, (str, bytes)):
        return ",".join(text(v) for v in values)
    return text(values)


def options(given: Mapping[str, Any]) -> list[str]:
    """The words of options by name."""
    return [w for name, value in given.items() for w in option(name, value)]


def answer(words: list[str], each: Callable[[str], object] | None = None) -> str:
    """What the command prints. What it says beside that goes to standard error."""
    printed, said = _native.answer(words, each)
    if said:
        print(said, end="", file=sys.stderr)
    return printed
