"""Models with their layouts."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ._answers import Answer, Comparison, Explanation
from ._errors import MeshwrightError
from ._session import Batches, Session
from ._words import answer, option, options, text


class Model:
    """The text of a model, in place of a file."""

    def __init__(self, text: str) -> None:
        import tempfile

        self._folder = tempfile.TemporaryDirectory(prefix="meshwright-")
        self.path = os.path.join(self._folder.name, "model.mw")
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)

    def __fspath__(self) -> str:
        return self.path


class Project:
    """A model with its layout, checked.

    Args:
        model: the name of a model that ships, a path, or a `Model`.
        layout: the name of a layout that ships, a path, or rules such as "batch -> data".
        mesh: such as "data=4" or "2x2".
        dims: sizes of dims by name.
        sets: values of consts by name.
        preset: a `size` block of the model.
        precision: "f32", "f64", "bf16", "f16", "tf32" or "fp8".
        options: more options of the command by name, such as no_overlap=True.

    Raises:
        MeshwrightError: what `meshwright check` would say.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        layout: str | os.PathLike[str] | None = None,
        mesh: str | None = None,
        dims: Mapping[str, int] | None = None,
        sets: Mapping[str, float] | None = None,
        preset: str | None = None,
        precision: str | None = None,
        **options_: Any,
    ) -> None:
        self._model = model
        self._settings = [
            *option("dim", dims),
            *option("set", sets),
            *option("preset", preset),
            *option("precision", precision),
            *options(options_),
        ]
        self._mesh = mesh
        self._placed = [*option("layout", layout), *option("mesh", mesh)]
        answer(["check", *self._words])

    @property
    def _words(self) -> list[str]:
        return [text(self._model), *self._placed, *self._settings]

    def explain(self, **options_: Any) -> Explanation:
        """What the layout does: shards, collectives with their causes, memory. Options are those of `meshwright explain`."""
        return Explanation(["explain", *self._words, *options(options_)], self)

    def compare(
        self,
        layouts: Iterable[str | os.PathLike[str]],
        meshes: str | Iterable[str] | None = None,
        dims: Mapping[str, Iterable[int]] | None = None,
        **options_: Any,
    ) -> Comparison:
        """What layouts cost, on the mesh of the project, or on others. Options are those of `meshwright compare`.

        Layouts with another number of axes than the mesh of the project are compared on as many devices along one axis.
        """
        named = [text(self._model), *option("layout", list(layouts))]
        rest = [*self._settings, *option("dim", dims), *options(options_)]
        if meshes is not None or self._mesh is None:
            return Comparison(["compare", *named, *option("mesh", meshes), *rest], self)
        try:
            return Comparison(["compare", *named, "--mesh", self._mesh, *rest], self)
        except MeshwrightError as error:
            sizes = [int(n) for n in re.findall(r"(?:^|[x=:])\s*(\d+)", self._mesh)]
            if error.code != "E0311" or len(sizes) < 2:
                raise
        return Comparison(["compare", *named, "--mesh", str(math.prod(sizes)), *rest], self)

    def estimate(self, machine: str | os.PathLike[str], **options_: Any) -> Answer:
        """The time of a step on a machine. Options are those of `meshwright estimate`."""
        return Answer(["estimate", *self._words, *option("machine", machine), *options(options_)], self)

    def session(self, seed: int = 0, *, metrics: Iterable[str] = (), **options_: Any) -> Session:
        """Starts the devices and sets first values.

        Args:
            seed: of first values.
            metrics: what a step tells beside its losses, such as "accuracy" and "gradient_norm".
            options: more options of `meshwright train`, such as cores=4, init="runs/a".
        """
        words = ["train", *self._words, "--seed", str(seed), *option("metrics", ",".join(metrics) or None)]
        return Session([*words, *options(options_)], self)

    def batches(
        self, data: Any = None, split: str = "train", seed: int = 0, steps: int | None = None, **options_: Any
    ) -> Batches:
        """The batches of a data set: for "train" those of a run of that seed, an epoch or so many steps; else those of the split in order.

        Args:
            data: the name of a data set, a folder, or a dict of arrays and files by input; what ships where nothing is said.
        """
        from ._data import Files

        files = Files(data)
        words = ["train", *self._words, "--seed", str(seed), *option("data", files.word), *options(options_)]
        return Batches(words, split, steps, (self, files))
