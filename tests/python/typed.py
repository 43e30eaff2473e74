"""What type checkers see of the package: `mypy --strict` accepts all of it."""

import numpy as np

import meshwright as mw


def trained() -> float:
    project = mw.Project("mnist_mlp", layout="dp", mesh="2", dims={"batch": 20})
    with project.session(seed=1, metrics=["accuracy"]) as session:
        images = np.zeros((20, 28, 28), np.uint8)
        loss = session.step({"image": images, "label": np.zeros(20, np.int32)})["loss"]
        weights = session.parameters()["h1.w"]
        assert weights.dtype == np.float32
    return float(loss)


def compared() -> list[str]:
    try:
        found = mw.Project("mnist_mlp", mesh="4").compare(["dp", "tp"])
    except mw.MeshwrightError as error:
        return [error.code or ""]
    return [str(row["layout"]) for row in found.table()]
