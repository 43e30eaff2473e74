"""A data set and folders for tests."""

import os
import subprocess
import sys

import numpy as np
import pytest

LONG = os.environ.get("LONG") == "1"
long = pytest.mark.skipif(not LONG, reason="LONG=1 is not set")

MODEL = """
dim batch = 4, n = 3, classes = 5
model small {
    input x[batch, n]: f32
    input label[batch]: i32 in classes
    param w[n, classes] = normal(0, 0.5)
    let logits = sum[n](x * w)
    loss l = mean[batch](cross_entropy[classes](logits, label))
    metric max accuracy = mean[batch](argmax[classes](logits) == label)
    output class = argmax[classes](logits)
}
train small { minimize l optimizer sgd(lr = 0.1) }
"""


def command(*words, check=True, **more):
    """Runs the command as a process."""
    done = subprocess.run([sys.executable, "-m", "meshwright", *map(str, words)], capture_output=True, text=True, **more)
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, in which the test works."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def batch(n=4, seed=0):
    """A batch of the small model."""
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((n, 3)).astype(np.float32)
    return {"x": x, "label": draw.integers(0, 5, n).astype(np.int32)}
