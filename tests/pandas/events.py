"""Compares the events of runs that pandas reads, in three formats, with the runs' metrics.jsonl."""

import json
import sys
from pathlib import Path

import pandas as pd

folder = Path(sys.argv[1])
tables = {
    "csv": pd.read_csv("events.csv"),
    "parquet": pd.read_parquet("events.parquet"),
    "jsonl": pd.read_json("events.jsonl", lines=True),
}
runs = sorted(path.parent for path in folder.glob("*/run.toml"))
events = [(str(run), json.loads(line)) for run in runs for line in open(run / "metrics.jsonl")]
assert len(runs) == 6 and len(events) > 100, (len(runs), len(events))
kinds = {"run": "object", "event": "object", "step": "int64", "loss": "float64", "seconds": "float64"}
for name, kind in kinds.items():
    found = str(tables["parquet"][name].dtype)
    assert found in (kind, "float64" if kind == "int64" else kind), (name, found)
cells = 0
for form, table in tables.items():
    assert len(table) == len(events), form
    assert list(table.columns) == list(tables["parquet"].columns), form
    # In the order of the command line, which is that of the names.
    for got, (run, event) in zip(table.to_dict("records"), events):
        assert got["run"] == run, (form, got["run"], run)
        for name, value in got.items():
            if name == "run":
                continue
            if name not in event:
                assert pd.isna(value), (form, name, value)
            elif isinstance(event[name], str):
                assert str(value) == event[name] or name == "time", (form, name, value, event[name])
            elif event[name] is None:
                assert pd.isna(value), (form, name, value)
            else:
                assert abs(value - event[name]) <= 1e-9 * abs(event[name]), (form, name, value, event[name])
            cells += 1
print(f"test result: ok. {cells} passed; 0 failed (cells of the events of runs that pandas reads)")
