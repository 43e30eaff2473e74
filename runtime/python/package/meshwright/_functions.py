"""Whole commands as functions."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import _native
from ._answers import Answer
from ._runs import Run, Training
from ._table import Table
from ._words import answer, option, options, text


def train(
    model: str | os.PathLike[str],
    *,
    data: Any = None,
    run: str | os.PathLike[str] | None = None,
    callback: Callable[[dict[str, Any]], object] | None = None,
    layout: str | os.PathLike[str] | None = None,
    mesh: str | None = None,
    dims: Mapping[str, int] | None = None,
    sets: Mapping[str, float] | None = None,
    **options_: Any,
) -> Training:
    """Trains as `meshwright train` does.

    Args:
        data: the name of a data set, a folder, or a dict of arrays and files by input ("test.NAME" for the test set).
        run: the folder of the run; nothing is written without one.
        callback: called with each event, a dict with `event` ("step", "evaluation", "epoch", "done"). What it raises ends the run after
            the step at hand, with a checkpoint, and is raised here; so does Ctrl-C.
        options: more options of the command, such as steps=500, epochs=3, seed=1, metrics="accuracy", eval_every=100, resume=True.
    """
    from ._data import Files

    files = Files(data)
    events: list[dict[str, Any]] = []

    def each(line: str) -> None:
        event = json.loads(line)
        events.append(event)
        if callback is not None:
            callback(event)

    words = ["train", text(model), *option("data", files.word), *option("layout", layout), *option("mesh", mesh)]
    words += [*option("dim", dims), *option("set", sets), *options(options_)]
    words += ["--no-save"] if run is None else ["--run", os.fspath(run)]
    answer([*words, "--format", "json"], each)
    return Training(events, None if run is None else Run(run))


def sweep(
    model: str | os.PathLike[str],
    *,
    layouts: str | Iterable[str] | None = None,
    meshes: str | Iterable[str] | None = None,
    dims: Mapping[str, Any] | None = None,
    sets: Mapping[str, Any] | None = None,
    data: Any = None,
    run: str | os.PathLike[str] | None = None,
    **options_: Any,
) -> Table:
    """Trains a model many times, each in a process of its own, as `meshwright sweep` does; gives the table of the runs.

    Args:
        dims: sizes of dims, such as {"batch": [10, 50]}.
        run: the folder of the sweep, by default runs/MODEL-sweep: what it has done already is not done again.
        options: more options of the command, such as seeds=3, epochs=2, jobs=2, one_device=True.
    """
    from ._data import Files

    files = Files(data)
    words = ["sweep", text(model), *option("layout", layouts), *option("mesh", meshes), *option("dim", dims)]
    words += [*option("set", sets), *option("data", files.word), *option("run", run), *options(options_)]
    return Table.of_lines(_waited([*words, "--format", "jsonl"]))


def _waited(words: list[str]) -> str:
    """An answer by another thread: Ctrl-C ends the runs with their checkpoints."""
    found: list[str] = []
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            found.append(answer(words))
        except BaseException as e:
            raised.append(e)

    thread = threading.Thread(target=ask, name="meshwright sweep")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)
    except BaseException:
        _native.stop()
        thread.join()
        raise
    if raised:
        raise raised[0]
    return found[0]


def search(model: str | os.PathLike[str], machine: str | os.PathLike[str], **options_: Any) -> Answer:
    """The fastest layout on a machine, as `meshwright search` finds it."""
    return Answer(["search", text(model), *option("machine", machine), *options(options_)], model)


def estimate(model: str | os.PathLike[str], machine: str | os.PathLike[str], **options_: Any) -> Answer:
    """The time of a training step on a machine, as `meshwright estimate` has it."""
    return Answer(["estimate", text(model), *option("machine", machine), *options(options_)], model)


def generate(run: str | os.PathLike[str] | Run, prompt: str | Iterable[str] | None = None, **options_: Any) -> Answer:
    """Texts that a language model continues, as `meshwright generate` does."""
    path = run.path if isinstance(run, Run) else os.fspath(run)
    return Answer(["generate", path, *option("prompt", prompt), *options(options_)])
