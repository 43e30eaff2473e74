"""With LONG=1: loaders, loggers and notebooks that people use; the time of a step beside the command's."""

import os
import statistics
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import MODEL, batch, long

import meshwright as mw

pytestmark = long
REPOSITORY = Path(os.environ.get("REPOSITORY", Path(__file__).parents[2]))


def test_a_data_loader_of_pytorch_feeds_a_session():
    import torch

    given = batch(40)
    examples = [{"x": torch.from_numpy(x), "label": int(label)} for x, label in zip(given["x"], given["label"])]
    project = mw.Project(mw.Model(MODEL))
    by_hand = project.session()
    losses = [by_hand.step({n: v[i : i + 4] for n, v in given.items()})["loss"] for i in range(0, 40, 4)]
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(examples, batch_size=4, num_workers=workers)
        session = project.session()
        assert [session.step(b)["loss"] for b in loader] == losses
    state = {"head.weight": torch.nn.Linear(3, 5, bias=False).weight.detach()}
    by_hand.load(state, map="w = head.weight transposed")
    assert np.array_equal(by_hand.parameters()["w"], state["head.weight"].numpy().T)


def test_loggers_take_events(here, monkeypatch):
    import mlflow
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged = wandb.init(project="meshwright", dir=str(here))
    mlflow.set_tracking_uri((here / "mlflow").as_uri())

    def callback(event):
        numbers = {name: v for name, v in event.items() if isinstance(v, (int, float))}
        logged.log(numbers)
        if event["event"] == "step":
            mlflow.log_metric("loss", event["loss"], step=event["step"])

    with mlflow.start_run() as run:
        done = mw.train(mw.Model(MODEL), data=batch(40), epochs=2, callback=callback)
    assert logged.summary["loss"] == done.loss
    logged.finish()
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    steps = [e for e in done.events if e["event"] == "step"]
    assert [m.value for m in history] == [e["loss"] for e in steps] and len(steps) == 20


def test_digits_of_scikit_learn_are_learnt():
    from sklearn.datasets import load_digits
    from sklearn.metrics import accuracy_score
    from sklearn.model_selection import train_test_split

    x, label = load_digits(return_X_y=True)
    x, x_test, label, label_test = train_test_split(x / 16, label, test_size=297, random_state=0)
    model = mw.Model(MODEL.replace("batch = 4, n = 3, classes = 5", "batch = 50, n = 64, classes = 10"))
    with mw.Project(model, layout="batch -> r", mesh="r=2").session() as session:
        for epoch in range(20):
            for at in np.random.default_rng(epoch).permutation(1500).reshape(-1, 50):
                session.step({"x": x[at], "label": label[at]})
        found = session.predict({"x": x_test})["class"]
    assert accuracy_score(label_test, found) > 0.9


TOKENS = """
dim batch = 2, seq = 8, vocab = 60, d = 4
model tokens {
    input token[batch, seq]: i32 in vocab
    input real [batch, seq]: bool
    param word[vocab, d] = normal(0, 0.5)
    param w[d, vocab] = normal(0, 0.5)
    let logits = sum[d](word[vocab = token] * w)
    loss l = sum[batch, seq](cross_entropy[vocab](logits, token) * cast(real, float)) / sum[batch, seq](cast(real, float))
}
train tokens { minimize l optimizer sgd(lr = 0.5) }
"""


def test_a_tokenizer_of_transformers_feeds_a_session():
    import tokenizers
    import transformers

    texts = ["the mesh splits the batch", "every axis holds a shard of all weights"]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=["[UNK]", "[PAD]"]))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]")
    with mw.Project(mw.Model(TOKENS)).session() as session:
        losses = []
        for _ in range(20):
            given = tokenizer(texts, padding="max_length", truncation=True, max_length=8, return_tensors="np")
            losses.append(session.step({"token": given["input_ids"], "real": given["attention_mask"] == 1})["loss"])
    assert losses[-1] < 0.8 * losses[0], losses


def test_the_notebook_runs(here):
    import nbclient
    import nbformat

    notebook = nbformat.read(REPOSITORY / "docs/python.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [o for c in notebook.cells for o in c.get("outputs", []) if "text/html" in o.get("data", {})]
    assert any("<iframe" in o["data"]["text/html"] for o in shown)
    assert not [o for c in notebook.cells for o in c.get("outputs", []) if o.output_type == "error"]


def test_a_step_takes_what_it_takes_in_the_command(here):
    """Of tiny BERT: around the seconds of a step, which a session notes as the command's loop does, Python adds less than 3 %."""
    project, times = mw.Project("bert", preset="tiny"), []
    with project.session() as session:
        for given in project.batches(data="king_james_masked", steps=60):
            begin = time.perf_counter()
            session.step(given)
            times.append(time.perf_counter() - begin)
        session.save("run")
    noted = [e["seconds"] for e in mw.Run("run").steps]
    found = statistics.median(ours / of_loop for ours, of_loop in zip(times, noted))
    assert 1 <= found < 1.03, found
