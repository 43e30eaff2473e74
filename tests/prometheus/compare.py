"""Trains, reads what the run says for Prometheus by prometheus_client all the while, and compares it with metrics.jsonl."""

import json
import os
import signal
import subprocess
import sys
import time

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "meshwright_training_"
FILE = "kept/a.prom"
RUN = 'odd "name"\\n'
checked = 0


def check(truth, what):
    global checked
    assert truth, what
    checked += 1


def read():
    """The samples by name and labels beside those that all have, and these."""
    text = open(FILE).read()
    assert text.endswith("\n"), text[-100:]
    out, common = {}, set()
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge" and family.documentation and family.name.startswith(PREFIX), family
        for sample in family.samples:
            labels = dict(sample.labels)
            common.add(tuple(labels.pop(label) for label in ("run", "model", "layout")))
            key = (sample.name.removeprefix(PREFIX), *(f"{k}={v}" for k, v in sorted(labels.items())))
            assert sample.name == family.name and key not in out and sample.timestamp is None, sample
            out[key] = sample.value
    states = [k[1] for k, v in out.items() if k[0] == "state" and v == 1]
    assert len(common) == 1 and len(states) == 1, (common, states)
    return out, common.pop(), states[0]


def train(*more):
    args = [sys.argv[1], "train", *more, "--run", RUN, "--metrics-file", FILE]
    # A shell lets what it starts in the background ignore Ctrl-C, and the run would inherit that.
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(args, stdout=open("out", "w"), stderr=open("log", "w"), preexec_fn=heard)


def ended(process, code):
    check(process.wait() == code, open("log").read())
    check(os.listdir("kept") == ["a.prom"], os.listdir("kept"))


os.mkdir("kept")
metrics = ["--metrics", "accuracy,gradient_norm", "--peak-flops", "1e12"]
layout = ["--layout", "batch -> r", "--mesh", "r=2"]
process = train("mlp", "--epochs", "1000", "--eval-every", "200", *metrics, *layout)
writes, reads, begin = set(), 0, time.time()
while len(writes) < 3:
    assert process.poll() is None and time.time() < begin + 300, open("log").read()
    if os.path.exists(FILE):
        found, labels, state = read()
        assert state == "state=running", state
        writes.add(found["last_write_timestamp_seconds",])
        reads += 1
check(labels == (os.path.abspath(RUN), "mlp", "batch -> r"), labels)
check(reads > 100, reads)
process.send_signal(signal.SIGINT)
ended(process, 130)
check(read()[2] == "state=interrupted", read()[2])
steps = int(read()[0]["step",])

ended(train("--resume", "--steps", str(steps + 5)), 0)
found, again, state = read()
check((again, state) == (labels, "state=finished"), (again, state))
events = [json.loads(line) for line in open(f"{RUN}/metrics.jsonl")]
last = {e["event"]: e for e in events}
step, evaluation = last["step"], last["evaluation"]
check(step["step"] == steps + 5, step)
expected = {
    ("step",): step["step"],
    ("target_step",): steps + 5,
    ("devices",): 2,
    ("loss",): step["loss"],
    ("metric", "name=accuracy"): step["train_accuracy"],
    ("learning_rate",): step["learning_rate"],
    ("gradient_norm",): step["gradient_norm"],
    ("step_collective_bytes",): step["bytes_communicated"],
    ("resident_memory_bytes",): step["memory_bytes"],
    ("evaluation_step", "set=test"): evaluation["step"],
    ("evaluation_loss", "set=test"): evaluation["eval_loss"],
    ("evaluation_metric", "name=accuracy", "set=test"): evaluation["eval_accuracy"],
}
for key, value in expected.items():
    check(abs(found[key] - value) <= 1e-12 * abs(value), (key, found[key], value))
for key in ("step_duration_seconds", "examples_per_second", "planned_memory_bytes", "peak_resident_memory_bytes"):
    check(found[key,] > 0, key)
for key in ("waiting_ratio", "model_flops_utilization_ratio"):
    check(0 <= found[key,] <= 1, (key, found[key,]))
print(f"test result: ok. {checked} passed; 0 failed (what Prometheus' parser reads of a run)")
