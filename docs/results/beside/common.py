"""Helpers shared by the peer measurements: timing, mesh strings, MNIST, HLO.

Nothing here imports TensorFlow, JAX or PyTorch, so each script can set the
environment variables that those libraries read before it imports them.
"""

import argparse
import json
import os
import re
import resource
import statistics
import time


def parse_mesh(text):
    """'1' -> (1,), '2x2' -> (2, 2)."""
    return tuple(int(p) for p in text.lower().split("x"))


def parse_layout(text):
    """'batch:rows;hidden:cols' -> {'batch': 'rows', 'hidden': 'cols'}."""
    out = {}
    for pair in re.sub("[,.;]", " ", text).split():
        dim, axis = pair.split(":")
        if dim in out:
            raise SystemExit(f"layout names {dim} twice: {text}")
        out[dim] = axis
    return out


class Times(list):
    """Wall seconds of each step, and the CPU milliseconds of a mean step."""

    cpu_ms = None


def time_steps(step, warmup, steps):
    """Calls step() warmup + steps times; returns the Times of the last ones.

    CPU time sums all threads of this process: on a shared machine it hardly
    moves when another job takes cores away, where wall time does.
    """
    for _ in range(warmup):
        step()
    out = Times()
    cpu = time.process_time()
    for _ in range(steps):
        t = time.perf_counter()
        step()
        out.append(time.perf_counter() - t)
    out.cpu_ms = 1e3 * (time.process_time() - cpu) / steps
    return out


def summary(seconds):
    """Median and spread, in milliseconds."""
    ms = sorted(1e3 * s for s in seconds)
    pick = lambda q: ms[min(len(ms) - 1, int(q * len(ms)))]
    cpu = getattr(seconds, "cpu_ms", None)
    return {
        "cpu_ms_per_step": None if cpu is None else round(cpu, 4),
        "samples": len(ms),
        "median_ms": round(statistics.median(ms), 4),
        "min_ms": round(ms[0], 4),
        "p10_ms": round(pick(0.10), 4),
        "p90_ms": round(pick(0.90), 4),
    }


def load_average():
    return round(os.getloadavg()[0], 2)


def peak_rss_mib():
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def emit(record):
    print(json.dumps(record, sort_keys=True), flush=True)


def base_parser(doc):
    p = argparse.ArgumentParser(description=doc)
    p.add_argument("--steps", type=int, default=30, help="timed steps")
    p.add_argument("--warmup", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seed", type=int, default=0)
    return p




_BYTES = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "bf16": 2,
    "f16": 2,
    "s16": 2,
    "u16": 2,
    "f32": 4,
    "s32": 4,
    "u32": 4,
    "f64": 8,
    "s64": 8,
    "u64": 8,
}
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)


def hlo_collectives(text):
    """Counts and per-device result bytes of the collectives in compiled HLO.

    A combined collective (tuple result) counts once in `count` and once per
    tuple element in `operands`. `bytes` sums the results of each device.
    """
    out = {}
    line_re = re.compile(r"=\s+(?P<shape>\(.*?\)|\S+)\s+(?P<op>" + "|".join(_COLLECTIVES) + r")(?:-start)?\(")
    for line in text.splitlines():
        m = line_re.search(line)
        if not m:
            continue
        rec = out.setdefault(m.group("op"), {"count": 0, "operands": 0, "bytes": 0})
        rec["count"] += 1
        for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", m.group("shape")):
            if dtype not in _BYTES:
                continue
            n = 1
            for d in filter(None, dims.split(",")):
                n *= int(d)
            rec["operands"] += 1
            rec["bytes"] += n * _BYTES[dtype]
    return out
