"""JAX: a training step of a GPT of 4 layers at 512 positions; arguments are the dropout and the generator of random numbers."""

import jax, jax.numpy as jnp, numpy as np, time, resource, sys

jax.config.update("jax_platforms", "cpu")
V, D, H, FF, L, S, B = 8192, 256, 4, 1024, 4, 512, 4
DP = float(sys.argv[1]) if len(sys.argv) > 1 else 0.1
if len(sys.argv) > 2:
    jax.config.update("jax_default_prng_impl", sys.argv[2])
r = np.random.RandomState(0)
n = lambda *s: jnp.asarray(0.02 * r.randn(*s), jnp.float32)
ln = lambda: {"g": jnp.ones(D), "b": jnp.zeros(D)}
lin = lambda i, o: {"w": n(i, o), "b": jnp.zeros(o)}
P = {
    "e": n(V, D),
    "p": n(S, D),
    "n": ln(),
    "l": [
        {
            "q": lin(D, D),
            "k": lin(D, D),
            "v": lin(D, D),
            "o": lin(D, D),
            "w1": lin(D, FF),
            "w2": lin(FF, D),
            "n1": ln(),
            "n2": ln(),
        }
        for _ in range(L)
    ],
}


def norm(x, q):
    m = x.mean(-1, keepdims=True)
    v = ((x - m) ** 2).mean(-1, keepdims=True)
    return (x - m) * jax.lax.rsqrt(v + 1e-5) * q["g"] + q["b"]


def drop(x, k):
    return jnp.where(jax.random.bernoulli(k, 1 - DP, x.shape), x / (1 - DP), 0.0) if DP else x


d = lambda x, q: x @ q["w"] + q["b"]
mask = jnp.tril(jnp.ones((S, S), bool))


def loss(P, t, y, key):
    ks = iter(jax.random.split(key, 1 + 3 * L))
    x = drop(P["e"][t] + P["p"], next(ks))
    for q in P["l"]:
        h = norm(x, q["n1"])
        c = lambda z: z.reshape(B, S, H, D // H)
        s = jnp.einsum("bqhk,bmhk->bhqm", c(d(h, q["q"])), c(d(h, q["k"]))) * (D // H) ** -0.5
        a = drop(jax.nn.softmax(jnp.where(mask, s, -1e30), -1), next(ks))
        o = jnp.einsum("bhqm,bmhk->bqhk", a, c(d(h, q["v"]))).reshape(B, S, D)
        x = x + drop(d(o, q["o"]), next(ks))
        x = x + drop(d(jax.nn.gelu(d(norm(x, q["n2"]), q["w1"]), approximate=False), q["w2"]), next(ks))
    z = norm(x, P["n"]) @ P["e"].T
    return (jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, y[..., None], -1)[..., 0]).mean()


tm = jax.tree_util.tree_map


def step(s, t, y):
    k, k2 = jax.random.split(s["k"])
    l, g = jax.value_and_grad(loss)(s["p"], t, y, k2)
    i = s["t"] + 1
    m = tm(lambda m, g: 0.9 * m + 0.1 * g, s["m"], g)
    u = tm(lambda u, g: 0.999 * u + 0.001 * g * g, s["u"], g)
    p = tm(
        lambda w, m, u: w - 1e-4 * ((m / (1 - 0.9**i)) / (jnp.sqrt(u / (1 - 0.999**i)) + 1e-8) + 0.01 * w), s["p"], m, u
    )
    return {"p": p, "m": m, "u": u, "t": i, "k": k}, l


st = {"p": P, "m": tm(jnp.zeros_like, P), "u": tm(jnp.zeros_like, P), "t": jnp.zeros(()), "k": jax.random.key(0)}
t = jnp.asarray(r.randint(0, V, (B, S)))
y = jnp.asarray(r.randint(0, V, (B, S)))
f = jax.jit(step, donate_argnums=(0,)).lower(st, t, y).compile()


def one():
    global st
    st, l = f(st, t, y)
    jax.block_until_ready((st["p"], l))
    return l


for _ in range(2):
    l = one()
ts = []
c0 = time.process_time()
for _ in range(5):
    a = time.perf_counter()
    l = one()
    ts.append(time.perf_counter() - a)
print(
    "jax gpt dropout",
    DP,
    jax.config.jax_default_prng_impl,
    round(sorted(ts)[2] * 1e3, 1),
    "cpu",
    round((time.process_time() - c0) * 200, 1),
    "rss",
    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    "loss",
    float(l),
)
