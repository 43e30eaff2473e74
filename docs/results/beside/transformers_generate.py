"""transformers: tokens a second of GPT-2 small, of which the time of the prompt is taken off."""

import torch, time
from transformers import GPT2Config, GPT2LMHeadModel

torch.set_num_threads(2)
torch.manual_seed(0)
m = GPT2LMHeadModel(GPT2Config()).eval()
x = torch.randint(0, 50257, (1, 9))
for n in (4, 40):
    t = time.perf_counter()
    m.generate(x, max_new_tokens=n, do_sample=False, pad_token_id=0, min_new_tokens=n)
    d = time.perf_counter() - t
    if n == 4:
        base = d
print("transformers", round(36 / (d - base), 1), "tokens/s")
