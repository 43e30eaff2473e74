"""Makes tiny checkpoints with Hugging Face's `transformers` and `tokenizers`, and what these compute with them.

    pip install torch transformers tokenizers safetensors && python make.py [NAME ...]

For each map a folder as `save_pretrained` writes it, with random weights; those of the first four have a tokenizer that was trained on
`TEXTS`. `expected.safetensors` has `NAME/input/X`, `NAME/logits` and `NAME/loss` in f32; `tokens.json` the tokens of some texts, and
what `generate` continues them with. Weights of `bert` are stored in f16, those of `llama` in bf16 and in several files. With names, only
these are made again.
"""

import json
import pathlib
import shutil
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (BertConfig, BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification, GemmaConfig,
                          GemmaForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          RobertaConfig, RobertaForMaskedLM, RobertaForSequenceClassification, RobertaForTokenClassification, T5Config,
                          T5ForConditionalGeneration)

HERE = pathlib.Path(__file__).parent
BATCH, SEQ, OUT_SEQ = 3, 7, 5
OUT, TOKENS = {}, {}
TEXTS = [
    "In the beginning God created the heaven and the earth.",
    "And the earth was without form, and void; and darkness was upon the face of the deep.",
    "And God said, Let there be light: and there was light. It's 42 o'clock, isn't it?",
    "  Two spaces, a tab\tand a line\nthat ends; naïve café — “quoted” 中文 🙂",
]


def randomized(model):
    """The model with weights of which none is left at 0 or 1."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.3 + (1 if p.dim() == 1 and name.endswith("weight") else 0))
    return model.eval()


def stored(name, make, config, dtype, shard):
    """Saves a model, and gives it as it is read again, in f32."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    randomized(make(config)).to(dtype).save_pretrained(folder, max_shard_size=shard)
    return make.from_pretrained(folder, dtype=torch.float32).eval()


def tokenizer(name, tok, **special):
    """Saves a tokenizer, and notes what tokens it gives."""
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, **special)
    fast.save_pretrained(HERE / name)
    texts = [{"text": t, "tokens": fast(t, add_special_tokens=False)["input_ids"]} for t in TEXTS]
    TOKENS[name] = {"texts": texts}
    return fast


def byte_level(specials, size):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tok.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=size, special_tokens=specials, initial_alphabet=alphabet))
    return tok


def word_pieces(size):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tok.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=size, special_tokens=special))
    return tok


def unigram(size):
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.NFKC()
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_1>"]
    tok.train_from_iterator(TEXTS, trainers.UnigramTrainer(vocab_size=size, special_tokens=special, unk_token="<unk>"))
    return tok


def keep(name, inputs, logits, targets, counts):
    loss = (F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none") * counts.flatten()).sum() / counts.sum()
    plain = lambda t: (t.to(torch.int32) if not t.is_floating_point() and t.dtype != torch.bool else t).detach().contiguous().clone()
    for key, t in {**{f"input/{k}": t for k, t in inputs.items()}, "logits": logits, "loss": loss}.items():
        OUT[f"{name}/{key}"] = plain(t)


def continued(name, model, fast):
    """What the most probable tokens continue the first text with."""
    prompt = fast(TEXTS[0][:9], return_tensors="pt", add_special_tokens=False)["input_ids"]
    all = model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)[0]
    TOKENS[name]["prompt"] = TEXTS[0][:9]
    TOKENS[name]["continued"] = all[prompt.shape[1]:].tolist()


def next_token(name, model, vocab, positions):
    tokens, targets = torch.randint(0, vocab, (BATCH, SEQ)), torch.randint(0, vocab, (BATCH, SEQ))
    counts = torch.ones(BATCH, SEQ)
    inputs = {"token": tokens, "target": targets, "document": torch.zeros(BATCH, SEQ, dtype=torch.int64),
              "predicted": counts, "bytes": torch.ones(BATCH, SEQ)}
    if positions:
        inputs["position"] = torch.arange(SEQ).expand(BATCH, SEQ)
    keep(name, inputs, model(tokens).logits, targets, counts)


def gpt():
    fast = byte_level(["<|endoftext|>"], 300)
    config = GPT2Config(vocab_size=300, n_positions=24, n_embd=12, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0)
    model = stored("gpt", GPT2LMHeadModel, config, torch.float32, "5GB")
    fast = tokenizer("gpt", fast, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    continued("gpt", model, fast)
    next_token("gpt", model, 300, True)


def llama():
    fast = byte_level(["<|begin_of_text|>", "<|end_of_text|>"], 310)
    config = LlamaConfig(vocab_size=310, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=6,
                         num_key_value_heads=3, max_position_embeddings=32, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=1,
                         rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    model = stored("llama", LlamaForCausalLM, config, torch.bfloat16, "20KB")
    fast = tokenizer("llama", fast, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>")
    continued("llama", model, fast)
    next_token("llama", model, 310, False)


def bert():
    fast = word_pieces(150)
    vocab = fast.get_vocab_size()
    config = BertConfig(vocab_size=vocab, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
                        max_position_embeddings=16)
    model = stored("bert", BertForMaskedLM, config, torch.float16, "5GB")
    tokenizer("bert", fast, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    tokens, targets = torch.randint(1, vocab, (BATCH, SEQ)), torch.randint(0, vocab, (BATCH, SEQ))
    segments = torch.randint(0, 2, (BATCH, SEQ))
    real = torch.arange(SEQ).expand(BATCH, SEQ) < torch.tensor([[7], [5], [6]])
    counts = real.float()
    logits = model(tokens, attention_mask=real.long(), token_type_ids=segments).logits
    keep("bert", {"token": tokens, "segment": segments, "real": real, "target": targets, "masked": counts}, logits, targets, counts)


def t5():
    fast = unigram(120)
    vocab = fast.get_vocab_size() + 3
    config = T5Config(vocab_size=vocab, d_model=12, d_kv=4, d_ff=20, num_layers=2, num_heads=3, relative_attention_num_buckets=8,
                      relative_attention_max_distance=16, tie_word_embeddings=True)
    model = stored("t5", T5ForConditionalGeneration, config, torch.float32, "5GB")
    tokenizer("t5", fast, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    tokens, targets = torch.randint(0, vocab, (BATCH, SEQ)), torch.randint(0, vocab, (BATCH, OUT_SEQ))
    decoder, counts = torch.randint(0, vocab, (BATCH, OUT_SEQ)), torch.ones(BATCH, OUT_SEQ)
    real = torch.arange(SEQ).expand(BATCH, SEQ) < torch.tensor([[7], [5], [6]])
    logits = model(input_ids=tokens, attention_mask=real.long(), decoder_input_ids=decoder).logits
    keep("t5", {"token": tokens, "real": real, "decoder": decoder, "target": targets, "predicted": counts}, logits, targets, counts)


def of_llamas(name, make, config, vocab=40, **more):
    """A relative of Llama, of the smallest size at which each of its dims has another size."""
    sizes = dict(vocab_size=vocab, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=6,
                 num_key_value_heads=3, max_position_embeddings=32, bos_token_id=0, eos_token_id=1, pad_token_id=None)
    model = stored(name, make, config(**{**sizes, **more}), torch.bfloat16, "5GB")
    next_token(name, model, vocab, False)


def llama_scaled():
    scaled = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 16}
    of_llamas("llama_scaled", LlamaForCausalLM, LlamaConfig, rope_parameters=scaled, tie_word_embeddings=True, rms_norm_eps=1e-5)


def mistral():
    of_llamas("mistral", MistralForCausalLM, MistralConfig, sliding_window=16, rms_norm_eps=1e-5, head_dim=4)


def qwen2():
    of_llamas("qwen2", Qwen2ForCausalLM, Qwen2Config, tie_word_embeddings=True)


def qwen3():
    of_llamas("qwen3", Qwen3ForCausalLM, Qwen3Config, head_dim=4, tie_word_embeddings=False)


def gemma():
    of_llamas("gemma", GemmaForCausalLM, GemmaConfig, head_dim=4)


SMALL = dict(vocab_size=40, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, max_position_embeddings=18)
ROBERTA = dict(SMALL, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-5)
NAMES = ["history", "poetry", "prophets", "letters"]
LABELS = dict(id2label=dict(enumerate(NAMES)), label2id={n: i for i, n in enumerate(NAMES)})


def encoded(name, make, config, kind):
    """An encoder: `kind` is what it predicts for an example, of `masked`, `label` and `tag`."""
    model = stored(name, make, config, torch.float32, "5GB")
    # A token that fills up would have no position in RoBERTa.
    tokens = torch.randint(3, 40, (BATCH, SEQ))
    real = torch.arange(SEQ).expand(BATCH, SEQ) < torch.tensor([[7], [5], [6]])
    inputs = {"token": tokens, "segment": torch.randint(0, config.type_vocab_size, (BATCH, SEQ)), "real": real}
    logits = model(tokens, attention_mask=real.long(), token_type_ids=inputs["segment"]).logits
    targets = torch.randint(0, logits.shape[-1], logits.shape[:-1])
    counts = torch.ones(BATCH) if kind == "label" else real.float()
    more = {"masked": {"target": targets, "masked": counts}, "label": {"label": targets}, "tag": {"label": targets, "counted": counts}}
    keep(name, {**inputs, **more[kind]}, logits, targets, counts)


def roberta():
    encoded("roberta", RobertaForMaskedLM, RobertaConfig(**ROBERTA), "masked")


def bert_classify():
    encoded("bert_classify", BertForSequenceClassification, BertConfig(**SMALL, **LABELS), "label")


def roberta_classify():
    encoded("roberta_classify", RobertaForSequenceClassification, RobertaConfig(**ROBERTA, **LABELS), "label")


def bert_tag():
    encoded("bert_tag", BertForTokenClassification, BertConfig(**SMALL, **LABELS), "tag")


def roberta_tag():
    encoded("roberta_tag", RobertaForTokenClassification, RobertaConfig(**ROBERTA, **LABELS), "tag")


ALL = (gpt, llama, bert, t5, llama_scaled, mistral, qwen2, qwen3, gemma, roberta, bert_classify, roberta_classify, bert_tag, roberta_tag)
EXPECTED, TOKENS_FILE = HERE / "expected.safetensors", HERE / "tokens.json"
if len(sys.argv) > 1:
    OUT, TOKENS = load_file(EXPECTED), json.loads(TOKENS_FILE.read_text())
for seed, made in enumerate(ALL):
    if len(sys.argv) > 1 and made.__name__ not in sys.argv[1:]:
        continue
    torch.manual_seed(seed)
    with torch.no_grad():
        made()
    print(made.__name__, float(OUT[f"{made.__name__}/loss"]))
save_file(OUT, EXPECTED)
TOKENS_FILE.write_text(json.dumps(TOKENS, ensure_ascii=False, indent=1) + "\n")
