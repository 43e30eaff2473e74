"""The processor's time for a step of a session beside that of the command's own loop, in one run by turns: others may be at work on the machine."""

import resource
import time
from collections.abc import Iterator

from conftest import command

import meshwright as mw

WARM, STEPS = 5, 30


def ratios(turns: int) -> Iterator[tuple[float, float]]:
    """For tiny BERT, of each turn: the seconds of a step of a session, and of the command, of which runs of two lengths tell."""
    project = mw.Project("bert", preset="tiny")
    batches = list(project.batches(data="king_james_masked", steps=WARM + STEPS))
    for _ in range(turns):
        with project.session() as session:
            for n, given in enumerate(batches):
                if n == WARM:
                    begin = time.process_time()
                session.step(given)
            ours = time.process_time() - begin
        short, long = _used_by_command(WARM), _used_by_command(WARM + STEPS)
        yield ours / STEPS, (long - short) / STEPS


def _used_by_command(steps: int) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command("train", "bert", "--preset", "tiny", "--data", "king_james_masked", "--steps", steps, "--no-eval", "--no-save")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
