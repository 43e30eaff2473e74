"""Neovim itself: a hover, a fix, a rename over two files, and formatting."""

import json
import subprocess
from pathlib import Path

from conftest import LAYOUT, MODEL, at


def test_a_real_editor_shows_fixes_renames_and_formats(folder):
    assert at(MODEL, "hidden") == (2, 28) and at(MODEL, "let h")[0] == 7  # where the script puts the cursor
    script = Path(__file__).with_name("init.lua")
    done = subprocess.run(
        ["nvim", "--headless", "--clean", "-u", "NONE", "-i", "NONE", "-c", f"luafile {script}"],
        cwd=folder, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL,
    )
    said = json.loads((folder / "said.json").read_text())
    assert "why" not in said, (said["why"], done.stderr)
    assert said["code"] == "E0201" and said["fixed"] == MODEL
    for piece in ("h", "hidden", "cols", "batch", "rows"):
        assert piece in said["hover"], said["hover"]
    assert said["renamed"] == MODEL.replace("hidden", "wide")
    assert said["renamed_layout"] == LAYOUT.replace("hidden", "wide")
    assert said["formatted"] == said["renamed"]
