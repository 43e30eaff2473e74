"""What the wheel takes, in one run: `timings.py WHEEL` prints the table of docs/results/python.md. Needs python3 with venv. Seconds are of the
processor: others may be at work on the machine."""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

FIRST = ["train", "mnist_mlp", "--layout", "batch -> r; hidden1 -> c", "--mesh", "r=2,c=2", "--epochs", "1", "--run", "first"]


def timed(*words):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imported(python, package):
    """Seconds that an import takes, the least of some."""
    code = f"import time; t = time.process_time(); import {package}; print(time.process_time() - t)"
    return min(float(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout) for _ in range(9))


def row(what, value, beside, unit="s"):
    print(f"| {what} | {value:.3g} {unit} | {f'{beside[1]:.3g} {unit}: {beside[0]}' if beside else ''} | {f'{value / beside[1]:.3g}' if beside else ''} |")


def measured(wheel):
    venv = Path("venv").resolve()
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python, pip = str(venv / "bin/python"), [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    numpy = timed(*pip, "numpy>=1.26")
    install = timed(*pip, "--no-deps", wheel)
    by_wheel = timed(str(venv / "bin/meshwright"), *FIRST)
    subprocess.run([*pip, "pytest"], check=True, capture_output=True)
    print("| | meshwright | beside | ratio |\n|---|---|---|---|")
    row("the wheel", os.path.getsize(wheel) / 1e6, ("the most that it may have", 60), "MB")
    row("`pip install` of it", install, ("that of NumPy, with its download", numpy))
    row("from `pip install`, NumPy's included, to the first result", numpy + install + by_wheel, ("the most that it may take", 30))
    row("`import meshwright`", imported(python, "meshwright"), ("`import numpy`", imported(python, "numpy")))
    row("`import meshwright`", imported(python, "meshwright"), ("the most that it may take", 0.15))
    code = "from step_ratio import ratios\nfor ours, commands in ratios(5): print(ours, commands)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent)}
    printed = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, env=environment).stdout
    turns = [tuple(map(float, line.split())) for line in printed.splitlines()]
    found = [ours / commands for ours, commands in turns]
    step, by_command = (1e3 * min(all_of) for all_of in zip(*turns))
    print(f"| `step` of tiny BERT | {step:.3g} ms | {by_command:.3g} ms: the command's own loop | {step / by_command:.3f} ({min(found):.3f} to {max(found):.3f}) |")


if __name__ == "__main__":
    taken = str(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory(prefix="meshwright-") as folder:
        os.chdir(folder)
        measured(taken)
