"""Writes what a binary is made of: the notices of third parties, and an SBOM in CycloneDX 1.5.

usage: bill.py FOLDER FEATURES, with `cargo metadata` of those features on standard input.
"""

import hashlib
import json
import pathlib
import re
import sys
import tomllib

NOTICE = re.compile(r"^(licen[cs]e|copying|notice|unlicense|copyright)", re.I)
ROOT = "meshwright-cli"


def parts(metadata):
    """Packages that are built into the binary, ours too: what it reaches by normal dependencies."""
    packages = {p["id"]: p for p in metadata["packages"]}
    nodes = {n["id"]: n for n in metadata["resolve"]["nodes"]}
    todo = [i for i, p in packages.items() if p["name"] == ROOT]
    uses = {}
    while todo:
        at = todo.pop()
        if at in uses:
            continue
        normal = [d["pkg"] for d in nodes[at]["deps"] if any(k["kind"] is None for k in d["dep_kinds"])]
        # Macros run when it is built, and are not in it.
        uses[at] = [i for i in normal if not any("proc-macro" in t["kind"] for t in packages[i]["targets"])]
        todo += uses[at]
    return packages, uses


def texts(package):
    """License and notice files of a package."""
    folder = pathlib.Path(package["manifest_path"]).parent
    found = [p for p in sorted(folder.iterdir()) if p.is_file() and NOTICE.match(p.name)]
    named = package.get("license_file")
    if named and (folder / named).is_file() and folder / named not in found:
        found.append(folder / named)
    return [p.read_text(errors="replace").strip() for p in found]


def notices(packages, uses):
    """Each text once, below the packages that have it; and the packages without one."""
    held, without = {}, []
    for package in sorted((packages[i] for i in uses), key=lambda p: (p["name"], p["version"])):
        if package["source"] is None:
            continue
        name = f"{package['name']} {package['version']} ({package['license'] or 'see its text'})"
        found = texts(package)
        if not found:
            without.append(f"{name}, {package['repository']}")
        for text in found:
            held.setdefault(text, []).append(name)
    lines = ["Meshwright contains the following software of third parties.", ""]
    for text, names in held.items():
        lines += ["=" * 100, *names, "=" * 100, "", text, ""]
    if without:
        lines += ["=" * 100, "Without a text in their packages, under the license that they name:", *without, ""]
    return "\n".join(lines), len(without)


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, sums):
    out = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
    }
    if package["license"]:
        # Cargo once allowed `MIT/Apache-2.0`.
        out["licenses"] = [{"expression": re.sub(r" ?/ ?", " OR ", package["license"])}]
    if package["repository"]:
        out["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    known = sums.get((package["name"], package["version"]))
    if known:
        out["hashes"] = [{"alg": "SHA-256", "content": known}]
    return out


def bill(packages, uses, sums, features):
    root = next(packages[i] for i in uses if packages[i]["name"] == ROOT)
    order = sorted(uses, key=lambda i: reference(packages[i]))
    seed = hashlib.sha256(json.dumps([reference(packages[i]) for i in order]).encode()).hexdigest()
    whole = {**component(root, sums), "type": "application", "name": "meshwright"}
    whole["properties"] = [{"name": "cargo:features", "value": features}]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{seed[:8]}-{seed[8:12]}-4{seed[13:16]}-8{seed[17:20]}-{seed[20:32]}",
        "version": 1,
        "metadata": {"component": whole},
        "components": [component(packages[i], sums) for i in order if packages[i] is not root],
        "dependencies": [
            {"ref": reference(packages[i]), "dependsOn": sorted({reference(packages[d]) for d in uses[i]})} for i in order
        ],
    }


def main():
    folder, features = pathlib.Path(sys.argv[1]), sys.argv[2]
    metadata = json.load(sys.stdin)
    packages, uses = parts(metadata)
    lock = tomllib.loads(pathlib.Path(metadata["workspace_root"], "Cargo.lock").read_text())
    sums = {(p["name"], p["version"]): p.get("checksum") for p in lock["package"]}
    foreign = [packages[i] for i in uses if packages[i]["source"]]
    unsummed = [reference(p) for p in foreign if not sums.get((p["name"], p["version"]))]
    assert not unsummed, f"not in Cargo.lock: {unsummed}"
    unlicensed = [reference(p) for p in foreign if not p["license"] and not texts(p)]
    assert not unlicensed, f"without a license: {unlicensed}"
    text, without = notices(packages, uses)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "THIRD-PARTY.txt").write_text(text)
    made = bill(packages, uses, sums, features)
    (folder / "meshwright.cdx.json").write_text(json.dumps(made, indent=1) + "\n")
    missing = [reference(p) for p in foreign if f"{p['name']} {p['version']} (" not in text]
    assert len(foreign) > 50 and not missing, f"without a notice: {missing}"
    print(f"{len(foreign)} packages of third parties, {without} without a text of their own")


main()
