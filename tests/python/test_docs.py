"""The examples of docs/python.md, one after the other."""

import json
import os
import re
from pathlib import Path

import reference
from conftest import command


def test_the_examples_run(here):
    repository = Path(os.environ.get("REPOSITORY", Path(__file__).parents[2]))
    page = (repository / "docs/python.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(examples) == 6
    names: dict = {}
    for example in examples:
        exec(compile(example, "docs/python.md", "exec"), names)


def test_the_notebooks_of_new_projects_run(here, monkeypatch):
    for template in ("mlp", "bert"):
        command("new", f"{template}s", "--template", template)
        with monkeypatch.context() as at:
            at.chdir(f"{template}s")
            cells = json.loads(Path(f"{template}s.ipynb").read_text())["cells"]
            names: dict = {}
            for cell in cells:
                if cell["cell_type"] == "code":
                    exec(compile("".join(cell["source"]), f"{template}s.ipynb", "exec"), names)
            assert names["out"]["loss"] > 0 and names["run"].loss > 0


def test_the_reference_has_the_docstrings():
    assert reference.PAGE.read_text() == reference.page(), "tests/python/reference.py --write makes it anew"
