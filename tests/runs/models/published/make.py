"""Makes `models.safetensors`: what the models of Hugging Face's `transformers` compute with the weights of ours, and a Switch Transformer in plain
PyTorch.

    pip install torch transformers safetensors && python make.py

For each model that ships, at the sizes of `SIZES` in `published_models.rs`: `NAME/input/X`, `NAME/param/PATH`, `NAME/loss`, `NAME/grad/PATH`, all
but tokens and truth values in f64, in which both sides compute. Weights are random, and those of layers are one tensor with the layers in
front, as ours are.
"""

import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import (BertConfig, BertForPreTraining, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, T5Config,
                          T5ForConditionalGeneration, ViTConfig, ViTForImageClassification)

torch.manual_seed(11)
torch.set_default_dtype(torch.float64)
OUT = {}
BATCH, SEQ, VOCAB, LAYERS, HEADS, WIDTH, INNER = 3, 7, 13, 2, 3, 4, 10
D = HEADS * WIDTH


def keep(t):
    t = t.detach()
    return (t.to(torch.int32) if not t.is_floating_point() else t).contiguous().clone()


class Subject:
    """What one model reads, has, and gives."""

    def __init__(self, name, model):
        self.name, self.model, self.inputs, self.params = name, model.double().eval(), {}, {}
        with torch.no_grad():
            for name, p in model.named_parameters():
                scale = p.dim() == 1 and name.endswith("weight")
                p.copy_(torch.randn_like(p) * 0.3 + (1 if scale else 0))

    def input(self, name, tensor):
        self.inputs[name] = tensor
        return tensor

    def tokens(self, name, count, *shape):
        return self.input(name, torch.randint(0, count, shape))

    def param(self, path, tensors, way=lambda t: t):
        """A parameter under our path, of one tensor or of one of each layer: `way` turns the order of dims into ours."""
        self.params[path] = (tensors, way)

    def dense(self, path, layers, out=None, into=None, transposed=True):
        """Linear layers: the weight as `[in, out]`, either of which may be several dims."""
        def weight(t):
            t = t.T if transposed else t
            return t.reshape(*(into or [t.shape[0]]), *(out or [t.shape[1]]))
        self.param(f"{path}.w", [l.weight for l in layers], weight)
        if layers[0].bias is not None:
            self.param(f"{path}.b", [l.bias for l in layers], lambda t: t.reshape(*(out or [-1])))

    def norm(self, path, layers):
        one = not isinstance(layers, list)
        for name, ours in (("weight", "scale"), ("bias", "shift")):
            of = [getattr(l, name, None) for l in ([layers] if one else layers)]
            if of[0] is not None:
                self.param(f"{path}.{ours}", of[0] if one else of)

    def end(self, logits, targets, counts, more=0):
        """Ends with the mean cross entropy of what counts, and what else is minimized."""
        each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
        loss = (each * counts.flatten()).sum() / counts.sum() + more
        loss.backward()
        put = lambda key, t: OUT.__setitem__(f"{self.name}/{key}", keep(t))
        for name, t in self.inputs.items():
            put(f"input/{name}", t)
        for path, (t, way) in self.params.items():
            whole = lambda f: torch.stack([way(f(x)) for x in t]) if isinstance(t, list) else way(f(t))
            put(f"param/{path}", whole(lambda x: x))
            put(f"grad/{path}", whole(lambda x: x.grad))
        put("loss", loss)


def counted(s, name, *shape):
    counts = (torch.rand(*shape) < 0.7).double()
    counts[0, 0] = 1
    return s.input(name, counts)


def gpt():
    config = GPT2Config(vocab_size=VOCAB, n_positions=SEQ, n_embd=D, n_layer=LAYERS, n_head=HEADS, n_inner=INNER)
    model = GPT2LMHeadModel(config)
    s, blocks = Subject("gpt", model), model.transformer.h
    s.param("word", model.transformer.wte.weight)
    s.param("place", model.transformer.wpe.weight)
    for i, name in enumerate("qkv"):
        cut = lambda t, i=i: t[..., i * D : (i + 1) * D]
        s.param(f"layers.block.attention.{name}.w", [b.attn.c_attn.weight for b in blocks],
                lambda t, cut=cut: cut(t).reshape(D, HEADS, WIDTH))
        s.param(f"layers.block.attention.{name}.b", [b.attn.c_attn.bias for b in blocks],
                lambda t, cut=cut: cut(t).reshape(HEADS, WIDTH))
    s.dense("layers.block.attention.out", [b.attn.c_proj for b in blocks], into=[HEADS, WIDTH], transposed=False)
    s.dense("layers.block.mlp.up", [b.mlp.c_fc for b in blocks], transposed=False)
    s.dense("layers.block.mlp.down", [b.mlp.c_proj for b in blocks], transposed=False)
    s.norm("layers.block.norm1", [b.ln_1 for b in blocks])
    s.norm("layers.block.norm2", [b.ln_2 for b in blocks])
    s.norm("norm", model.transformer.ln_f)
    tokens, targets = s.tokens("token", VOCAB, BATCH, SEQ), s.tokens("target", VOCAB, BATCH, SEQ)
    s.input("document", torch.zeros(BATCH, SEQ, dtype=torch.int64))
    s.input("position", torch.arange(SEQ).expand(BATCH, SEQ))
    s.input("bytes", torch.ones(BATCH, SEQ))
    s.end(model(tokens).logits, targets, counted(s, "predicted", BATCH, SEQ))


def llama():
    groups, queries = HEADS, 2
    heads = groups * queries
    wide = heads * WIDTH
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=wide, intermediate_size=INNER, num_hidden_layers=LAYERS,
                         num_attention_heads=heads, num_key_value_heads=groups, rms_norm_eps=1e-5,
                         rope_parameters={"rope_type": "default", "rope_theta": 500_000.0})
    model = LlamaForCausalLM(config)
    s, blocks = Subject("llama", model), model.model.layers
    s.param("embed.w", model.model.embed_tokens.weight)
    attention = [b.self_attn for b in blocks]
    s.dense("layers.block.attention.q", [a.q_proj for a in attention], out=[groups, queries, WIDTH])
    s.dense("layers.block.attention.k", [a.k_proj for a in attention], out=[groups, WIDTH])
    s.dense("layers.block.attention.v", [a.v_proj for a in attention], out=[groups, WIDTH])
    s.dense("layers.block.attention.out", [a.o_proj for a in attention], into=[groups, queries, WIDTH])
    for name in ("gate", "up", "down"):
        s.dense(f"layers.block.mlp.{name}", [getattr(b.mlp, f"{name}_proj") for b in blocks])
    s.norm("layers.block.norm1", [b.input_layernorm for b in blocks])
    s.norm("layers.block.norm2", [b.post_attention_layernorm for b in blocks])
    s.norm("norm", model.model.norm)
    s.param("head.w", model.lm_head.weight, lambda t: t.T)
    tokens, targets = s.tokens("token", VOCAB, BATCH, SEQ), s.tokens("target", VOCAB, BATCH, SEQ)
    s.input("document", torch.zeros(BATCH, SEQ, dtype=torch.int64))
    s.input("bytes", torch.ones(BATCH, SEQ))
    s.end(model(tokens).logits, targets, counted(s, "predicted", BATCH, SEQ))


def bert():
    config = BertConfig(vocab_size=VOCAB, hidden_size=D, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                        intermediate_size=INNER, max_position_embeddings=SEQ, pad_token_id=None)
    model = BertForPreTraining(config)
    s, blocks = Subject("bert", model), model.bert.encoder.layer
    e, head = model.bert.embeddings, model.cls.predictions
    s.param("word", e.word_embeddings.weight)
    s.param("position", e.position_embeddings.weight)
    s.param("kind", e.token_type_embeddings.weight)
    s.norm("embed", e.LayerNorm)
    for ours, theirs in (("q", "query"), ("k", "key"), ("v", "value")):
        s.dense(f"layers.attention.{ours}", [getattr(b.attention.self, theirs) for b in blocks], out=[HEADS, WIDTH])
    s.dense("layers.attention.out", [b.attention.output.dense for b in blocks], into=[HEADS, WIDTH])
    s.norm("layers.norm1", [b.attention.output.LayerNorm for b in blocks])
    s.dense("layers.feed_forward.up", [b.intermediate.dense for b in blocks])
    s.dense("layers.feed_forward.down", [b.output.dense for b in blocks])
    s.norm("layers.norm2", [b.output.LayerNorm for b in blocks])
    s.param("transform.w", head.transform.dense.weight, lambda t: t.T)
    s.param("transform.b", head.transform.dense.bias)
    s.norm("norm", head.transform.LayerNorm)
    s.param("bias", head.bias)
    tokens, targets = s.tokens("token", VOCAB, BATCH, SEQ), s.tokens("target", VOCAB, BATCH, SEQ)
    segments = s.tokens("segment", 2, BATCH, SEQ)
    real = s.input("real", torch.arange(SEQ).expand(BATCH, SEQ) < torch.tensor([[7], [5], [6]]))
    logits = model(tokens, attention_mask=real.long(), token_type_ids=segments).prediction_logits
    s.end(logits, targets, counted(s, "masked", BATCH, SEQ))


def t5():
    out = 5
    config = T5Config(vocab_size=VOCAB, d_model=D, d_kv=WIDTH, d_ff=INNER, num_layers=LAYERS, num_heads=HEADS,
                      relative_attention_num_buckets=32, relative_attention_max_distance=128, dropout_rate=0.0,
                      tie_word_embeddings=True)
    model = T5ForConditionalGeneration(config)
    s = Subject("t5", model)
    s.param("word", model.shared.weight)
    for side, stack, bias in (("encoder", model.encoder, "near"), ("decoder", model.decoder, "past")):
        blocks = stack.block
        s.param(f"{bias}.w", blocks[0].layer[0].SelfAttention.relative_attention_bias.weight)
        parts = [("attention", [b.layer[0].SelfAttention for b in blocks])]
        if side == "decoder":
            parts.append(("cross", [b.layer[1].EncDecAttention for b in blocks]))
        for path, attention in parts:
            for name in "qkv":
                s.dense(f"layers.{side}.{path}.{name}", [getattr(a, name) for a in attention], out=[HEADS, WIDTH])
            s.dense(f"layers.{side}.{path}.out", [a.o for a in attention], into=[HEADS, WIDTH])
        feed = [b.layer[-1].DenseReluDense for b in blocks]
        s.dense(f"layers.{side}.feed_forward.up", [f.wi for f in feed])
        s.dense(f"layers.{side}.feed_forward.down", [f.wo for f in feed])
        for i in range(len(blocks[0].layer)):
            s.norm(f"layers.{side}.norm{i + 1}", [b.layer[i].layer_norm for b in blocks])
        s.norm(f"{side}_norm", stack.final_layer_norm)
    tokens, targets = s.tokens("token", VOCAB, BATCH, SEQ), s.tokens("target", VOCAB, BATCH, out)
    decoder = s.tokens("decoder", VOCAB, BATCH, out)
    real = s.input("real", torch.arange(SEQ).expand(BATCH, SEQ) < torch.tensor([[7], [5], [6]]))
    logits = model(input_ids=tokens, attention_mask=real.long(), decoder_input_ids=decoder).logits
    s.end(logits, targets, counted(s, "predicted", BATCH, out))


def vit():
    side, patch, classes = 6, 3, 5
    config = ViTConfig(hidden_size=D, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=INNER, image_size=side,
                       patch_size=patch, num_channels=2, num_labels=classes, layer_norm_eps=1e-5, hidden_act="gelu")
    model = ViTForImageClassification(config)
    s = Subject("vit", model)
    blocks = model.vit.layers
    e = model.vit.embeddings
    s.param("class", e.cls_token, lambda t: t.reshape(1, D))
    s.param("place.w", e.position_embeddings, lambda t: t.reshape(-1, D))
    p = e.patch_embeddings.projection
    s.param("patch.w", p.weight, lambda t: t.permute(2, 3, 1, 0))
    s.param("patch.b", p.bias)
    s.norm("layers.block.norm1", [b.layernorm_before for b in blocks])
    s.norm("layers.block.norm2", [b.layernorm_after for b in blocks])
    for name in "qkv":
        s.dense(f"layers.block.attention.{name}", [getattr(b.attention, f"{name}_proj") for b in blocks], out=[HEADS, WIDTH])
    s.dense("layers.block.attention.out", [b.attention.o_proj for b in blocks], into=[HEADS, WIDTH])
    s.dense("layers.block.mlp.up", [b.mlp.fc1 for b in blocks])
    s.dense("layers.block.mlp.down", [b.mlp.fc2 for b in blocks])
    s.norm("norm", model.vit.layernorm)
    s.param("head.w", model.classifier.weight, lambda t: t.T)
    s.param("head.b", model.classifier.bias)
    image = s.tokens("image", 256, BATCH, side, side, 2)
    label = s.tokens("label", classes, BATCH)
    logits = model((image.double() / 127.5 - 1).permute(0, 3, 1, 2)).logits
    s.end(logits, label, torch.ones(BATCH))


class Switch(torch.nn.Module):
    """A Switch Transformer that predicts the next token, written for this comparison: `transformers` has one of T5's form alone. Every
    token is sent to its expert on its own, in loops."""

    EXPERTS, CAPACITY = 3, 1.25

    def __init__(self):
        super().__init__()
        linear, norm = torch.nn.Linear, torch.nn.LayerNorm
        attention = lambda: torch.nn.ModuleDict({name: linear(D, D) for name in ("q", "k", "v", "out")})
        block = lambda: torch.nn.ModuleDict({
            "norm1": norm(D), "attention": attention(), "norm2": norm(D), "up": linear(D, INNER), "down": linear(INNER, D),
            "norm3": norm(D), "experts_attention": attention(), "norm4": norm(D), "router": linear(D, self.EXPERTS, bias=False),
            "expert_up": torch.nn.ModuleList(linear(D, INNER, bias=False) for _ in range(self.EXPERTS)),
            "expert_down": torch.nn.ModuleList(linear(INNER, D, bias=False) for _ in range(self.EXPERTS)),
        })
        self.word, self.place = torch.nn.Embedding(VOCAB, D), torch.nn.Embedding(SEQ, D)
        self.blocks, self.norm = torch.nn.ModuleList(block() for _ in range(LAYERS)), norm(D)

    def attend(self, a, x):
        q, k, v = (a[name](x).view(BATCH, SEQ, HEADS, WIDTH).transpose(1, 2) for name in "qkv")
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return a["out"](y.transpose(1, 2).reshape(BATCH, SEQ, D))

    def route(self, b, x):
        """What the experts give, and the losses of balance and of the router's size."""
        scores = b["router"](x)
        gates = scores.softmax(-1)
        slots = math.ceil(self.CAPACITY * SEQ / self.EXPERTS)
        out, uneven, size = torch.zeros_like(x), 0, 0
        for i in range(BATCH):
            taken, sent = [0] * self.EXPERTS, torch.zeros(self.EXPERTS)
            for t in range(SEQ):
                e = int(scores[i, t].argmax())
                sent[e] += 1 / SEQ
                if taken[e] < slots:
                    y = b["expert_down"][e](b["expert_up"][e](x[i, t]).relu())
                    out[i, t] = gates[i, t, e] * y
                else:
                    self.dropped += 1
                taken[e] += 1
            uneven = uneven + self.EXPERTS * (sent * gates[i].mean(0)).sum() / BATCH
            size = size + (scores[i].logsumexp(-1) ** 2).mean() / BATCH
        return out, uneven, size

    def forward(self, tokens):
        x, uneven, size, self.dropped = self.word(tokens) + self.place(torch.arange(SEQ)), 0, 0, 0
        for b in self.blocks:
            x = x + self.attend(b["attention"], b["norm1"](x))
            x = x + b["down"](F.gelu(b["up"](b["norm2"](x))))
            x = x + self.attend(b["experts_attention"], b["norm3"](x))
            y, u, z = self.route(b, b["norm4"](x))
            x, uneven, size = x + y, uneven + u, size + z
        return self.norm(x) @ self.word.weight.T, uneven, size


def switch():
    model = Switch()
    s, blocks = Subject("switch", model), model.blocks
    s.param("word", model.word.weight)
    s.param("place", model.place.weight)
    s.norm("norm", model.norm)
    for theirs, ours in (("norm1", "dense.norm1"), ("norm2", "dense.norm2"), ("norm3", "norm1"), ("norm4", "norm2")):
        s.norm(f"layers.block.{ours}", [b[theirs] for b in blocks])
    for theirs, ours in (("attention", "dense.attention"), ("experts_attention", "attention")):
        for name in "qkv":
            s.dense(f"layers.block.{ours}.{name}", [b[theirs][name] for b in blocks], out=[HEADS, WIDTH])
        s.dense(f"layers.block.{ours}.out", [b[theirs]["out"] for b in blocks], into=[HEADS, WIDTH])
    s.dense("layers.block.dense.mlp.up", [b["up"] for b in blocks])
    s.dense("layers.block.dense.mlp.down", [b["down"] for b in blocks])
    s.dense("layers.block.switch.router", [b["router"] for b in blocks])
    experts = lambda name: torch.stack([torch.stack([e.weight.T for e in b[name]]) for b in blocks])
    grads = lambda name: torch.stack([torch.stack([(torch.zeros_like(e.weight) if e.weight.grad is None else e.weight.grad).T for e in b[name]]) for b in blocks])
    tokens, targets = s.tokens("token", VOCAB, BATCH, SEQ), s.tokens("target", VOCAB, BATCH, SEQ)
    s.input("document", torch.zeros(BATCH, SEQ, dtype=torch.int64))
    s.input("position", torch.arange(SEQ).expand(BATCH, SEQ))
    s.input("bytes", torch.ones(BATCH, SEQ))
    logits, uneven, size = model(tokens)
    assert 0 < model.dropped < BATCH * SEQ * LAYERS, "some tokens must find their expert full"
    s.end(logits, targets, counted(s, "predicted", BATCH, SEQ), SWITCH["balance"] * uneven + SWITCH["z"] * size)
    for name in ("up", "down"):
        OUT[f"switch/param/layers.block.switch.{name}"] = keep(experts(f"expert_{name}"))
        OUT[f"switch/grad/layers.block.switch.{name}"] = keep(grads(f"expert_{name}"))


# Larger than usual, so that what is wrong in these losses shows.
SWITCH = {"balance": 0.5, "z": 0.1}

for subject in (gpt, llama, bert, t5, vit, switch):
    subject()
    print(subject.__name__, float(OUT[f"{subject.__name__}/loss"]))
save_file(OUT, pathlib.Path(__file__).with_name("models.safetensors"))
