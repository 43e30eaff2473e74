"""JAX: forward + backward + AdamW of a BERT-style encoder with an MLM loss.

Post-LN encoder, exact GELU, learned positions, untied f32 decoder over all
positions, loss weighted to the masked ones, no dropout. Tensor dims for
--layout: batch, heads, ff, vocab (Mesh TensorFlow syntax; mesh axes data and
model, or all for a one-number mesh).
"""

import os
import time
import common


def main():
    p = common.base_parser(__doc__)
    p.add_argument("--mesh", default="1")
    p.add_argument("--layout", default="")
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--d-model", type=int, default=256)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--d-ff", type=int, default=1024)
    p.add_argument("--vocab", type=int, default=8192)
    p.add_argument("--seq", type=int, default=128)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument(
        "--positions", type=int, default=0, help="predict this many gathered positions a sequence; 0: all, weighted"
    )
    p.add_argument("--dump-hlo", default="")
    a = p.parse_args()
    sizes = common.parse_mesh(a.mesh)
    count = 1
    for s in sizes:
        count *= s
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={count}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

    axes = ("all",) if len(sizes) == 1 else ("data", "model")
    mesh = Mesh(np.array(jax.devices()).reshape(sizes), axes, axis_types=(AxisType.Auto,) * len(sizes))
    rules = common.parse_layout(a.layout)
    shard = lambda *dims: NamedSharding(mesh, P(*[rules.get(d) for d in dims]))
    rng = np.random.RandomState(a.seed)
    d, h, dh, f, v = a.d_model, a.heads, a.d_model // a.heads, a.d_ff, a.vocab

    def weight(shape, *dims, zero=False, one=False):
        x = (
            np.ones(shape, np.float32)
            if one
            else np.zeros(shape, np.float32) if zero else 0.02 * rng.randn(*shape).astype(np.float32)
        )
        return jax.device_put(x, shard(*dims))

    ln = lambda: {"g": weight((d,), "d", one=True), "b": weight((d,), "d", zero=True)}
    params = {
        "emb": weight((v, d), "vocab", "d"),
        "pos": weight((a.seq, d), "seq", "d"),
        "ln": ln(),
        "out_w": weight((d, v), "d", "vocab"),
        "out_b": weight((v,), "vocab", zero=True),
        "layers": [
            {
                "qkv": weight((3, d, h, dh), None, "d", "heads", "dh"),
                "qkv_b": weight((3, h, dh), None, "heads", "dh", zero=True),
                "o": weight((h, dh, d), "heads", "dh", "d"),
                "o_b": weight((d,), "d", zero=True),
                "w1": weight((d, f), "d", "ff"),
                "b1": weight((f,), "ff", zero=True),
                "w2": weight((f, d), "ff", "d"),
                "b2": weight((d,), "d", zero=True),
                "ln1": ln(),
                "ln2": ln(),
            }
            for _ in range(a.layers)
        ],
    }
    hint = lambda x, *dims: jax.lax.with_sharding_constraint(x, shard(*dims))

    def norm(x, q):
        mu = x.mean(-1, keepdims=True)
        var = ((x - mu) ** 2).mean(-1, keepdims=True)
        return (x - mu) * jax.lax.rsqrt(var + 1e-5) * q["g"] + q["b"]

    def loss_fn(params, ids, labels, weights):
        x = norm(params["emb"][ids] + params["pos"], params["ln"])
        x = hint(x, "batch", "seq", "d")
        for q in params["layers"]:
            qkv = jnp.einsum("bsd,cdhk->cbshk", x, q["qkv"]) + q["qkv_b"][:, None, None]
            qkv = hint(qkv, None, "batch", "seq", "heads", "dh")
            s = jnp.einsum("bqhk,bmhk->bhqm", qkv[0], qkv[1]) * (dh**-0.5)
            w = jax.nn.softmax(s, -1)
            c = jnp.einsum("bhqm,bmhk->bqhk", w, qkv[2])
            y = jnp.einsum("bqhk,hkd->bqd", c, q["o"]) + q["o_b"]
            x = hint(norm(x + y, q["ln1"]), "batch", "seq", "d")
            y = jax.nn.gelu(x @ q["w1"] + q["b1"], approximate=False)
            y = hint(y, "batch", "seq", "ff")
            x = hint(norm(x + y @ q["w2"] + q["b2"], q["ln2"]), "batch", "seq", "d")
        if a.positions:
            x = jnp.take_along_axis(x, picks[:, :, None], 1)
        z = hint(x @ params["out_w"] + params["out_b"], "batch", "seq", "vocab")
        z = z - jax.lax.stop_gradient(z.max(-1, keepdims=True))
        lse = jnp.log(jnp.exp(z).sum(-1))
        hit = jnp.arange(v) == labels[..., None]
        picked = jnp.where(hit, z, 0.0).sum(-1)
        return ((lse - picked) * weights).sum() / weights.sum()

    tmap = jax.tree_util.tree_map

    def step(state, ids, labels, weights):
        loss, g = jax.value_and_grad(loss_fn)(state["p"], ids, labels, weights)
        t = state["t"] + 1
        m = tmap(lambda m, d: 0.9 * m + 0.1 * d, state["m"], g)
        u = tmap(lambda u, d: 0.999 * u + 0.001 * d * d, state["u"], g)
        c1, c2 = 1 - 0.9**t, 1 - 0.999**t
        new = tmap(lambda w, m, u: w - 1e-4 * ((m / c1) / (jnp.sqrt(u / c2) + 1e-8) + 0.01 * w), state["p"], m, u)
        return {"p": new, "m": m, "u": u, "t": t}, loss

    state = {
        "p": params,
        "m": tmap(jnp.zeros_like, params),
        "u": tmap(jnp.zeros_like, params),
        "t": jax.device_put(jnp.zeros((), jnp.float32), shard()),
    }
    ids = jax.device_put(rng.randint(0, v, (a.batch, a.seq)).astype(np.int32), shard("batch", "seq"))
    labels = jax.device_put(rng.randint(0, v, (a.batch, a.seq)).astype(np.int32), shard("batch", "seq"))
    weights = jax.device_put((rng.rand(a.batch, a.seq) < 0.15).astype(np.float32), shard("batch", "seq"))
    picks = None
    if a.positions:
        picks = np.stack([np.sort(rng.permutation(a.seq)[: a.positions]) for _ in range(a.batch)])
        labels, weights = labels[:, : a.positions], jnp.ones((a.batch, a.positions))
        picks, labels, weights = (jax.device_put(t, shard("batch", "pos")) for t in (picks, labels, weights))
    keep = tmap(lambda t: t.sharding, state)
    t0 = time.perf_counter()
    compiled = (
        jax.jit(step, donate_argnums=(0,), out_shardings=(keep, shard())).lower(state, ids, labels, weights).compile()
    )
    compile_s = time.perf_counter() - t0
    text = compiled.as_text()
    if a.dump_hlo:
        with open(a.dump_hlo, "w") as fh:
            fh.write(text)
    box = [state]

    def one():
        box[0], loss = compiled(box[0], ids, labels, weights)
        jax.block_until_ready((box[0], loss))
        return loss

    first = float(one())
    times = common.summary(common.time_steps(one, a.warmup, a.steps))
    mem = compiled.memory_analysis()
    common.emit(
        {
            "peer": "jax",
            "jax": jax.__version__,
            "model": "bert",
            "mesh": a.mesh,
            "layout": a.layout,
            "batch": a.batch,
            "seq": a.seq,
            "positions": a.positions or "all",
            "params": sum(t.size for t in jax.tree_util.tree_leaves(box[0]["p"])),
            "compile_s": round(compile_s, 2),
            "loss_first": first,
            **times,
            "tokens_per_s": round(a.batch * a.seq / times["median_ms"] * 1e3, 1),
            "collectives": common.hlo_collectives(text),
            "temp_mib_per_device": round(getattr(mem, "temp_size_in_bytes", 0) / 2**20, 1),
            "arg_mib_per_device": round(getattr(mem, "argument_size_in_bytes", 0) / 2**20, 1),
            "load": common.load_average(),
            "peak_rss_mib": common.peak_rss_mib(),
        }
    )


if __name__ == "__main__":
    main()
