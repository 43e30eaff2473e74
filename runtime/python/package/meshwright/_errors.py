"""Diagnostics as exceptions."""

from __future__ import annotations

import json
from typing import Any


class MeshwrightError(Exception):
    """What the command would say: its text is the diagnostic as the command prints it.

    Attributes:
        code: the code of the first error, such as "E0310"; None where the options make no sense, or Meshwright has a bug.
        labels: the places of the first error, each with file, line, column, end, text and primary.
        fixes: replacements that repair it, each with title, place, replacement and sure.
        diagnostics: all that was found, as `--format json` has it.
        exit_code: the exit code that the command would have.
    """

    def __init__(self, said: str, diagnostics: list[dict[str, Any]], exit_code: int = 1) -> None:
        super().__init__(said.rstrip())
        errors = [d for d in diagnostics if d["severity"] == "error"]
        first: dict[str, Any] = errors[0] if errors else {}
        self.code: str | None = first.get("code")
        self.labels: list[dict[str, Any]] = first.get("labels", [])
        self.fixes: list[dict[str, Any]] = first.get("fixes", [])
        self.diagnostics = diagnostics
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[Any, ...]:
        return (MeshwrightError, (str(self), self.diagnostics, self.exit_code))


def failed(exit_code: int, said: str, diagnostics: list[str]) -> MeshwrightError:
    """The exception of a command that ended like this."""
    # Of several processes one says what all have met with.
    said = said or "error: another process raises what is wrong"
    return MeshwrightError(said, [json.loads(d) for d in diagnostics], exit_code)


def forked(user: int) -> MeshwrightError:
    """The exception of a fork of the process `user`, which has used Meshwright before."""
    said = (
        f"error: this process is a fork of process {user}, which has used Meshwright, and whose threads are not in it\n"
        '  = help: start processes by `multiprocessing.get_context("spawn")`\n'
        "  = help: or use Meshwright in one of them alone: workers of a data loader need none of it"
    )
    return MeshwrightError(said, [])
