"""PyTorch: the encoder of jax_bert.py; one training step on CPU.

--mode eager    one process
--mode compile  one process, torch.compile (inductor)
--mode dist     --mesh DxM processes over gloo: DTensor tensor parallelism over
                M (heads, ff, vocab), gradients all-reduced over D (as DDP does,
                one flat bucket); 4x1 or 2x1 is plain data parallelism, with DDP.
Sizes are the global ones. Each process gets --threads threads.
"""

import os
import socket
import time
import common


def build(torch, a, heads_here=None):
    nn, F = torch.nn, torch.nn.functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            d = a.d_model
            self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
            self.w1, self.w2 = nn.Linear(d, a.d_ff), nn.Linear(a.d_ff, d)
            self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)

        def forward(self, x):
            dh = a.d_model // a.heads
            cut = lambda t: t.unflatten(-1, (-1, dh)).transpose(1, 2)
            c = F.scaled_dot_product_attention(cut(self.q(x)), cut(self.k(x)), cut(self.v(x)))
            x = self.ln1(x + self.o(c.transpose(1, 2).flatten(2)))
            return self.ln2(x + self.w2(F.gelu(self.w1(x))))

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(a.vocab, a.d_model)
            self.pos = nn.Parameter(0.02 * torch.randn(a.seq, a.d_model))
            self.ln = nn.LayerNorm(a.d_model)
            self.layers = nn.ModuleList(Layer() for _ in range(a.layers))
            self.out = nn.Linear(a.d_model, a.vocab)

        def forward(self, ids):
            x = self.ln(self.emb(ids) + self.pos)
            for layer in self.layers:
                x = layer(x)
            return self.out(x)

    torch.manual_seed(a.seed)
    model = Encoder()
    for p in model.parameters():
        if p.dim() == 2:
            torch.nn.init.normal_(p, std=0.02)
    return model


def batch_of(torch, a):
    g = torch.Generator().manual_seed(a.seed)
    ids = torch.randint(0, a.vocab, (a.batch, a.seq), generator=g)
    labels = torch.randint(0, a.vocab, (a.batch, a.seq), generator=g)
    labels[torch.rand(a.batch, a.seq, generator=g) >= 0.15] = -100
    return ids, labels


def worker(rank, a, port, queue):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(a.threads)
    F = torch.nn.functional
    sizes = common.parse_mesh(a.mesh)
    data, tp = sizes if len(sizes) == 2 else (1, sizes[0])
    world = data * tp
    model, (ids, labels) = build(torch, a), batch_of(torch, a)
    loss_context, flat_params, data_group = None, None, None
    if a.mode == "dist":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=world)
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (data, tp), mesh_dim_names=("data", "model"))
        shard = rank // tp
        rows = slice(shard * a.batch // data, (shard + 1) * a.batch // data)
        ids, labels = ids[rows], labels[rows]
        if tp == 1:
            model = torch.nn.parallel.DistributedDataParallel(model)
        else:
            from torch.distributed.tensor import Replicate, Shard
            from torch.distributed.tensor.parallel import (
                ColwiseParallel,
                RowwiseParallel,
                loss_parallel,
                parallelize_module,
            )

            plan = {
                "emb": RowwiseParallel(input_layouts=Replicate()),
                "out": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
            }
            for i in range(a.layers):
                for n in ("q", "k", "v", "w1"):
                    plan[f"layers.{i}.{n}"] = ColwiseParallel()
                for n in ("o", "w2"):
                    plan[f"layers.{i}.{n}"] = RowwiseParallel()
            parallelize_module(model, mesh["model"], plan)
            loss_context = loss_parallel
            data_group = mesh.get_group("data") if data > 1 else None
    elif a.mode == "compile":
        model = torch.compile(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)

    def local(t):
        return t.to_local() if hasattr(t, "to_local") else t

    def step():
        opt.zero_grad(set_to_none=True)
        if loss_context is None:
            loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
            loss.backward()
        else:
            with loss_context():
                loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
                loss.backward()
            if data_group is not None:
                grads = [local(p.grad) for p in model.parameters()]
                flat = torch.cat([g.reshape(-1) for g in grads])
                dist.all_reduce(flat, group=data_group)
                flat /= data
                at = 0
                for g in grads:
                    g.copy_(flat[at : at + g.numel()].view_as(g))
                    at += g.numel()
        opt.step()
        if a.mode == "dist":
            dist.barrier()
        return loss.detach()

    t0 = time.perf_counter()
    first = step()
    first = float(first.full_tensor() if hasattr(first, "full_tensor") else first)
    first_s = time.perf_counter() - t0
    seconds = common.time_steps(step, a.warmup, a.steps)
    if a.mode == "dist":
        total = torch.tensor([seconds.cpu_ms], dtype=torch.float64)
        dist.all_reduce(total)
        seconds.cpu_ms = float(total)
    times = common.summary(seconds)
    if rank == 0:
        queue.put(
            {
                "peer": "torch",
                "torch": torch.__version__,
                "model": "bert",
                "mode": a.mode,
                "mesh": a.mesh if a.mode == "dist" else "1",
                "processes": world if a.mode == "dist" else 1,
                "threads_each": a.threads,
                "batch": a.batch,
                "seq": a.seq,
                "params": sum(local(p).numel() for p in model.parameters()),
                "loss_first": first,
                "first_step_s": round(first_s, 2),
                **times,
                "tokens_per_s": round(a.batch * a.seq / times["median_ms"] * 1e3, 1),
                "load": common.load_average(),
                "peak_rss_mib_rank0": common.peak_rss_mib(),
            }
        )
    if a.mode == "dist":
        dist.barrier()
        dist.destroy_process_group()


def main():
    p = common.base_parser(__doc__)
    p.add_argument("--mode", choices=["eager", "compile", "dist"], default="eager")
    p.add_argument("--mesh", default="2x2")
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--d-model", type=int, default=256)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--d-ff", type=int, default=1024)
    p.add_argument("--vocab", type=int, default=8192)
    p.add_argument("--seq", type=int, default=128)
    p.add_argument("--batch", type=int, default=16)
    a = p.parse_args()
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    count = 1
    if a.mode == "dist":
        for s in common.parse_mesh(a.mesh):
            count *= s
    procs = [context.Process(target=worker, args=(r, a, port, queue)) for r in range(count)]
    for q in procs:
        q.start()
    for q in procs:
        q.join()
    if any(q.exitcode for q in procs):
        raise SystemExit(f"a worker failed: {[q.exitcode for q in procs]}")
    common.emit(queue.get())


if __name__ == "__main__":
    main()
