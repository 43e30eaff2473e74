"""Sessions: a project on its devices, stepped by Python."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _native

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_open: weakref.WeakSet[Session] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    """Ends MPI in order, for which no session may be open; a program that has failed ends the others, which would wait for it."""
    if getattr(sys, "last_value", None) is not None:
        _native.leave(True)
    for session in list(_open):
        session.close()
    _native.leave(False)


class Session:
    """A project on its devices, which are threads, or the processes of `mpirun`. `with` closes it; one that is dropped ends its threads too.

    Several sessions may be open at once where devices are threads. The interpreter is free while devices compute. Ctrl-C is raised when the step at hand is
    done, and the session goes on.
    """

    def __init__(self, words: list[str], keep: object = None) -> None:
        self._session = _native.Session(words)
        self._keep = keep
        _open.add(self)
        self._inputs = {name: (dims, shape, dtype, size) for name, dims, shape, dtype, size in self._session.inputs()}

    @property
    def inputs(self) -> dict[str, tuple[list[str], list[int], str, int | None]]:
        """What a batch has, by name: names of dims, sizes, the type in NumPy, and what integers are below, where they count along a dim."""
        return dict(self._inputs)

    @property
    def steps(self) -> int:
        """Steps done."""
        return self._session.steps()

    def step(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Trains on a batch: an array for each input, of NumPy or with `__array__` or `__dlpack__`.

        Each device copies its own part; nothing else is copied where the type is that of the input (`inputs`).
        Gives the loss, other losses, metrics that the session was asked for, and `gradient_norm` where the model clips it.
        """
        return self._session.step(self._taken(batch))

    def evaluate(self, batches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Loss and metrics over batches, of which each may have any number of examples."""
        return self._session.evaluate(self._taken(b) for b in batches)

    def predict(
        self, batch: Mapping[str, Any], outputs: Iterable[str] = (), values: Iterable[str] = ()
    ) -> dict[str, NDArray[Any]]:
        """Outputs of the model for a batch, by name: all, or those that are named; and other values, by their paths."""
        return self._session.predict(self._taken(batch), list(outputs), list(values))

    def parameters(self) -> dict[str, NDArray[Any]]:
        """All parameters by path, whole, in declared order; of several processes the first has them. Those in half types are float32."""
        return {path: values for path, _, values in self._session.parameters()}

    def load(
        self, source: str | os.PathLike[str] | Mapping[str, Any], map: str | Mapping[str, str] | Iterable[str] = ()
    ) -> list[str]:
        """Sets parameters, and says which, as `train --init` does.

        Args:
            source: a state dict (arrays by name), a `.safetensors` file, or the folder of a run.
            map: which is which, as `--init-map` has it: rules such as "encoder.* = enc.*" (the model's name first), a file of them, "hf:bert",
                or a dict of them.
        """
        if isinstance(map, Mapping):
            rules = [f"{ours} = {theirs}" for ours, theirs in map.items()]
        else:
            rules = [map] if isinstance(map, str) else list(map)
        if isinstance(source, Mapping):
            import tempfile

            from ._data import write_safetensors

            with tempfile.TemporaryDirectory(prefix="meshwright-") as folder:
                file = os.path.join(folder, "state_dict.safetensors")
                write_safetensors(file, source)
                return self._session.load(file, rules)
        return self._session.load(os.fspath(source), rules)

    def resume(self, run: str | os.PathLike[str]) -> None:
        """Goes on from the newest checkpoint of a run: its parameters, moments and number of steps."""
        self._session.resume(os.fspath(run))

    def save(self, run: str | os.PathLike[str]) -> None:
        """Writes a checkpoint and the metrics of all steps into the folder of a run: a new one, or that of the last save."""
        self._session.save(os.fspath(run))

    def close(self) -> None:
        """Ends the devices."""
        self._session.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _taken(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        from ._data import array, taken

        forms = self._inputs
        return {n: taken(n, v, forms[n][2]) if n in forms else array(v) for n, v in batch.items()}


class Batches:
    """The batches of a data set, as the command takes them: those of training by its seed, those of other splits in order."""

    def __init__(self, words: list[str], split: str, steps: int | None, keep: object = None) -> None:
        self._batches = _native.Batches(words, split)
        self._keep = keep
        self._steps = len(self._batches) if steps is None else steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, n: int) -> dict[str, NDArray[Any]]:
        if not 0 <= n < self._steps:
            raise IndexError(n)
        return self._batches.batch(n)

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        return (self[n] for n in range(self._steps))
