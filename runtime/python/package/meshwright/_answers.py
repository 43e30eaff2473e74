"""What the command answers, as text, as data and as a page."""

from __future__ import annotations

import json
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ._table import Table
from ._words import answer

if TYPE_CHECKING:
    import pandas


class Answer:
    """An answer of the command. `str` of it is the text that the command prints."""

    def __init__(self, words: list[str], keep: object = None) -> None:
        self._words = words
        # What lives as long as the words name it.
        self._keep = keep
        # What is wrong is raised here.
        self.data: Any = self._parsed(answer([*words, "--format", "json"]))

    @staticmethod
    def _parsed(printed: str) -> Any:
        found = [json.loads(line) for line in printed.splitlines() if line]
        return found[0] if len(found) == 1 else found

    @cached_property
    def text(self) -> str:
        """What the command prints."""
        return answer(self._words)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def __getitem__(self, name: str) -> Any:
        return self.data[name]


class Explanation(Answer):
    """What a layout does to a model. In a notebook it is shown as the page of its plan."""

    @property
    def totals(self) -> list[dict[str, Any]]:
        """Collectives of a step by kind and axes, with their number and bytes."""
        return list(self.data["totals"])

    @property
    def collectives(self) -> list[dict[str, Any]]:
        """All collectives of a step, each with its cause."""
        return list(self.data["collectives"])

    def to_pandas(self) -> pandas.DataFrame:
        """The collectives as a DataFrame of pandas."""
        return Table(self.collectives).to_pandas()

    def page(self) -> str:
        """The page of the plan, in HTML that loads nothing."""
        import tempfile

        with tempfile.TemporaryDirectory(prefix="meshwright-") as folder:
            file = os.path.join(folder, "plan.html")
            answer([*self._words, "--html", file])
            with open(file, encoding="utf-8") as page:
                return page.read()

    def _repr_html_(self) -> str:
        import html

        style = "width: 100%; height: 40em; border: 0"
        return f'<iframe style="{style}" srcdoc="{html.escape(self.page())}"></iframe>'


class Comparison(Answer):
    """A model under several layouts, on several meshes and with several sizes."""

    @property
    def variants(self) -> list[dict[str, Any]]:
        """Each variant: its layout, mesh and sizes, and what a step of it costs a device."""
        return list(self.data["variants"])

    def table(self) -> Table:
        """A row for each variant, as `compare --format csv` has it."""
        return Table(_row(v) for v in self.variants)

    def to_pandas(self) -> pandas.DataFrame:
        """The same as a DataFrame of pandas."""
        return self.table().to_pandas()

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _row(variant: dict[str, Any]) -> dict[str, Any]:
    per_device = variant["per_device"]
    row = {"layout": variant["layout"], "mesh": variant["mesh"], **variant["dims"], "devices": variant["devices"]}
    row["collectives"] = variant["collectives"]
    row.update({name: value for name, value in per_device.items() if not isinstance(value, (dict, list))})
    row.update(per_device.get("memory", {}))
    row.update({name: variant[name] for name in ("estimated_ms",) if name in variant})
    if "measured" in variant:
        row["median_ms"] = variant["measured"]["median_ms"]
    return row
