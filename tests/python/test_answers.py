"""What a layout does, and errors: the same as the command says."""

import json
import pickle

import pytest
from conftest import MODEL, command

import meshwright as mw

PROJECT = {"layout": "dp_tp", "mesh": "2x2", "dims": {"batch": 32}, "preset": "tiny"}
WORDS = ["--layout", "dp_tp", "--mesh", "2x2", "--dim", "batch=32", "--preset", "tiny"]


def test_an_explanation_is_that_of_the_command():
    found = mw.Project("bert", **PROJECT).explain()
    assert str(found) == command("explain", "bert", *WORDS).stdout
    report = json.loads(command("explain", "bert", *WORDS, "--format", "json").stdout)
    assert found.data == report
    assert found.totals == report["totals"] and len(found.totals) > 1
    table = found.to_pandas()
    assert len(table) == len(report["collectives"]) > 10 and {"op", "axes"} <= set(table.columns)
    page = found._repr_html_()
    assert page.startswith("<iframe") and len(found.page()) > 10_000 and "http://" not in found.page().split("<body")[0]


def test_a_comparison_has_the_numbers_of_the_command():
    found = mw.Project("bert", preset="tiny", mesh="data=4").compare(["dp", "zero3"])
    words = ["compare", "bert", "--preset", "tiny", "--mesh", "data=4", "--layout", "dp", "--layout", "zero3"]
    assert found.data == json.loads(command(*words, "--format", "json").stdout)
    table = found.to_pandas()
    assert list(table.layout) == ["dp", "zero3"] and table.peak_bytes[0] > table.peak_bytes[1] > 0
    # On a mesh of two axes, layouts of one have all its devices.
    of_two = mw.Project("bert", preset="tiny", layout="dp_tp", mesh="2x2").compare(["dp", "zero3"])
    assert of_two.data == found.data
    sizes = mw.Project("mnist_mlp").compare(["dp"], meshes=["2", "4"], dims={"batch": [100, 200]}).table()
    assert [(r["batch"], r["mesh"]) for r in sizes] == [(100, "data=2"), (100, "data=4"), (200, "data=2"), (200, "data=4")]


def test_tables_are_shown_with_digits_that_can_be_read():
    shown = mw.Table([{"name": "a<b", "loss": 2.362640857696533, "step": 12345678}])._repr_html_()
    assert shown == "<table><tr><th>name</th><th>loss</th><th>step</th></tr><tr><td>a&lt;b</td><td>2.36264</td><td>12345678</td></tr></table>"


def test_a_model_can_be_a_text():
    found = mw.Project(mw.Model(MODEL)).explain()
    assert "logits" in {v["value"] for v in found.data["values"]}


def test_an_error_is_the_diagnostic_of_the_command(here):
    text = MODEL.replace("cross_entropy[classes]", "cross_entropy[clases]")
    (here / "wrong.mw").write_text(text)
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.Project("wrong.mw")
    error = caught.value
    done = command("check", "wrong.mw", check=False)
    assert done.returncode == error.exit_code == 1 and str(error) == done.stderr.rstrip()
    assert error.code in done.stderr and error.code.startswith("E02")
    assert error.labels[0]["line"] == 8 and error.labels[0]["file"] == "wrong.mw"
    # What it names as a fix makes the text right.
    assert error.fixes, str(error)
    fix = error.fixes[0]
    lines = text.splitlines()
    line = lines[fix["line"] - 1]
    lines[fix["line"] - 1] = line[: fix["column"] - 1] + fix["replacement"] + line[fix["end"]["column"] - 1 :]
    mw.Project(mw.Model("\n".join(lines)))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, again.fixes) == (str(error), error.code, error.fixes)


def test_options_that_make_no_sense_are_said_like_those_of_the_command():
    with pytest.raises(mw.MeshwrightError) as caught:
        mw.Project("bert", nonsense=True)
    assert caught.value.exit_code == 2 and caught.value.code is None and "--nonsense" in str(caught.value)
    with pytest.raises(mw.MeshwrightError, match="did you mean the shipped model `bert`"):
        mw.Project("brt")
