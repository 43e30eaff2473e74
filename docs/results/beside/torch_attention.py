"""PyTorch: scaled_dot_product_attention of 4 x 4 heads, 512 positions and 64 elements, forward and backward."""

import torch, time
import torch.nn.functional as F

torch.set_num_threads(2)
q, k, v = (torch.randn(4, 4, 512, 64, requires_grad=True) for _ in range(3))
for causal in (False, True):
    f = []
    b = []
    for i in range(12):
        t = time.perf_counter()
        o = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        t1 = time.perf_counter()
        o.backward(torch.ones_like(o))
        t2 = time.perf_counter()
        f.append(t1 - t)
        b.append(t2 - t1)
    print("sdpa", causal, "fwd", round(sorted(f)[6] * 1e3, 2), "bwd", round(sorted(b)[6] * 1e3, 2))
