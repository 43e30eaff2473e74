"""Compares what TensorBoard reads of a run with the run's metrics.jsonl."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = sys.argv[1]
read = EventAccumulator(f"{run}/tensorboard", purge_orphaned_data=True, size_guidance={"scalars": 0})
read.Reload()
events = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
groups = {"step": lambda e: "train", "evaluation": lambda e: e["set"], "epoch": lambda e: "epoch"}
expected = {}
for event in events:
    if event["event"] not in groups:
        continue
    group = groups[event["event"]](event)
    for key, value in event.items():
        if key in ("event", "step", "time", "set"):
            continue
        tag = group + "/" + key.removeprefix("train_").removeprefix("eval_")
        expected.setdefault(tag, {})[event["step"]] = value
assert sorted(expected) == sorted(read.Tags()["scalars"]), (sorted(expected), read.Tags()["scalars"])
numbers = 0
for tag, values in expected.items():
    found = {s.step: s.value for s in read.Scalars(tag)}
    assert sorted(found) == sorted(values), (tag, sorted(found), sorted(values))
    for step, value in values.items():
        assert abs(found[step] - value) <= 1e-6 * abs(value), (tag, step, found[step], value)
        numbers += 1
steps = [e["step"] for e in events if e["event"] == "step"]
assert steps == list(range(1, 16)), steps
print(f"test result: ok. {numbers} passed; 0 failed (numbers that TensorBoard reads of a run)")
