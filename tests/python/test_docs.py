"""The examples of docs/python.md, one after the other."""

import os
import re
from pathlib import Path


def test_the_examples_run(here):
    repository = Path(os.environ.get("REPOSITORY", Path(__file__).parents[2]))
    page = (repository / "docs/python.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(examples) == 6
    names: dict = {}
    for example in examples:
        exec(compile(example, "docs/python.md", "exec"), names)
