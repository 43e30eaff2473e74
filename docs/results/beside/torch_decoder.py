"""PyTorch: a training step of a GPT of 4 layers at 512 positions; the argument is the dropout. Fused attention, AdamW."""

import torch, time, sys, resource
import torch.nn.functional as F

torch.set_num_threads(2)
torch.manual_seed(0)
V, D, H, FF, L, S, B = 8192, 256, 4, 1024, 4, 512, 4
nn = torch.nn


class Block(nn.Module):
    def __init__(s):
        super().__init__()
        s.q, s.k, s.v, s.o = (nn.Linear(D, D) for _ in range(4))
        s.w1, s.w2 = nn.Linear(D, FF), nn.Linear(FF, D)
        s.n1, s.n2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(s, x):
        y = s.n1(x)
        c = lambda t: t.unflatten(-1, (H, -1)).transpose(1, 2)
        a = F.scaled_dot_product_attention(c(s.q(y)), c(s.k(y)), c(s.v(y)), is_causal=True, dropout_p=DP)
        x = x + F.dropout(s.o(a.transpose(1, 2).flatten(2)), 0.1)
        return x + F.dropout(s.w2(F.gelu(s.w1(s.n2(x)))), 0.1)


class G(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(V, D)
        s.p = nn.Parameter(torch.randn(S, D) * 0.02)
        s.b = nn.ModuleList(Block() for _ in range(L))
        s.n = nn.LayerNorm(D)

    def forward(s, t):
        x = F.dropout(s.e(t) + s.p, 0.1)
        for b in s.b:
            x = b(x)
        return s.n(x) @ s.e.weight.T


DP = float(sys.argv[1]) if len(sys.argv) > 1 else 0.1
m = G()
o = torch.optim.AdamW(m.parameters(), lr=1e-4, weight_decay=0.01)
t = torch.randint(0, V, (B, S))
y = torch.randint(0, V, (B, S))


def step():
    o.zero_grad(set_to_none=True)
    l = F.cross_entropy(m(t).flatten(0, 1), y.flatten())
    l.backward()
    o.step()


for _ in range(2):
    step()
ts = []
c0 = time.process_time()
for _ in range(5):
    a = time.perf_counter()
    step()
    ts.append(time.perf_counter() - a)
print(
    "torch gpt dropout",
    DP,
    round(sorted(ts)[2] * 1e3, 1),
    "cpu",
    round((time.process_time() - c0) * 200, 1),
    "rss",
    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
)
