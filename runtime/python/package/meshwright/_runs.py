"""Runs, read back from their folders."""

from __future__ import annotations

import json
import os
from typing import Any

from ._table import Table
from ._words import answer, options


class Run:
    """The folder of a run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    @property
    def metrics(self) -> Table:
        """All events of the run: steps, evaluations, epochs."""
        import tempfile

        with tempfile.TemporaryDirectory(prefix="meshwright-") as folder:
            file = os.path.join(folder, "events.jsonl")
            answer(["runs", "export", self.path, "--output", file])
            with open(file, encoding="utf-8") as lines:
                return Table.of_lines(lines.read())

    @property
    def steps(self) -> Table:
        """The steps of the run."""
        return Table(e for e in self.metrics if e["event"] == "step")

    def evaluate(self, **options_: Any) -> dict[str, Any]:
        """Loss and metrics of its newest checkpoint, by name. Options are those of `meshwright eval`."""
        found = json.loads(answer(["eval", self.path, *options(options_), "--format", "json"]))
        return {name.removeprefix("eval_"): value for name, value in found.items() if name.startswith("eval_")}

    def __repr__(self) -> str:
        return f"Run({self.path!r})"


class Training:
    """A training that has ended."""

    def __init__(self, events: list[dict[str, Any]], run: Run | None) -> None:
        self.events = Table(events)
        self.run = run

    @property
    def metrics(self) -> Table:
        """All events: steps, evaluations, epochs."""
        return self.events

    @property
    def loss(self) -> float | None:
        """The loss of the last step."""
        steps = [e for e in self.events if e["event"] == "step"]
        return steps[-1]["loss"] if steps else None

