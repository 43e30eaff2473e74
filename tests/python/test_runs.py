"""Whole commands as functions: trainings with callbacks, sweeps, runs read back."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import MODEL, batch, command

import meshwright as mw


def data(n=40):
    given = batch(n)
    return given | {f"test.{name}": value[:8] for name, value in given.items()}


def test_a_training_tells_each_event(here):
    told = []
    model = mw.Model(MODEL)
    done = mw.train(model, data=data(), epochs=2, run="a", metrics="accuracy", callback=told.append)
    assert [e["event"] for e in told].count("step") == 20 and told[-1]["event"] == "done"
    assert [e["event"] for e in told].count("epoch") == 2 and len(told) == len(done.events)
    logged = [e for e in mw.Run("a").metrics if e["event"] == "step"]
    assert [e["loss"] for e in logged] == [e["loss"] for e in told if e["event"] == "step"]
    assert done.loss == logged[-1]["loss"] and done.run.path == "a"
    frame = done.run.metrics.to_pandas()
    assert len(frame) == len(told) - 1 or len(frame) == len(told)
    # Without a folder nothing is written.
    assert mw.train(model, data=data(), steps=3).run is None and not os.path.exists("runs")


def test_what_a_callback_raises_ends_the_run_with_a_checkpoint(here):
    def callback(event):
        if event.get("step") == 5:
            raise ValueError("enough")

    model, given = mw.Model(MODEL), data()
    with pytest.raises(ValueError, match="enough"):
        mw.train(model, data=given, steps=1000, run="a", callback=callback)
    steps = len(mw.Run("a").steps)
    assert 5 <= steps < 1000
    # It is not stopped any more, and goes on.
    done = mw.train(model, data=given, steps=steps + 3, run="a", resume=True)
    assert [e["step"] for e in done.events if e["event"] == "step"] == [steps + 1, steps + 2, steps + 3]


def test_ctrl_c_ends_a_training_with_a_checkpoint(here):
    def callback(event):
        if event.get("step") == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        mw.train(mw.Model(MODEL), data=data(), steps=10_000_000, run="a", callback=callback)
    assert len(mw.Run("a").steps) > 3 and list((here / "a/checkpoints").iterdir())


def test_a_sweep_is_a_table(here):
    table = mw.sweep("mnist_mlp", dims={"batch": [50, 100]}, layouts=["dp", "tp"], meshes=["2"], seeds=2, steps=3, run="s")
    assert len(table) == 8 and {r["layout"] for r in table} == {"dp", "tp"}
    frame = table.to_pandas()
    assert set(frame.batch) == {50, 100} and set(frame.seed) == {0, 1}
    by_command = command("sweep", "s", "--table", "--format", "jsonl").stdout
    assert mw.Table.of_lines(by_command).rows == table.rows
    with pytest.raises(mw.MeshwrightError):
        mw.sweep("mnist_mlp", layouts=["nonsense"], meshes=["2"], steps=3, run="t")


def test_estimates_and_searches_are_those_of_the_command(here):
    import json

    p = mw.Project("bert", preset="tiny", layout="dp", mesh="data=2")
    machine = command("machines").stdout.split()[0]
    found = p.estimate(machine)
    words = ["estimate", "bert", "--preset", "tiny", "--layout", "dp", "--mesh", "data=2", "--machine", machine]
    assert found.data == json.loads(command(*words, "--format", "json").stdout)


def test_the_command_is_there_with_its_data():
    script = os.path.join(os.path.dirname(sys.executable), "meshwright")
    done = subprocess.run([script, "models"], capture_output=True, text=True)
    assert done.returncode == 0 and "bert" in done.stdout
    assert subprocess.run([script, "nonsense"], capture_output=True).returncode == 2
    folder = os.path.join(os.path.dirname(mw.__file__), "data")
    assert os.path.isfile(os.path.join(folder, "mnist", "data.toml"))


def test_an_import_takes_less_than_150_ms():
    code = "import time; t = time.process_time(); import meshwright; print(time.process_time() - t)"
    times = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout) for _ in range(7)]
    # Of the processor, and the least: others may be at work on the machine.
    assert min(times) < 0.15, times
