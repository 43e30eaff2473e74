"""The step of wide_mlp.mw in PyTorch, eager, with bf16 arithmetic and f32 master weights; and the card's matrix rate.

Prints one JSON line: median milliseconds of a step, TFLOP/s of the step and of a product of 8192^3 in bf16 (of random
values: zeros run faster). FLOP of a step: 2 * batch * weights for each of the three products of a layer, but for the first layer, whose
input needs no gradient.
"""
import argparse
import json
import statistics
import time

import torch


def timed(call, warmup, steps):
    for _ in range(warmup):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--batch", type=int, default=8192)
    p.add_argument("--width", type=int, default=8192)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--warmup", type=int, default=3)
    a = p.parse_args()
    torch.manual_seed(0)
    dev, n, b = "cuda", a.width, a.batch
    layers = []
    for _ in range(4):
        layers += [torch.nn.Linear(n, n), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(n, 10)).to(dev)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    x, y = torch.rand(b, n, device=dev), torch.randint(0, 10, (b,), device=dev)

    def step():
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(net(x).float(), y)
        loss.backward()
        opt.step()

    seconds = timed(step, a.warmup, a.steps)
    flop = 2 * b * (4 * n * n * 3 - n * n + 3 * n * 10)
    u, v = (torch.randn(8192, 8192, device=dev, dtype=torch.bfloat16) for _ in range(2))
    product = timed(lambda: torch.mm(u, v), a.warmup, a.steps)
    print(json.dumps({
        "peer": "torch", "version": torch.__version__, "device": torch.cuda.get_device_name(),
        "step_ms": round(seconds * 1e3, 2), "step_tflops": round(flop / seconds / 1e12, 1),
        "matrix_tflops": round(2 * 8192 ** 3 / product / 1e12, 1),
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }))


if __name__ == "__main__":
    main()
