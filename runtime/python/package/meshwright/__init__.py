"""Meshwright trains models with named dims on a mesh of devices.

The classes and functions here are a thin layer over the command `meshwright`: what they are given are its options, what they raise are
its diagnostics, and what they compute has the same bits.

    import meshwright as mw

    p = mw.Project("bert", preset="tiny", layout="dp_tp", mesh="2x2")
    print(p.explain())
    with p.session(seed=0) as s:
        for batch in p.batches(data="king_james_masked", steps=100):
            out = s.step(batch)
"""

import os as _os
import sys as _sys

from . import _native
from ._answers import Answer, Comparison, Explanation
from ._errors import MeshwrightError
from ._functions import estimate, generate, search, sweep, train
from ._project import Model, Project
from ._runs import Run, Training
from ._session import Batches, Session
from ._table import Table

__all__ = [
    "Answer",
    "Batches",
    "Comparison",
    "Explanation",
    "MeshwrightError",
    "Model",
    "Project",
    "Run",
    "Session",
    "Table",
    "Training",
    "estimate",
    "generate",
    "search",
    "sweep",
    "train",
]

_native.embed([_sys.executable, "-m", "meshwright"], _os.path.join(_os.path.dirname(__file__), "data"))
