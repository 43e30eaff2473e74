//! Words that other languages, libraries and tools have for what is called otherwise here: one table, and what to write instead.
//!
//! It is data; whoever finds a word that means nothing looks it up for the place where it stands.

use crate::{Diagnostic, Span};

/// The place of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WordPlace {
    /// A called function: `matmul(x, y)`.
    Call,
    /// The begin of a statement, or a word in an expression: `if`.
    Statement,
    /// Behind a point: `x.T`.
    Method,
    /// A sign in a model, such as `@`.
    Sign,
    /// A sign in a layout, such as `=>`.
    LayoutSign,
    /// The first word of a line of a `train` block.
    Setting,
    /// The name of an argument: `learning_rate = 0.1`.
    Argument,
    /// The initializer of a parameter: `xavier_uniform()`.
    Initializer,
    /// A learning-rate schedule: `cosine(…)`.
    LearningRate,
    /// An option of the command line, without its dashes.
    Option,
}

/// Advice for a word of another language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Another word in the same place.
    Name(&'static str),
    /// Another construct.
    Written(&'static str),
    /// Nothing: the reason.
    Nothing(&'static str),
    /// This text.
    Say(&'static str),
}

use Advice::{Name, Nothing, Say, Written};

/// Words with their advice, sorted.
type Words = &'static [(&'static str, Advice)];

const BY_NAME: &str = "operators match dims by name and broadcast over those that one side lacks";
const NO_ORDER: &str = "dims have names, not an order";
const LOOP: &str = "loops run over dims: `repeat d { … }` runs its body once for each position of `d`, with parameters of its own, and `scan d { … }` goes along a dim of the data; `meshwright explain repeat` says more";
const LAYER: &str = "a reusable part is a layer: `layer f(x, in, out) { … return y }`";
const PRODUCT: &str = "sum[d](x * w)";
const DEVICES: &str = "`--device`, `--mesh` and `--layout` say where a program runs";
const NN: &str = "it is a layer of the standard library: `use \"std:nn\"` at the top of the file imports it";
const RATE: &str = "the learning rate belongs to the optimizer: `optimizer adam(lr = 1e-3)`";
const CONST: &str =
    "numbers of the model are consts: with `const lr = 0.1` in the file, `--set lr=0.01` overrides it";
const GPUS: &str = "`--device cuda --mesh data=4 --layout dp` splits the batch over 4 GPUs";

/// The table: every place with its words.
pub static TABLE: &[(WordPlace, Words)] = &[
    (WordPlace::Call, CALLS),
    (WordPlace::Statement, STATEMENTS),
    (WordPlace::Method, METHODS),
    (WordPlace::Sign, SIGNS),
    (WordPlace::LayoutSign, LAYOUT_SIGNS),
    (WordPlace::Setting, SETTINGS),
    (WordPlace::Argument, ARGUMENTS),
    (WordPlace::Initializer, INITIALIZERS),
    (WordPlace::LearningRate, LEARNING_RATES),
    (WordPlace::Option, OPTIONS),
];

static CALLS: Words = &[
    ("absolute", Name("abs")),
    ("add", Written("x + y")),
    ("add_n", Written("x + y + z")),
    ("amax", Name("max")),
    ("amin", Name("min")),
    ("arange", Written("index(d)")),
    ("arg_max", Name("argmax")),
    ("arg_min", Name("argmin")),
    ("astype", Written("cast(x, float)")),
    ("average", Name("mean")),
    ("batch_norm", Say(NN)),
    ("bmm", Written("sum[d](x * y)")),
    ("broadcast", Nothing(BY_NAME)),
    ("broadcast_to", Nothing(BY_NAME)),
    ("ceiling", Name("ceil")),
    ("conv2d", Say(NN)),
    ("cross_attention", Say(NN)),
    ("cum_sum", Name("cumsum")),
    ("cumulative_sum", Name("cumsum")),
    ("dense", Say(NN)),
    ("detach", Name("stop_gradient")),
    ("div", Written("x / y")),
    ("divide", Written("x / y")),
    ("dot", Written("sum[d](x * y)")),
    ("einsum", Written("sum[d](x * y)")),
    (
        "embedding",
        Say("`table[vocab = token]` looks up the vectors; `use \"std:nn\"` has `embedding(token, vocab, d)`"),
    ),
    ("eq", Written("x == y")),
    ("equal", Written("x == y")),
    ("expand", Nothing(BY_NAME)),
    ("expand_dims", Nothing(BY_NAME)),
    ("fabs", Name("abs")),
    ("flip", Written("reverse[d](x)")),
    ("floor_divide", Written("x//y")),
    ("floordiv", Written("x//y")),
    ("floormod", Written("x % y")),
    ("fmod", Written("x % y")),
    ("gather", Written("table[vocab = token]")),
    ("ge", Written("x >= y")),
    ("greater", Written("x > y")),
    ("greater_equal", Written("x >= y")),
    ("group_norm", Say(NN)),
    ("gru_cell", Say(NN)),
    ("gt", Written("x > y")),
    ("identity", Nothing("a value is used by its name")),
    ("iota", Written("index(d)")),
    ("layer_norm", Say(NN)),
    ("le", Written("x <= y")),
    ("less", Written("x < y")),
    ("less_equal", Written("x <= y")),
    ("linear", Say(NN)),
    ("ln", Name("log")),
    ("log_sum_exp", Name("logsumexp")),
    ("logical_and", Written("x and y")),
    ("logical_not", Written("not x")),
    ("logical_or", Written("x or y")),
    ("logical_xor", Written("x != y")),
    ("lstm_cell", Say(NN)),
    ("lt", Written("x < y")),
    ("matmul", Written("sum[d](x * y)")),
    ("maximum", Name("max")),
    ("minimum", Name("min")),
    ("mod", Written("x % y")),
    ("mtf_range", Written("index(d)")),
    ("mul", Written("x * y")),
    ("multi_head_attention", Say("it is `self_attention` of the standard library, `use \"std:nn\"`")),
    ("multiply", Written("x * y")),
    ("ne", Written("x != y")),
    ("negative", Name("neg")),
    ("not_equal", Written("x != y")),
    ("nth_largest_element", Written("top_k[d -> k](x)")),
    ("nth_smallest_element", Written("top_k[d -> k](-x)")),
    ("permute", Nothing("dims have names, not an order")),
    ("power", Name("pow")),
    ("product", Name("prod")),
    ("range", Written("index(d)")),
    ("reciprocal", Name("recip")),
    ("reduce_all", Name("all")),
    ("reduce_any", Name("any")),
    ("reduce_first", Written("x[d = 0]")),
    ("reduce_logsumexp", Name("logsumexp")),
    ("reduce_max", Name("max")),
    ("reduce_mean", Name("mean")),
    ("reduce_min", Name("min")),
    ("reduce_prod", Name("prod")),
    ("reduce_sum", Name("sum")),
    ("remainder", Written("x % y")),
    ("rename_dimension", Written("x[d -> e]")),
    ("replace_dimensions", Written("x[d -> e]")),
    ("rint", Name("round")),
    ("rms_norm", Say(NN)),
    ("self_attention", Say(NN)),
    ("shape", Written("size(d)")),
    ("softmax_cross_entropy_with_logits", Name("cross_entropy")),
    ("squeeze", Nothing("a dim of size 1 is taken out by `x[d = 0]` or `sum[d](x)`")),
    ("sub", Written("x - y")),
    ("subtract", Written("x - y")),
    ("swiglu", Say(NN)),
    ("swish", Name("silu")),
    ("take", Written("table[vocab = token]")),
    ("tensordot", Written("sum[d](x * y)")),
    ("to_bfloat16", Written("cast(x, float)")),
    ("to_float", Written("cast(x, float)")),
    ("to_int32", Written("cast(x, i32)")),
    ("top_1", Written("argmax[d](x)` and `max[d](x)")),
    ("topk", Name("top_k")),
    ("transformer_block", Say(NN)),
    ("transpose", Nothing("dims have names, not an order")),
    ("true_divide", Written("x / y")),
    ("unsqueeze", Nothing(BY_NAME)),
];

static STATEMENTS: Words = &[
    ("assert", Nothing("shapes and dtypes are checked as they are")),
    ("class", Say("a computation is `model m { … }`, a reusable part `layer f(x, in, out) { … return y }`")),
    ("def", Say(LAYER)),
    ("elif", Written("where(c, a, b)")),
    ("else", Written("where(c, a, b)")),
    ("fn", Say(LAYER)),
    ("for", Say(LOOP)),
    ("from", Written("use \"layers.mw\"")),
    ("func", Say(LAYER)),
    ("function", Say(LAYER)),
    ("if", Written("where(c, a, b)")),
    ("import", Written("use \"layers.mw\"")),
    ("lambda", Say(LAYER)),
    ("pass", Nothing("a block may be empty")),
    ("print", Say("declare the value as an `output`: `meshwright predict` shows it")),
    ("while", Say(LOOP)),
    ("with", Say("`stop_gradient(x)` is without a gradient, `training` tells training from evaluation")),
];

static METHODS: Words = &[
    ("T", Nothing(NO_ORDER)),
    ("argmax", Written("argmax[d](x)")),
    ("backward", Nothing("the `train` block takes all gradients")),
    ("cpu", Say(DEVICES)),
    ("cuda", Say(DEVICES)),
    ("detach", Written("stop_gradient(x)")),
    ("dot", Written(PRODUCT)),
    ("expand", Nothing(BY_NAME)),
    ("flatten", Written("x[a * b -> c]")),
    ("float", Written("cast(x, float)")),
    ("int", Written("cast(x, i32)")),
    ("item", Nothing("a `loss` or `metric` is a number already")),
    ("long", Written("cast(x, i32)")),
    ("matmul", Written(PRODUCT)),
    ("max", Written("max[d](x)")),
    ("mean", Written("mean[d](x)")),
    ("mm", Written(PRODUCT)),
    ("permute", Nothing(NO_ORDER)),
    ("reshape", Written("x[a * b -> c]` or `x[c -> a * b]")),
    ("shape", Written("size(d)")),
    ("size", Written("size(d)")),
    ("squeeze", Written("x[d = 0]")),
    ("sum", Written("sum[d](x)")),
    ("to", Say(DEVICES)),
    ("transpose", Nothing(NO_ORDER)),
    ("unsqueeze", Nothing(BY_NAME)),
    ("view", Written("x[a * b -> c]` or `x[c -> a * b]")),
];

static SIGNS: Words = &[
    ("&", Name("and")),
    ("&&", Name("and")),
    ("=>", Name("->")),
    ("?", Written("where(c, a, b)")),
    ("@", Say("a product of matrices names the dim that is summed: `sum[d](x * w)`")),
    ("^", Name("**")),
    ("|", Name("or")),
];

static LAYOUT_SIGNS: Words = &[
    ("&", Name(",")),
    ("&&", Name(",")),
    ("+", Name(",")),
    ("<", Say("a rule names the dim first: `batch -> data`")),
    ("=>", Name("->")),
    ("|", Name(",")),
];

static SETTINGS: Words = &[
    ("allow_tf32", Written("precision tf32")),
    ("amp", Written("precision bf16")),
    ("batch", Say("the batch is a dim of the model; `--dim batch=64` overrides it")),
    ("batch_size", Say("the batch is a dim of the model; `--dim batch=64` overrides it")),
    ("callbacks", Nothing("a run is chosen on the command line; see `meshwright train --help`")),
    ("clip_norm", Written("clip global_norm = 1.0")),
    ("data", Say("data is an option: `meshwright train MODEL --data FOLDER`")),
    ("device", Say(DEVICES)),
    ("epoch", Say("the length of a run is an option: `meshwright train MODEL --epochs 3`")),
    ("epochs", Say("the length of a run is an option: `meshwright train MODEL --epochs 3`")),
    ("fp16", Written("precision f16")),
    ("fp8_autocast", Written("precision fp8")),
    ("grad_scaler", Say("`precision f16` scales the loss, and says how in its arguments")),
    ("gradient_clipping", Written("clip global_norm = 1.0")),
    ("learning_rate", Say(RATE)),
    ("loss", Say("a loss stands in the model: `loss l = …`; here `minimize l` names it")),
    ("loss_scale", Written("precision f16(scale = 65_536)")),
    ("lr", Say(RATE)),
    ("metric", Say("a metric stands in the model: `metric accuracy = …`")),
    ("metrics", Say("a metric stands in the model: `metric accuracy = …`")),
    (
        "schedule",
        Say(
            "a learning-rate schedule is a value of `lr`: `lr = warmup_cosine(peak = 1e-3, warmup = 100, total = 10_000)`",
        ),
    ),
    (
        "scheduler",
        Say(
            "a learning-rate schedule is a value of `lr`: `lr = warmup_cosine(peak = 1e-3, warmup = 100, total = 10_000)`",
        ),
    ),
    ("seed", Say("the seed is an option: `meshwright train MODEL --seed 1`")),
    ("steps", Say("the length of a run is an option: `meshwright train MODEL --steps 1000`")),
];

static ARGUMENTS: Words = &[
    ("axis", Say("dims stand in brackets: `sum[d](x)`")),
    ("beta_1", Name("beta1")),
    ("beta_2", Name("beta2")),
    ("betas", Say("they have a name each: `beta1 = 0.9, beta2 = 0.999`")),
    ("dim", Say("dims stand in brackets: `sum[d](x)`")),
    ("dims", Say("dims stand in brackets: `sum[d](x)`")),
    ("epsilon", Name("eps")),
    ("gain", Nothing("give the distribution itself: `normal(0, 0.02)`")),
    ("keepdim", Nothing(BY_NAME)),
    ("keepdims", Nothing(BY_NAME)),
    ("l2", Name("weight_decay")),
    ("learning_rate", Name("lr")),
    ("loc", Name("mean")),
    ("pad", Name("padding")),
    ("stddev", Name("std")),
    ("strides", Name("stride")),
    ("warmup_steps", Name("warmup")),
    ("wd", Name("weight_decay")),
];

static INITIALIZERS: Words = &[
    ("constant", Written("0.1")),
    ("gaussian", Name("normal(0, 0.02)")),
    ("glorot", Name("glorot_uniform")),
    ("he", Name("he_normal")),
    ("kaiming_normal", Name("he_normal")),
    ("kaiming_uniform", Name("he_uniform")),
    ("ones", Name("1")),
    ("rand", Name("uniform(0, 1)")),
    ("randn", Name("normal(0, 1)")),
    ("trunc_normal", Name("truncated_normal(0, 0.02)")),
    ("xavier", Name("glorot_uniform")),
    ("xavier_normal", Name("glorot_normal")),
    ("xavier_uniform", Name("glorot_uniform")),
    ("zeros", Name("0")),
];

static LEARNING_RATES: Words = &[
    ("cosine", Written("warmup_cosine(peak = 1e-3, warmup = 0, total = 10_000)")),
    ("cosine_annealing", Written("warmup_cosine(peak = 1e-3, warmup = 0, total = 10_000)")),
    ("cosine_decay", Written("warmup_cosine(peak = 1e-3, warmup = 0, total = 10_000)")),
    ("cosineannealinglr", Written("warmup_cosine(peak = 1e-3, warmup = 0, total = 10_000)")),
    ("exponential", Written("1e-3 * 0.9 ** (step / 1000)")),
    ("exponential_decay", Written("1e-3 * 0.9 ** (step / 1000)")),
    ("linear", Written("warmup_linear(peak = 1e-3, warmup = 0, total = 10_000)")),
    ("linear_warmup", Written("warmup_linear(peak = 1e-3, warmup = 100, total = 10_000)")),
    ("onecyclelr", Written("warmup_cosine(peak = 1e-3, warmup = 100, total = 10_000)")),
    ("piecewise", Written("where(step < 1000, 1e-3, 1e-4)")),
    ("step_lr", Written("where(step < 1000, 1e-3, 1e-4)")),
    ("steplr", Written("where(step < 1000, 1e-3, 1e-4)")),
    ("warmup", Written("warmup_linear(peak = 1e-3, warmup = 100, total = 10_000)")),
];

static OPTIONS: Words = &[
    ("amp", Written("--precision bf16")),
    ("batch-size", Written("--dim batch=64")),
    ("batch_size", Written("--dim batch=64")),
    ("bf16", Written("--precision bf16")),
    ("bs", Written("--dim batch=64")),
    ("config", Say("the model file says how it is trained; `--set` and `--dim` override its numbers")),
    ("epoch", Written("--epochs 3")),
    ("fp16", Written("--precision f16")),
    ("gpu", Say(GPUS)),
    ("gpus", Say(GPUS)),
    ("learning-rate", Say(CONST)),
    ("learning_rate", Say(CONST)),
    ("lr", Say(CONST)),
    ("max-epochs", Written("--epochs 3")),
    ("max-steps", Written("--steps 1000")),
    ("model", Say("the model is the first word behind the command: `meshwright train mlp`")),
    ("momentum", Say(CONST)),
    ("nproc", Say("start processes with `mpirun -n 4 meshwright …`")),
    ("num-epochs", Written("--epochs 3")),
    ("num-gpus", Say(GPUS)),
    ("num-steps", Written("--steps 1000")),
    ("num-workers", Written("--cores 4")),
    ("optimizer", Say("the optimizer stands in the `train` block of the model")),
    ("output-dir", Written("--run DIR")),
    ("save-dir", Written("--run DIR")),
    ("weight-decay", Say("weight decay stands in the `train` block of the model: `weight_decay 0.01`")),
    ("workers", Written("--cores 4")),
];

impl Advice {
    /// The advice, as a sentence without its stop. `form` gives the whole form of a name.
    pub fn text(self, form: impl Fn(&str) -> String) -> String {
        match self {
            Name(here) => format!("it is written `{}` here", form(here)),
            Written(form) => format!("it is written `{form}` here"),
            Nothing(why) => format!("leave it out: {why}"),
            Say(what) => what.to_string(),
        }
    }
}

/// The advice for a word in a place: as it is written, else without regard to case.
pub fn advice(place: WordPlace, word: &str) -> Option<Advice> {
    let words = TABLE.iter().find(|t| t.0 == place)?.1;
    let found = |word: &str| words.binary_search_by(|(w, _)| (*w).cmp(word)).ok();
    found(word).or_else(|| found(&word.to_ascii_lowercase())).map(|i| words[i].1)
}

/// The diagnostic with what to write for a foreign word, and whether the word is one. A name becomes a fix where `fits` says
/// that it can stand in that place, else a hint at the form that `form` gives.
pub fn advised(
    d: Diagnostic,
    place: WordPlace,
    word: &str,
    at: Span,
    fits: impl Fn(&str) -> bool,
    form: impl Fn(&str) -> String,
) -> (Diagnostic, bool) {
    match advice(place, word) {
        None => (d, false),
        Some(Name(here)) if fits(here) => (d.fix(format!("write `{here}`"), at, here, true), true),
        Some(advice) => (d.help(advice.text(form)), true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_sorted_each_once() {
        for (place, words) in TABLE {
            assert!(words.windows(2).all(|w| w[0].0 < w[1].0), "{place:?}");
        }
    }
}
