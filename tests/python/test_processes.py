"""With a wheel that has MPI: a script of `mpirun`, in which every process calls the same."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import MODEL, batch, command

import meshwright as mw

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4", "--mca", "btl_base_warn_component_unused", "0"]
pytestmark = pytest.mark.skipif(
    shutil.which("mpirun") is None or "features: mpi" not in command("--version").stdout, reason="this wheel has no MPI, or there is no mpirun"
)

PROGRAM = """
import json, os, sys
import numpy as np
import meshwright as mw
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
model = mw.Model(open("small.mw").read())
project = mw.Project(model, layout="batch -> r; classes -> c", mesh="r=2,c=2")
told = {}
for name in ("first", "second"):
    with project.session(seed=3) as session:
        told[name] = [session.step({k: v[i] for k, v in np.load("batches.npz").items()})["loss"] for i in range(5)]
        told["evaluated"] = session.evaluate([{k: v[0] for k, v in np.load("batches.npz").items()}])
        told["predicted"] = session.predict({"x": np.load("batches.npz")["x"][0]})["class"].tolist()
        parameters = session.parameters()
        session.save(name)
told["parameters"] = {n: v.tolist() for n, v in parameters.items()}
data = {k: v.reshape(-1, *v.shape[2:]) for k, v in np.load("batches.npz").items()}
done = mw.train(model, layout="batch -> r; classes -> c", mesh="r=2,c=2", data=data, steps=4, run="trained")
told["trained"] = done.loss
json.dump(told, open(f"told.{rank}", "w"))
"""


def started(here, program, **more):
    (here / "small.mw").write_text(MODEL.replace("classes = 5", "classes = 6"))
    (here / "program.py").write_text(program)
    given = [batch(seed=n) for n in range(5)]
    np.savez(here / "batches.npz", **{name: np.stack([b[name] for b in given]) for name in given[0]})
    return subprocess.run([*MPIRUN, sys.executable, "program.py"], capture_output=True, text=True, timeout=300, **more)


def test_a_script_of_mpirun_has_the_bits_of_threads(here):
    done = started(here, PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads((here / f"told.{rank}").read_text()) for rank in range(4)]
    given = np.load(here / "batches.npz")
    project = mw.Project("small.mw", layout="batch -> r; classes -> c", mesh="r=2,c=2")
    with project.session(seed=3) as session:
        losses = [session.step({k: v[i] for k, v in given.items()})["loss"] for i in range(5)]
        evaluated = session.evaluate([{k: v[0] for k, v in given.items()}])
        predicted = session.predict({"x": given["x"][0]})["class"].tolist()
        parameters = {n: v.tolist() for n, v in session.parameters().items()}
    for found in told:
        assert found["first"] == found["second"] == losses
        assert found["evaluated"] == evaluated and found["predicted"] == predicted
    # The first process has them, and writes.
    assert told[0]["parameters"] == parameters and all(found["parameters"] == {} for found in told[1:])
    for name in ("first", "second"):
        assert [e["loss"] for e in mw.Run(name).steps] == losses
    assert told[0]["trained"] == mw.Run("trained").steps[-1]["loss"]


def test_a_script_that_fails_in_one_process_ends_all(here):
    done = started(here, PROGRAM.replace('told = {}', 'if rank == 2: raise ValueError("enough")\ntold = {}'))
    assert done.returncode != 0 and "enough" in done.stderr, done.stderr
    late = "        if rank == 1: raise ValueError('enough')\n        parameters ="
    done = started(here, PROGRAM.replace("        parameters =", late))
    assert done.returncode != 0 and "enough" in done.stderr, done.stderr
    assert not os.path.exists("told.0")


def test_what_is_wrong_is_raised_by_all(here):
    wrong = PROGRAM.replace('mesh="r=2,c=2")\ntold', 'mesh="r=2,c=4")\ntold')
    wrong = wrong.replace("for name in", "try:\n    project.session()\nexcept mw.MeshwrightError as e:\n    json.dump([e.code, str(e)], open(f'said.{rank}', 'w'))\n    sys.exit(3)\nfor name in", 1)
    done = started(here, wrong)
    assert done.returncode == 3, done.stderr
    (first, text), *others = (json.loads((here / f"said.{rank}").read_text()) for rank in range(4))
    assert first == "E0307" and "the mesh r=2 x c=4 has 8 devices" in text
    assert all(code in (first, None) and said.startswith("error") for code, said in others), others
