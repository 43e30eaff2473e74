"""Makes `nn.safetensors`: what PyTorch computes of the layers of `std:nn` with the same weights.

    pip install torch safetensors && python make.py

For each model `NAME.mw` beside this file, the tensors are `NAME/input/X`, `NAME/param/PATH`, `NAME/state/PATH` (before the step), and
what comes out: `NAME/loss`, `NAME/grad/PATH` and `NAME/next/PATH` (the states after it). Inputs and weights are f32; PyTorch computes
in f64, so that all of a difference is ours.
"""

import pathlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(7)
OUT = {}


def rand(*shape):
    """Values of f32, as f64."""
    return torch.randn(*shape).double()


class Subject:
    """What one model reads, has, and gives."""

    def __init__(self, name):
        self.name, self.inputs, self.params, self.states = name, {}, {}, {}

    def input(self, name, tensor):
        self.inputs[name] = tensor
        return tensor

    def param(self, path, tensor, way=lambda t: t):
        """A parameter under our path: `way` turns PyTorch's order of dims into ours."""
        self.params[path] = (tensor, way)

    def nudge(self, x, *shape):
        """`x` and a parameter of zeros that is added, whose gradient is that of `x`."""
        zero = torch.zeros(*shape, dtype=torch.float64, requires_grad=True)
        self.param("nudge", zero)
        return x + zero

    def state(self, path, before, after):
        self.states[path] = (before, after)

    def end(self, y):
        """Ends with the loss, a weighted sum of the result."""
        weights = self.input("weight", rand(*y.shape))
        loss = (y * weights).sum()
        loss.backward()
        put = lambda key, t: OUT.__setitem__(f"{self.name}/{key}", keep(t))
        for name, t in self.inputs.items():
            put(f"input/{name}", t)
        for path, (t, way) in self.params.items():
            put(f"param/{path}", way(t))
            put(f"grad/{path}", way(t.grad))
        for path, (before, after) in self.states.items():
            put(f"state/{path}", before)
            put(f"next/{path}", after())
        put("loss", loss)


def keep(t):
    t = t.detach()
    return (t.float() if t.is_floating_point() else t.int()).clone().contiguous()


def f32(module):
    """The module in f64, with weights that are values of f32 and nothing left at 0 or 1."""
    module = module.double()
    with torch.no_grad():
        for p in module.parameters():
            p.copy_((torch.randn(p.shape) * 0.5).double())
    return module


T = lambda t: t.T


def linear(s, path, m):
    s.param(f"{path}.w", m.weight, T)
    if m.bias is not None:
        s.param(f"{path}.b", m.bias)


def dense():
    s = Subject("dense")
    m, n = f32(nn.Linear(6, 4)), f32(nn.Linear(4, 3, bias=False))
    linear(s, "h", m)
    linear(s, "y", n)
    s.end(n(torch.relu(m(s.nudge(s.input("x", rand(5, 6)), 6)))))


def embedding():
    s = Subject("embedding")
    word, place = f32(nn.Embedding(11, 6)), f32(nn.Embedding(5, 6))
    token = s.input("token", torch.randint(0, 11, (3, 5)))
    s.param("word.w", word.weight)
    s.param("place.w", place.weight)
    at = torch.arange(5).double()[:, None] * 10_000 ** (-torch.arange(3).double() / 3)
    s.end(word(token) + place(torch.arange(5)) + torch.cat([at.sin(), at.cos()], 1))


def norms():
    s = Subject("norms")
    layer, rms = f32(nn.LayerNorm(6)), f32(nn.RMSNorm([4, 6], eps=1e-6))
    s.param("a.scale", layer.weight)
    s.param("a.shift", layer.bias)
    s.param("y.scale", rms.weight)
    s.end(rms(layer(s.nudge(s.input("x", rand(5, 4, 6) * 2 + 1), 4, 6))))


LAST = lambda t: t.permute(0, 2, 3, 1)
FIRST = lambda t: t.permute(0, 3, 1, 2)


def batch_norm():
    s = Subject("batch_norm")
    m = f32(nn.BatchNorm2d(4))
    before = {"average": m.running_mean.clone(), "variance": m.running_var.clone()}
    s.param("y.scale", m.weight)
    s.param("y.shift", m.bias)
    s.state("y.average", before["average"], lambda: m.running_mean)
    s.state("y.variance", before["variance"], lambda: m.running_var)
    s.end(LAST(m(FIRST(s.nudge(s.input("x", rand(3, 5, 2, 4) * 2 + 1), 5, 2, 4)))))


def group_norm():
    s = Subject("group_norm")
    m = f32(nn.GroupNorm(2, 6))
    s.param("y.scale", m.weight)
    s.param("y.shift", m.bias)
    s.end(LAST(m(FIRST(s.nudge(s.input("x", rand(3, 4, 5, 6) + 1), 4, 5, 6)))))


def heads(s, path, m, n, d):
    """Weights of queries, keys, values and the output of nn.MultiheadAttention."""
    e = n * d
    if m.in_proj_weight is not None:
        whole = m.in_proj_weight
        ws = [(whole, i) for i in range(3)]
    else:
        ws = [(m.q_proj_weight, None), (m.k_proj_weight, None), (m.v_proj_weight, None)]
    for i, (name, (w, part)) in enumerate(zip("qkv", ws)):
        cut = lambda t, part=part: (t if part is None else t[part * e : part * e + e]).T.reshape(-1, n, d)
        s.param(f"{path}.{name}.w", w, cut)
        s.param(f"{path}.{name}.b", m.in_proj_bias, lambda t, i=i: t[i * e : i * e + e].reshape(n, d))
    s.param(f"{path}.out.w", m.out_proj.weight, lambda t: t.T.reshape(n, d, -1))
    s.param(f"{path}.out.b", m.out_proj.bias)


def self_attention():
    s = Subject("self_attention")
    m = f32(nn.MultiheadAttention(8, 2, batch_first=True))
    heads(s, "a", m, 2, 4)
    n = f32(nn.MultiheadAttention(8, 2, batch_first=True))
    heads(s, "y", n, 2, 4)
    x = s.nudge(s.input("x", rand(3, 5, 8)), 5, 8)
    real = s.input("real", torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0]]).bool())
    a = m(x, x, x, key_padding_mask=~real)[0]
    at = torch.arange(5)
    seen = (at[None] <= at[:, None]) & (at[:, None] < at[None] + 2)
    s.end(n(a, a, a, attn_mask=~seen)[0])


def cross_attention():
    s = Subject("cross_attention")
    m = f32(nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True))
    heads(s, "y", m, 2, 4)
    x, other = s.nudge(s.input("x", rand(3, 5, 8)), 5, 8), s.input("other", rand(3, 7, 6))
    s.end(m(x, other, other)[0])


def rotary(x, base=10_000):
    """Of [batch, heads, seq, d]."""
    d = x.shape[-1]
    at = torch.arange(x.shape[-2]).double()[:, None] * base ** (-torch.arange(d // 2).double() * 2 / d)
    at = torch.cat([at, at], 1)
    turned = torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1)
    return x * at.cos() + turned * at.sin()


def grouped_query_attention():
    s = Subject("grouped_query_attention")
    groups, queries, d = 2, 3, 4
    wq, wk, wv = (f32(nn.Linear(8, n * d, bias=False)) for n in (6, 2, 2))
    wo = f32(nn.Linear(groups * queries * d, 8, bias=False))
    s.param("y.q.w", wq.weight, lambda t: t.T.reshape(8, groups, queries, d))
    s.param("y.k.w", wk.weight, lambda t: t.T.reshape(8, groups, d))
    s.param("y.v.w", wv.weight, lambda t: t.T.reshape(8, groups, d))
    s.param("y.out.w", wo.weight, lambda t: t.T.reshape(groups, queries, d, 8))
    x = s.nudge(s.input("x", rand(3, 5, 8)), 5, 8)
    cut = lambda t: t.reshape(3, 5, -1, d).transpose(1, 2)
    q, k, v = rotary(cut(wq(x))), rotary(cut(wk(x))), cut(wv(x))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    s.end(wo(y.transpose(1, 2).reshape(3, 5, -1)))


def transformer_block():
    s = Subject("transformer_block")
    m = f32(nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, activation="gelu", batch_first=True, norm_first=True))
    heads(s, "y.attention", m.self_attn, 2, 4)
    for path, norm in (("norm1", m.norm1), ("norm2", m.norm2)):
        s.param(f"y.{path}.scale", norm.weight)
        s.param(f"y.{path}.shift", norm.bias)
    linear(s, "y.mlp.up", m.linear1)
    linear(s, "y.mlp.down", m.linear2)
    x = s.nudge(s.input("x", rand(3, 5, 8)), 5, 8)
    s.end(m(x, src_mask=nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64), is_causal=True))


def gated():
    s = Subject("gated")
    ws = {}
    for path in ("a", "y"):
        for name, i, o in (("gate", 6, 7), ("up", 6, 7), ("down", 7, 6)):
            ws[path, name] = f32(nn.Linear(i, o, bias=False))
            linear(s, f"{path}.{name}", ws[path, name])
    x = s.nudge(s.input("x", rand(5, 6)), 6)
    a = ws["a", "down"](F.silu(ws["a", "gate"](x)) * ws["a", "up"](x))
    s.end(ws["y", "down"](F.gelu(ws["y", "gate"](a)) * ws["y", "up"](a)))


KERNEL = lambda t: t.permute(2, 3, 1, 0)


def convolution(s, path, m, way=KERNEL):
    s.param(f"{path}.w", m.weight, way)
    s.param(f"{path}.b", m.bias)


def convolutions():
    s = Subject("convolutions")
    first = f32(nn.Conv2d(2, 4, 3, padding="same"))
    depth = f32(nn.Conv2d(4, 4, 3, padding="same", groups=4))
    down = f32(nn.Conv2d(4, 3, 3, stride=2, padding=1))
    up = f32(nn.ConvTranspose2d(3, 2, 2, stride=2))
    line = f32(nn.Conv1d(2, 3, 3, padding="same"))
    convolution(s, "a", first)
    convolution(s, "c", depth, lambda t: t.permute(2, 3, 0, 1)[..., 0])
    convolution(s, "d", down)
    convolution(s, "e", up, lambda t: t.permute(2, 3, 0, 1))
    convolution(s, "y", line, lambda t: t.permute(2, 1, 0))
    x = s.nudge(s.input("x", rand(2, 6, 4, 2)), 6, 4, 2)
    e = up(torch.relu(down(depth(torch.relu(first(FIRST(x)))))))
    # Along the rows, for each column by itself.
    n, c, r, w = e.shape
    y = line(e.permute(0, 3, 1, 2).reshape(n * w, c, r)).reshape(n, w, 3, r)
    s.end(y.permute(0, 3, 1, 2))


def norm_states(s, path, m):
    s.param(f"{path}.scale", m.weight)
    s.param(f"{path}.shift", m.bias)
    mean, var = m.running_mean.clone(), m.running_var.clone()
    s.state(f"{path}.average", mean, lambda: m.running_mean)
    s.state(f"{path}.variance", var, lambda: m.running_var)


def blocks():
    s = Subject("blocks")
    conv = lambda i, o: f32(nn.Conv2d(i, o, 3, padding="same", bias=False))
    c0, c1, c2 = conv(2, 3), conv(3, 5), conv(5, 3)
    n0, n1, n2 = (f32(nn.BatchNorm2d(k)) for k in (3, 5, 3))
    s.param("a.w", c0.weight, KERNEL)
    norm_states(s, "a.norm", n0)
    s.param("y.w1", c1.weight, KERNEL)
    norm_states(s, "y.n1", n1)
    s.param("y.w2", c2.weight, KERNEL)
    norm_states(s, "y.n2", n2)
    x = s.nudge(s.input("x", rand(3, 4, 5, 2)), 4, 5, 2)
    a = torch.relu(n0(c0(FIRST(x))))
    s.end(LAST(torch.relu(a + n2(c2(torch.relu(n1(c1(a))))))))


def gates(s, path, m, names, hidden, order):
    """Gates of a cell of PyTorch: its two biases are one here, so the second is left at 0."""
    with torch.no_grad():
        m.bias_hh.zero_()
    for name, i in zip(names, order):
        part = lambda t, i=i: t[i * hidden : i * hidden + hidden]
        s.param(f"{path}.{name}.w", m.weight_ih, lambda t, part=part: part(t).T)
        s.param(f"{path}.{name}.u", m.weight_hh, lambda t, part=part: part(t).T)
        s.param(f"{path}.{name}.b", m.bias_ih, part)


def lstm():
    s = Subject("lstm")
    m = f32(nn.LSTMCell(4, 3))
    gates(s, "first", m, ("input_gate", "forget", "cell", "output_gate"), 3, range(4))
    x = s.nudge(s.input("x", rand(5, 2, 4)), 2, 4)
    h, c = s.input("h", rand(5, 3)), s.input("c", rand(5, 3))
    for t in range(2):
        h, c = m(x[:, t], (h, c))
    s.end(h + 2 * c)


def gru():
    s = Subject("gru")
    m = f32(nn.GRUCell(4, 3))
    with torch.no_grad():
        # Those of the new value are two here as there; those of the gates are one.
        m.bias_hh[:6] = 0
    for name, i in (("reset", 0), ("update", 1)):
        part = lambda t, i=i: t[i * 3 : i * 3 + 3]
        s.param(f"first.{name}.w", m.weight_ih, lambda t, part=part: part(t).T)
        s.param(f"first.{name}.u", m.weight_hh, lambda t, part=part: part(t).T)
        s.param(f"first.{name}.b", m.bias_ih, part)
    for name, w, b in (("new", m.weight_ih, m.bias_ih), ("old", m.weight_hh, m.bias_hh)):
        s.param(f"first.{name}.w", w, lambda t: t[6:].T)
        s.param(f"first.{name}.b", b, lambda t: t[6:])
    x = s.nudge(s.input("x", rand(5, 2, 4)), 2, 4)
    h = s.input("h", rand(5, 3))
    for t in range(2):
        h = m(x[:, t], h)
    s.end(h)


def lstm_layers():
    s = Subject("lstm_layers")
    m = f32(nn.LSTM(4, 3, num_layers=2, batch_first=True))
    with torch.no_grad():
        # Of two biases that are added, ours is the first.
        m.bias_hh_l0[:] = 0
        m.bias_hh_l1[:] = 0
    for layer, path in enumerate(("first", "second")):
        names = ("input_gate", "forget", "cell", "output_gate")
        for i, name in enumerate(names):
            part = lambda t, i=i: t[i * 3 : i * 3 + 3]
            get = lambda what: getattr(m, f"{what}_l{layer}")
            s.param(f"{path}.cell.{name}.w", get("weight_ih"), lambda t, part=part: part(t).T)
            s.param(f"{path}.cell.{name}.u", get("weight_hh"), lambda t, part=part: part(t).T)
            s.param(f"{path}.cell.{name}.b", get("bias_ih"), part)
    x = s.nudge(s.input("x", rand(3, 64, 4)), 64, 4)
    s.end(m(x)[0])


def gru_layer():
    s = Subject("gru_layer")
    m = f32(nn.GRU(4, 3, batch_first=True))
    with torch.no_grad():
        m.bias_hh_l0[:6] = 0
    for name, i in (("reset", 0), ("update", 1)):
        part = lambda t, i=i: t[i * 3 : i * 3 + 3]
        s.param(f"first.cell.{name}.w", m.weight_ih_l0, lambda t, part=part: part(t).T)
        s.param(f"first.cell.{name}.u", m.weight_hh_l0, lambda t, part=part: part(t).T)
        s.param(f"first.cell.{name}.b", m.bias_ih_l0, part)
    for name, w, b in (("new", m.weight_ih_l0, m.bias_ih_l0), ("old", m.weight_hh_l0, m.bias_hh_l0)):
        s.param(f"first.cell.{name}.w", w, lambda t: t[6:].T)
        s.param(f"first.cell.{name}.b", b, lambda t: t[6:])
    x = s.nudge(s.input("x", rand(5, 7, 4)), 7, 4)
    s.end(m(x)[0])


for subject in (dense, embedding, norms, batch_norm, group_norm, self_attention, cross_attention, grouped_query_attention,
                transformer_block, gated, convolutions, blocks, lstm, gru, lstm_layers, gru_layer):
    subject()
save_file(OUT, pathlib.Path(__file__).with_name("nn.safetensors"))
