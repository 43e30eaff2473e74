"""A training step of BERT-base or GPT small in PyTorch: bf16 arithmetic and f32 parameters, the library's fused attention and fused
AdamW, gradients clipped to a norm of 1, dropout 0.1; eager, and compiled with --compile. What models/bert.mw and models/gpt.mw
compute, but for padding and documents, which these have none of: less work, so no unfair peer.

Prints one JSON line: median milliseconds of a step, milliseconds of the first one, peak bytes.
"""
import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {
    "bert": dict(batch=64, seq=512, places=512, vocab=30522),
    "gpt": dict(batch=16, seq=1024, places=1024, vocab=50257),
}


class Block(nn.Module):
    """A layer of the encoder (normalized after, gelu) or of the decoder (normalized before, causal, gelu by tanh)."""

    def __init__(self, d, heads, ff, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, ff), nn.Linear(ff, d)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.drop = nn.Dropout(0.1)

    def attend(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=0.1 if self.training else 0.0)
        return self.out(y.transpose(1, 2).flatten(2))

    def feed(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh" if self.causal else "none"))

    def forward(self, x):
        if self.causal:
            x = x + self.drop(self.attend(self.norm1(x)))
            return x + self.drop(self.feed(self.norm2(x)))
        x = self.norm1(x + self.drop(self.attend(x)))
        return self.norm2(x + self.drop(self.feed(x)))


class Transformer(nn.Module):
    def __init__(self, name, a):
        super().__init__()
        d, self.causal = a.width, name == "gpt"
        self.word, self.place = nn.Embedding(a.vocab, d), nn.Embedding(a.places, d)
        self.blocks = nn.ModuleList(Block(d, a.heads, 4 * d, self.causal) for _ in range(a.layers))
        self.norm, self.drop = nn.LayerNorm(d), nn.Dropout(0.1)
        if not self.causal:
            self.kind, self.inner, self.last = nn.Embedding(2, d), nn.Linear(d, d), nn.LayerNorm(d)
            self.bias = nn.Parameter(torch.zeros(a.vocab))
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        x = self.word(ids) + self.place.weight[: ids.shape[1]]
        if self.causal:
            x = self.drop(x)
        else:
            x = self.drop(self.norm(x + self.kind.weight[0]))
        for block in self.blocks:
            x = block(x)
        if self.causal:
            return F.linear(self.norm(x), self.word.weight)
        return F.linear(self.last(F.gelu(self.inner(x))), self.word.weight, self.bias)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("model", choices=SIZES)
    p.add_argument("--compile", action="store_true")
    p.add_argument("--device", default="cuda")
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--warmup", type=int, default=4)
    for name, size in dict(batch=None, seq=None, places=None, vocab=None, layers=12, heads=12, width=768).items():
        p.add_argument(f"--{name}", type=int, default=size)
    a = p.parse_args()
    for name, size in SIZES[a.model].items():
        if getattr(a, name) is None:
            setattr(a, name, size)
    torch.manual_seed(0)
    net = Transformer(a.model, a).to(a.device)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    ids, target = (torch.randint(0, a.vocab, (a.batch, a.seq), device=a.device) for _ in range(2))
    # As many are predicted as in the peer: all of GPT, and 15 % of BERT, of which logits are computed for all all the same.
    masked = (torch.rand(a.batch, a.seq, device=a.device) < (0.15 if a.model == "bert" else 1.0)).float().flatten()

    def loss_of(ids):
        with torch.autocast(a.device.split(":")[0], dtype=torch.bfloat16):
            logits = net(ids)
        each = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), reduction="none")
        return (each * masked).sum() / masked.sum()

    forward = torch.compile(loss_of) if a.compile else loss_of

    def step():
        opt.zero_grad(set_to_none=True)
        loss = forward(ids)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss

    on_gpu = a.device.startswith("cuda")
    times = []
    for _ in range(a.warmup + a.steps):
        begin = time.perf_counter()
        loss = step()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    print(json.dumps({
        "peer": "torch", "version": torch.__version__, "compiled": a.compile,
        "device": torch.cuda.get_device_name() if on_gpu else a.device,
        "step_ms": round(statistics.median(times[a.warmup:]) * 1e3, 2), "first_ms": round(times[0] * 1e3, 1),
        "loss": round(loss.item(), 4), "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
    }))


if __name__ == "__main__":
    main()
