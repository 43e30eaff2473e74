"""Sessions: steps, evaluations and predictions have the bits of the command; what is wrong with a batch; threads, forks and Ctrl-C."""

import gc
import multiprocessing
import os
import signal
import threading
import time
import tracemalloc

import numpy as np
import pytest
from conftest import LONG, MODEL, batch, command

import meshwright as mw

LAYOUT = {"layout": "batch -> r; hidden1 -> c", "mesh": "r=2,c=2"}
STEPS = 6


def test_results_are_those_of_the_command(here):
    project = mw.Project("mnist_mlp", **LAYOUT)
    session = project.session(seed=3, metrics=["accuracy"])
    told = [session.step(b) for b in project.batches(seed=3, steps=STEPS)]
    words = ["--layout", LAYOUT["layout"], "--mesh", LAYOUT["mesh"]]
    command("train", "mnist_mlp", *words, "--seed", 3, "--steps", STEPS, "--metrics", "accuracy", "--run", "by_command")
    events = [e for e in mw.Run("by_command").metrics if e["event"] == "step"]
    assert [(t["loss"], t["accuracy"]) for t in told] == [(e["loss"], e["train_accuracy"]) for e in events]
    session.save("by_session")
    files = [next((here / run / "checkpoints").rglob("*.safetensors")) for run in ("by_command", "by_session")]
    tensors = [read_safetensors(f) for f in files]
    assert tensors[0].keys() == tensors[1].keys() and len(tensors[0]) > 6
    assert all(tensors[0][name] == tensors[1][name] for name in tensors[0])
    for name, value in session.parameters().items():
        assert value.tobytes() == tensors[0][name], name
    # On one device too, from the checkpoint.
    by_command = mw.Run("by_command").evaluate()
    evaluated = session.evaluate(project.batches(split="test"))
    assert by_command["loss"] == evaluated["loss"] and by_command["accuracy"] == evaluated["accuracy"]
    assert mw.Run("by_session").evaluate()["loss"] == evaluated["loss"]
    steps = [e for e in mw.Run("by_session").metrics if e["event"] == "step"]
    assert [e["loss"] for e in steps] == [t["loss"] for t in told]
    command("predict", "by_command", "--output", "class", "--to", "predicted.npy", "--limit", 100)
    first = project.batches(split="test")[0]
    assert np.array_equal(session.predict(first)["class"], np.load("predicted.npy"))


def test_warnings_are_those_of_the_command(here, capfd):
    text = """dim batch = 8, d = 4
model m {
    input x[batch, d]: float
    param w[d] = normal(0, 1)
    output centered = x * w - mean[batch](x * w)
    loss l = mean[batch, d](square(x * w - 1))
}
train m { minimize l optimizer sgd(lr = 0.1) }
"""
    session = mw.Project(mw.Model(text)).session()
    given = {"x": np.zeros((8, 4), np.float32)}
    session.predict(given, outputs=["centered"])
    assert capfd.readouterr().err.count("warning") == 1
    # It is said once.
    session.predict(given, outputs=["centered"])
    assert capfd.readouterr().err == ""


def read_safetensors(file):
    import json

    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    offsets = {name: t["data_offsets"] for name, t in header.items()}
    return {name: data[8 + size + a : 8 + size + b] for name, (a, b) in offsets.items()}


def small(**options):
    return mw.Project(mw.Model(MODEL)).session(**options)


def test_arrays_come_in_many_forms():
    given = batch()
    plain = small().step(given)["loss"]

    class Own:
        def __init__(self, array):
            self.array = array

        def __array__(self, dtype=None, copy=None):
            return self.array

    class Capsule:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **more):
            return self.array.__dlpack__(**more)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    strided = np.empty((3, 8), np.float32).T[::2]
    strided[:] = given["x"]
    forms = [Own(given["x"]), Capsule(given["x"]), strided, given["x"].astype(np.float64), given["x"].tolist()]
    for form in forms:
        assert small().step({"x": form, "label": given["label"].astype(np.int64)})["loss"] == plain, form


def test_arrays_are_not_copied_where_their_memory_is_as_it_must_be():
    from meshwright._data import taken

    whole = np.zeros((64, 1024), np.float32)
    readonly = whole.view()
    readonly.flags.writeable = False
    for same in (whole, whole[::2], whole.T, whole[:, 3:], readonly):
        assert np.shares_memory(taken("x", same, "float32"), same)
    unaligned = np.zeros(whole.nbytes + 1, np.uint8)[1:].view(np.float32)
    for other in (whole.astype(np.float64), whole.astype(">f4"), unaligned):
        assert not np.shares_memory(taken("x", other, "float32"), other)
    # What Python takes for a step is less than the arrays of the batch: NumPy tells `tracemalloc` of its memory.
    project = mw.Project("mnist_mlp", dims={"batch": 2000}, layout="dp", mesh="data=2")
    with project.session() as session:
        given = project.batches()[0]
        session.step(given)
        tracemalloc.start()
        session.step(given)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < sum(a.nbytes for a in given.values()) / 10, most


def test_what_is_wrong_with_a_batch_is_said():
    session = small()
    assert session.inputs["label"] == (["batch"], [4], "int32", 5)
    wrong = [
        ("E0503", {"x": batch()["x"]}),
        ("E0503", batch() | {"y": batch()["x"]}),
        ("E0504", batch() | {"x": np.zeros((4, 2), np.float32)}),
        ("E0504", batch(3)),
        ("E0505", batch() | {"label": np.zeros(4, np.float32)}),
        ("E0506", batch() | {"label": np.full(4, 5, np.int32)}),
        ("E0506", batch() | {"label": np.full(4, -1, np.int32)}),
        ("E0506", batch() | {"x": np.full((4, 3), np.nan, np.float32)}),
    ]
    for code, given in wrong:
        with pytest.raises(mw.MeshwrightError) as caught:
            session.step(given)
        assert caught.value.code == code, str(caught.value)
    with pytest.raises(OverflowError, match="label"):
        session.step(batch() | {"label": np.full(4, 2**32, np.int64)})
    with pytest.raises(mw.MeshwrightError, match="no batch to evaluate on"):
        session.evaluate([])
    assert session.steps == 0 and session.step(batch())["loss"] > 0
    session.close()
    with pytest.raises(mw.MeshwrightError, match="the session is closed"):
        session.step(batch())


def test_evaluations_take_batches_of_any_size():
    session = small()
    given = batch(10)
    whole = session.evaluate([given])
    parts = [{name: value[a:b] for name, value in given.items()} for a, b in ((0, 4), (4, 8), (8, 10))]
    found = session.evaluate(parts)
    assert abs(found["accuracy"] - whole["accuracy"]) < 1e-6 and abs(found["loss"] - whole["loss"]) < 1e-6
    logits = session.predict({"x": given["x"]}, values=["logits"])["logits"]
    assert logits.shape == (10, 5) and np.array_equal(logits.argmax(1), session.predict({"x": given["x"]})["class"])
    weights = session.parameters()["w"]
    assert np.allclose(logits, given["x"] @ weights, atol=1e-6)


def test_parameters_are_taken_from_a_state_dict():
    session = small()
    weights = np.arange(15, dtype=np.float32).reshape(3, 5)
    assert "took 1 of 1" in session.load({"w": weights})[0]
    assert np.array_equal(session.parameters()["w"], weights)
    session.load({"head.weight": np.ascontiguousarray(weights.T * 2)}, map="w = head.weight transposed")
    assert np.array_equal(session.parameters()["w"], weights * 2)
    session.load({"head": weights}, map={"w": "head"})
    assert np.array_equal(session.parameters()["w"], weights)
    with pytest.raises(mw.MeshwrightError) as caught:
        session.load({"w": weights[:2]})
    assert caught.value.code == "E0513"


def test_a_session_goes_on_from_a_run(here):
    first = small()
    told = [first.step(batch(seed=n))["loss"] for n in range(6)]
    second = small()
    for n in range(3):
        second.step(batch(seed=n))
    second.save("half")
    third = small(seed=9)
    third.resume("half")
    assert third.steps == 3
    assert [third.step(batch(seed=n))["loss"] for n in (3, 4, 5)] == told[3:]
    # The same folder takes what comes later.
    second.step(batch(seed=3))
    second.save("half")
    assert [e["loss"] for e in mw.Run("half").steps] == told[:4]
    with pytest.raises(mw.MeshwrightError) as caught:
        third.save("half")
    assert caught.value.code == "E0510"


def test_two_sessions_at_once_in_two_threads():
    alone = small().step(batch())["loss"]
    found = []

    def steps():
        session = small()
        found.append([session.step(batch())["loss"] for _ in range(200)])

    threads = [threading.Thread(target=steps) for _ in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert found[0] == found[1] and found[0][0] == alone


def counted():
    gc.collect()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def test_sessions_that_are_closed_or_dropped_leave_no_threads_or_files():
    project = mw.Project(mw.Model(MODEL), layout="batch -> r", mesh="r=2")
    times = 10_000 if LONG else 2000

    def one(n):
        session = project.session()
        if n % 10 == 0:
            session.step(batch())
        if n % 2:
            session.close()

    for n in range(20):
        one(n)
    before, memory = counted(), resident()
    for n in range(times):
        one(n)
    # Threads of a pool end by themselves, soon.
    deadline = time.monotonic() + 10
    while counted()[0] > before[0] and time.monotonic() < deadline:
        time.sleep(0.05)
    after = counted()
    assert after[0] <= before[0] and after[1] <= before[1], (before, after)
    grown = resident() - memory
    # Memory that is free again is kept for the next sessions, and never more.
    assert grown < 10_000_000, f"{grown} bytes after {times} sessions"


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_interpreter_is_free_while_a_step_runs():
    project = mw.Project("mnist_mlp", dims={"batch": 2000})
    session = project.session()
    given = project.batches()[0]
    session.step(given)
    turns, done = [0], threading.Event()

    def count():
        while not done.is_set():
            turns[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    begin = turns[0]
    for _ in range(5):
        session.step(given)
    found = turns[0] - begin
    done.set()
    thread.join()
    assert found > 100, found


def test_ctrl_c_ends_a_step_and_keeps_the_session():
    project = mw.Project("mnist_mlp", dims={"batch": 2000})
    session = project.session()
    given = project.batches()[0]
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            session.step(given)
    steps = session.steps
    session.step(given)
    assert session.steps == steps + 1 > 1


def in_a_fork(session, queue):
    for use in (lambda: session.step(batch()), lambda: mw.Project("mnist_mlp"), lambda: small()):
        try:
            use()
            queue.put("it worked")
        except mw.MeshwrightError as error:
            queue.put(str(error))
    # A session that is dropped there ends nobody's threads.
    del session
    gc.collect()
    queue.put("dropped")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_is_refused_with_advice():
    session = small()
    before = session.step(batch())
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=in_a_fork, args=(session, queue))
    process.start()
    said = [queue.get(timeout=60) for _ in range(4)]
    process.join(60)
    assert process.exitcode == 0
    assert all("is a fork of process" in s and "spawn" in s for s in said[:3]), said
    assert said[3] == "dropped" and session.step(batch())["loss"] < before["loss"]
