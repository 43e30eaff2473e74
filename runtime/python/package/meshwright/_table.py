"""Rows with names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


class Table:
    """Rows, each a dict. What a row lacks is missing."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self.rows = list(rows)

    @classmethod
    def of_lines(cls, lines: str) -> Table:
        """Of lines of JSON."""
        return cls(json.loads(line) for line in lines.splitlines() if line)

    @property
    def columns(self) -> list[str]:
        """The names of all rows, in the order in which they come."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a DataFrame of pandas."""
        import pandas

        return pandas.DataFrame(self.rows, columns=self.columns)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, n: int) -> dict[str, Any]:
        return self.rows[n]

    def __repr__(self) -> str:
        return f"<Table of {len(self.rows)} rows: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        import html

        def text(value: Any) -> str:
            # `rows` have all digits.
            return html.escape(format(value, ".6g") if isinstance(value, float) else str(value))

        def row(tag: str, values: Iterable[Any]) -> str:
            return "<tr>" + "".join(f"<{tag}>{text(v)}</{tag}>" for v in values) + "</tr>"

        shown = (row("td", (r.get(c, "") for c in self.columns)) for r in self.rows)
        return f"<table>{row('th', self.columns)}{''.join(shown)}</table>"
