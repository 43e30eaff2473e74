"""Arrays as data that the command reads, and as inputs of a step."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def array(value: Any) -> NDArray[Any]:
    """An array of NumPy: itself, or what has `__array__` or `__dlpack__`, without a copy where they share memory."""
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def taken(name: str, value: Any, dtype: str) -> NDArray[Any]:
    """An array as an input of that type takes it. It is copied where its type is another one, or its memory is not aligned.

    What the input's type does not hold is left as it is, for a diagnostic: fractions for integers, and integers that are too large.
    """
    given = array(value)
    wanted = np.dtype(dtype)
    if given.dtype != wanted:
        if not np.can_cast(given.dtype, wanted, "same_kind") and given.dtype.kind not in "bui":
            return given
        converted = given.astype(wanted)
        if wanted.kind in "iu" and not np.array_equal(converted, given):
            raise OverflowError(f"`{name}` of the batch has integers that {dtype} does not hold")
        return converted
    return np.require(given, requirements=["ALIGNED"])


class Files:
    """Arrays as files, as long as this lives, in the words of `--data`."""

    def __init__(self, data: Any) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.word: str | None = None
        if data is None or isinstance(data, (str, os.PathLike)):
            self.word = data if data is None else os.fspath(data)
            return
        if not isinstance(data, Mapping):
            raise TypeError("data is the name of a data set, a path, or a dict of arrays and paths")
        self._folder = tempfile.TemporaryDirectory(prefix="meshwright-")
        pairs = []
        for name, value in data.items():
            if not isinstance(value, (str, os.PathLike)):
                file = os.path.join(self._folder.name, f"{name}.npy")
                np.save(file, array(value), allow_pickle=False)
                value = file
            pairs.append(f"{name}={os.fspath(value)}")
        self.word = ",".join(pairs)


_SAFETENSORS = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL"}


def write_safetensors(file: str, tensors: Mapping[str, Any]) -> None:
    """Writes tensors by name, as the format `safetensors` has them: the size of a header, the header, the bytes."""
    arrays = {name: np.ascontiguousarray(array(value)).reshape(np.shape(value)) for name, value in tensors.items()}
    header, at = {}, 0
    for name, a in arrays.items():
        kind = _SAFETENSORS.get(a.dtype.name)
        if kind is None:
            raise TypeError(f"`{name}` has elements of {a.dtype}, which no parameter is made of")
        header[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)))
        out.write(text)
        for a in arrays.values():
            out.write(a.astype(a.dtype.newbyteorder("<"), copy=False).tobytes())
