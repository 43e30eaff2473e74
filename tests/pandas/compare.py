"""Compares what pandas reads of the table of a sweep, in three formats, with each other and with the runs' metrics.jsonl."""

import json
import math
import sys

import pandas as pd

folder = sys.argv[1]
tables = {
    "csv": pd.read_csv(f"{folder}/table.csv"),
    "parquet": pd.read_parquet(f"{folder}/table.parquet"),
    "jsonl": pd.read_json(f"{folder}/table.jsonl", lines=True),
}
parquet = tables["parquet"]
assert len(parquet) == 10 and list(parquet.state).count("finished") == 6, parquet
kinds = {"run": "object", "batch": "int64", "train_loss": "float64", "step_ms_median": "float64", "seed": "int64"}
for name, kind in kinds.items():
    assert str(parquet[name].dtype) == kind, (name, parquet[name].dtype)
cells = 0
for form, table in tables.items():
    assert list(table.columns) == list(parquet.columns), form
    for column in parquet.columns:
        for got, expected in zip(table[column], parquet[column]):
            missing = [v is None or (isinstance(v, float) and math.isnan(v)) for v in (got, expected)]
            assert missing[0] == missing[1], (form, column, got, expected)
            if missing[0]:
                continue
            if isinstance(expected, str):
                assert got == expected, (form, column, got, expected)
            else:
                assert abs(got - expected) <= 1e-9 * abs(expected), (form, column, got, expected)
            cells += 1
for row in parquet[parquet.state == "finished"].itertuples():
    events = [json.loads(line) for line in open(f"{folder}/{row.run}/metrics.jsonl")]
    last = {event["event"]: event for event in events}
    assert row.train_loss == last["epoch"]["train_loss"], row
    assert row.test_loss == last["evaluation"]["eval_loss"], row
    assert row.test_accuracy == last["evaluation"]["eval_accuracy"], row
    assert row.steps == last["step"]["step"] and row.collective_bytes == last["step"]["bytes_communicated"], row
print(f"test result: ok. {cells} passed; 0 failed (cells of the table of a sweep that pandas reads)")
