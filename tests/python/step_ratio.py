"""The time of a step of a session beside that of the command's own loop, in one run by turns."""

import statistics
import time
from collections.abc import Iterator

from conftest import command

import meshwright as mw


def ratios(turns: int, steps: int = 60) -> Iterator[tuple[float, float]]:
    """For tiny BERT, of each turn: the median seconds of a step of a session, and of the command, which notes its own."""
    project = mw.Project("bert", preset="tiny")
    batches = list(project.batches(data="king_james_masked", steps=steps))
    words = ["train", "bert", "--preset", "tiny", "--data", "king_james_masked", "--steps", steps, "--no-eval"]
    for turn in range(turns):
        command(*words, "--run", f"by-command-{turn}")
        times = []
        with project.session() as session:
            for given in batches:
                begin = time.perf_counter()
                session.step(given)
                times.append(time.perf_counter() - begin)
        by_command = [e["seconds"] for e in mw.Run(f"by-command-{turn}").steps]
        yield statistics.median(times[10:]), statistics.median(by_command[10:])
