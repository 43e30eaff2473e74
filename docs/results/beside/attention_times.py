"""Medians of the steps of attention in files that `meshwright bench model --trace` wrote."""

import json, sys, statistics

for f in sys.argv[1:]:
    ev = json.load(open(f))
    ev = ev["traceEvents"] if isinstance(ev, dict) else ev
    d = {}
    for e in ev:
        if e.get("ph") == "X" and "attention" in e.get("name", ""):
            d.setdefault(e["name"], []).append(e["dur"] / 1e3)
    print(f, {k: (round(statistics.median(v), 2), len(v)) for k, v in d.items()})
