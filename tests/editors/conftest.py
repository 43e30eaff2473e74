"""A folder with a model and its layout, and the repository."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(os.environ["REPOSITORY"])

MODEL = """use "std:nn"

dim batch = 8, pixels = 12, hidden = 6, classes = 4

model small {
    input x    [batch, pixels]: float
    input label[batch]: i32 in classes
    let h      = relu(dense(x, [pixels], [hidden]))
    let logits = dense(h, [hidden], [classes])
    loss xent = mean[batch](cross_entropy[classes](logits, label))
}

train small {
    minimize xent
    optimizer sgd(lr = 0.1)
}
"""

LAYOUT = """mesh rows = 2, cols = 2
batch -> rows
hidden -> cols
"""


@pytest.fixture
def folder(tmp_path):
    """`small.mw` and `small.layout`."""
    (tmp_path / "small.mw").write_text(MODEL)
    (tmp_path / "small.layout").write_text(LAYOUT)
    return tmp_path


def at(text: str, piece: str, n: int = 0):
    """Line and character of the n-th place of a piece."""
    place = -1
    for _ in range(n + 1):
        place = text.index(piece, place + 1)
    before = text[:place]
    return before.count("\n"), place - (before.rfind("\n") + 1)
