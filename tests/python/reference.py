"""Makes docs/python-reference.md of the docstrings of the package's source, without importing it: `python3 reference.py [--write]`."""

import ast
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "runtime/python/package/meshwright"
PAGE = REPOSITORY / "docs/python-reference.md"
HEAD = """# The Python package

What [`import meshwright as mw`](python.md) has. `tests/python/reference.py --write` makes this page of the docstrings.
"""


def documented(node):
    return ast.get_docstring(node) is not None


def signature(node, method):
    """The call as one writes it: what is private has no place in it, and annotations of strings are types."""
    arguments = ast.parse(f"def f({ast.unparse(node.args)}): pass").body[0].args
    if method and arguments.args:
        arguments.args.pop(0)
    for extra in (arguments.kwarg, arguments.vararg):
        if extra is not None:
            extra.arg = extra.arg.rstrip("_")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{node.name}({ast.unparse(arguments)}){returns}"


def prose(text):
    """A docstring as Markdown: its sections are lists."""
    out, listed = [], False
    for line in text.splitlines():
        if line in ("Args:", "Attributes:", "Raises:"):
            out.append("Arguments:" if line == "Args:" else line)
            out.append("")
            listed = True
        elif listed and line.startswith("    ") and not line.startswith("        "):
            name, _, says = line.strip().partition(": ")
            out.append(f"- `{name}`: {says}")
        else:
            out.append(line.strip() if listed else line)
    return "\n".join(out).rstrip()


def entry(node, prefix, level):
    method = bool(prefix)
    names = [getattr(d, "id", getattr(d, "attr", "")) for d in node.decorator_list]
    title = f"{prefix}{node.name}"
    if "property" in names:
        form = f"{node.name}: {ast.unparse(node.returns)}"
    elif "classmethod" in names or isinstance(node, ast.FunctionDef):
        form = signature(node, method)
    return f"{'#' * level} `{title}`\n\n```\n{form}\n```\n\n{prose(ast.get_docstring(node))}\n"


def page():
    init = ast.parse((PACKAGE / "__init__.py").read_text())
    public = next(ast.literal_eval(n.value) for n in init.body if isinstance(n, ast.Assign) and n.targets[0].id == "__all__")
    found = {}
    for file in sorted(PACKAGE.glob("_*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in public:
                found[node.name] = node
    missing = [name for name in public if name not in found or not documented(found[name])]
    assert not missing, f"without a docstring: {missing}"
    parts = [HEAD]
    for name in public:
        node = found[name]
        if isinstance(node, ast.FunctionDef):
            parts.append(entry(node, "", 2))
            continue
        made = next((m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None)
        # What the package makes itself is not called by its users.
        given = [a.arg for a in made.args.args[1:2]] if made is not None else []
        called = given not in ([], ["words"], ["events"], ["said"])
        form = f"\n```\n{signature(made, True).replace('__init__', name).replace(' -> None', '')}\n```\n" if called else ""
        parts.append(f"## `{name}`\n{form}\n{prose(ast.get_docstring(node))}\n")
        members = [m for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")]
        bare = [f"{name}.{m.name}" for m in members if not documented(m)]
        assert not bare, f"without a docstring: {bare}"
        parts += [entry(m, f"{name}.", 3) for m in members]
    return "\n".join(parts)


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit(f"{PAGE} is out of date: tests/python/reference.py --write makes it anew")
