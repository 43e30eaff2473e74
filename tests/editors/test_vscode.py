"""The extension for VS Code: it is packed as its page says, starts the server, and says what to do where there is none."""

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from conftest import REPOSITORY


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm")
def test_the_extension_is_packed_and_starts_the_server(tmp_path):
    at = tmp_path / "vscode"
    shutil.copytree(REPOSITORY / "docs/editors/vscode", at, ignore=shutil.ignore_patterns("node_modules", "dist", "*.vsix"))
    for words in (["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"], ["npm", "run", "package"]):
        done = subprocess.run(words, cwd=at, capture_output=True, text=True, env={**os.environ, "CI": "1"})
        assert done.returncode == 0, done.stdout + done.stderr
    packed = next(at.glob("*.vsix"))
    names = set(zipfile.ZipFile(packed).namelist())
    assert "extension/dist/extension.js" in names and "extension/syntaxes/meshwright.tmLanguage.json" in names
    assert not any("node_modules" in name for name in names)

    def activated(command):
        script = Path(__file__).with_name("extension.cjs")
        done = subprocess.run(["node", script, at / "dist/extension.js", command], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.strip().splitlines()[-1])["errors"]

    assert activated(shutil.which("meshwright")) == []
    missing = activated("/nowhere/meshwright")
    assert "Set meshwright.command" in missing[-1], missing
