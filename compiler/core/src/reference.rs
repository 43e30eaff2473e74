//! Reference pages of words that are neither codes nor ops: optimizers, initializers, learning-rate schedules, keywords and the
//! other built-ins. Names and parameters come from the tables that the resolver reads.

use crate::resolve::{BY_FAN, INITIALIZERS, LEARNING_RATES};
use crate::step::optimizers::{Accepts, OPTIMIZERS, Setting};
use meshwright_sorted::SortedMap;

/// Kind of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WordKind {
    /// In `optimizer NAME(…)`.
    Optimizer,
    /// The value of a parameter before training.
    Initializer,
    /// A hyperparameter that changes with the step.
    LearningRate,
    /// Reserved, or with a meaning in some places.
    Keyword,
    /// A function that is no op.
    BuiltIn,
    /// A word of layout files.
    LayoutKeyword,
}

impl WordKind {
    /// In lowercase, for a heading.
    pub fn text(self) -> &'static str {
        match self {
            WordKind::Optimizer => "optimizer",
            WordKind::Initializer => "initializer",
            WordKind::LearningRate => "learning rate",
            WordKind::Keyword => "keyword",
            WordKind::BuiltIn => "built-in",
            WordKind::LayoutKeyword => "layout keyword",
        }
    }
}

/// The page of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordPage {
    /// Its kind.
    pub kind: WordKind,
    /// The word.
    pub name: &'static str,
    /// Its syntax.
    pub form: String,
    /// Its meaning.
    pub doc: &'static str,
    /// Its settings, a line each.
    pub settings: Vec<String>,
}

/// Initializers, learning-rate schedules, built-ins and keywords: kind, word and meaning. The syntax of the first two follows
/// from the tables of the resolver; that of the others is the fourth text.
const DOCS: &[(WordKind, &str, &str, &str)] = {
    use WordKind::{BuiltIn, Initializer, Keyword, LayoutKeyword, LearningRate};
    &[
        (Initializer, "normal", "A normal distribution.", ""),
        (
            Initializer,
            "truncated_normal",
            "A normal distribution, cut off at two standard deviations from its mean.",
            "",
        ),
        (Initializer, "uniform", "A uniform distribution from `low` to `high`.", ""),
        (
            Initializer,
            "glorot_uniform",
            "Uniform with variance `2 / (n + m)`, for `n` the size of the dims that are summed over and `m` that of the dims of the result (Glorot & Bengio 2010; also called Xavier). Each is a dim of the parameter or a list of them.",
            "",
        ),
        (
            Initializer,
            "glorot_normal",
            "Normal with variance `2 / (n + m)`, for `n` the size of the dims that are summed over and `m` that of the dims of the result (Glorot & Bengio 2010; also called Xavier). Each is a dim of the parameter or a list of them.",
            "",
        ),
        (
            Initializer,
            "he_uniform",
            "Uniform with variance `2 / n`, for `n` the size of the dims that are summed over (He et al. 2015; also called Kaiming): a dim of the parameter or a list of them.",
            "",
        ),
        (
            Initializer,
            "he_normal",
            "Normal with variance `2 / n`, for `n` the size of the dims that are summed over (He et al. 2015; also called Kaiming): a dim of the parameter or a list of them.",
            "",
        ),
        (LearningRate, "constant", "The same in every step.", ""),
        (
            LearningRate,
            "warmup_linear",
            "Rises from 0 to `peak` in `warmup` steps, then falls on a line to 0 at step `total`.",
            "",
        ),
        (
            LearningRate,
            "warmup_cosine",
            "Rises from 0 to `peak` in `warmup` steps, then falls on half a cosine to `floor` at step `total`. `floor` is 0 unless it is given.",
            "",
        ),
        (
            BuiltIn,
            "size",
            "The product of the sizes of dims, as a number. In an expression over values a dim alone is no number.",
            "size(d, e)",
        ),
        (
            Keyword,
            "let",
            "Names a value, or several values of a layer that returns several.",
            "let y = x * w",
        ),
        (
            Keyword,
            "param",
            "Declares a trained parameter, its dims and its initial value.",
            "param w[in, out] = normal(0, 0.02)",
        ),
        (
            Keyword,
            "input",
            "Declares data. Its first dim counts examples; `in d` promises positions along a dim.",
            "input label[batch]: i32 in classes",
        ),
        (
            Keyword,
            "loss",
            "Declares a scalar that can be minimized. Evaluations report it.",
            "loss xent = mean[batch](cross_entropy[classes](logits, label))",
        ),
        (
            Keyword,
            "metric",
            "Declares a scalar that evaluations report. Training steps do not compute it. `min` or `max` says which way is better.",
            "metric max accuracy = mean[batch](argmax[classes](logits) == label)",
        ),
        (
            Keyword,
            "output",
            "Declares a value that `predict` writes, one row per example if it has the example dim.",
            "output class = argmax[classes](logits)",
        ),
        (
            Keyword,
            "state",
            "Declares a tensor that persists between training steps and is not trained; `NAME = …` assigns its next value.",
            "state average[b] = 0",
        ),
        (
            Keyword,
            "repeat",
            "A loop over a dim: a stack of identical layers, each with parameters of its own, compiled once.",
            "repeat layers { … }",
        ),
        (
            Keyword,
            "scan",
            "A recurrence along a dim: a loop whose iterations share their parameters. What it declares with `let` is collected along the dim.",
            "scan seq { h = cell(x, h) … }",
        ),
        (Keyword, "return", "The results of a layer.", "return a, b"),
        (
            Keyword,
            "dim",
            "Declares a named size. `--dim NAME=SIZE` overrides it.",
            "dim batch = 32, half = d_model//2",
        ),
        (Keyword, "const", "Declares a number. `--set NAME=VALUE` overrides it.", "const rate = 1e-3"),
        (Keyword, "use", "Imports the layers, dims and consts of another file.", "use \"layers.mw\""),
        (
            Keyword,
            "layer",
            "Declares a part of models that calls write out: values, dims and numbers are its arguments.",
            "layer dense(x, in, out) { … }",
        ),
        (Keyword, "model", "The computation of a file.", "model m { … }"),
        (Keyword, "train", "How a model is trained.", "train m { minimize LOSS optimizer NAME(…) }"),
        (Keyword, "minimize", "In `train`: the loss that is minimized.", "minimize xent"),
        (
            Keyword,
            "optimizer",
            "In `train`: how parameters follow from gradients. `explain adam` has the page of one.",
            "optimizer adamw(lr = 1e-3)",
        ),
        (
            Keyword,
            "clip",
            "In `train`: scales all gradients so that their joint 2-norm is at most this.",
            "clip global_norm = 1.0",
        ),
        (
            Keyword,
            "precision",
            "In `train`: the arithmetic: `f32`, `f64`, `bf16`, `f16` with loss scaling, `tf32`, or `fp8`, where `fp8(history = 16)` scales factors by the maxima of the last steps. `--precision` overrides it.",
            "precision bf16",
        ),
        (Keyword, "freeze", "In `train`: parameters that are not trained.", "freeze embed.*, *.b"),
        (
            Keyword,
            "weight_decay",
            "In `train`: the weight decay, and the parameters without one; without a number, that of the optimizer.",
            "weight_decay 0.1 except *.b",
        ),
        (
            Keyword,
            "as",
            "Names a call: the path of its parameters and values begins with it.",
            "dense(x, in, out) as head",
        ),
        (
            Keyword,
            "sharing",
            "A call has the parameters and states of an earlier one.",
            "critic(fake) sharing high",
        ),
        (
            Keyword,
            "group",
            "In `train`: another optimizer or weight decay for some parameters.",
            "group critic.* { optimizer adam(lr = 4e-4) }",
        ),
        (Keyword, "ema", "In `train`: moving averages of parameters, which evaluations read.", "ema 0.999"),
        (Keyword, "of", "In `train`: the parameters that a line is for.", "minimize d_loss of critic.*"),
        (Keyword, "every", "In `train`: in each so many steps.", "minimize g_loss of gen.* every 2"),
        (Keyword, "from", "In `train`: the first step of a turn.", "minimize g_loss of gen.* every 2 from 2"),
        (Keyword, "by", "A kernel dim slides along a dim.", "conv[rows by kh; in](x, w)"),
        (Keyword, "in", "Positions along a dim.", "input token[batch]: i32 in vocab"),
        (Keyword, "and", "True where both are.", "a < b and b < c"),
        (Keyword, "or", "True where one of both is.", "a < b or b < c"),
        (Keyword, "not", "True where the operand is false.", "not real"),
        (Keyword, "except", "Parameters that a setting leaves out.", "weight_decay except *.b"),
        (
            LayoutKeyword,
            "mesh",
            "The axes of the mesh with their sizes; `--mesh` replaces it. Without one there is one device.",
            "mesh data = 4, model = 2",
        ),
        (
            LayoutKeyword,
            "gather",
            "Permits to gather a dim that is split where an op needs it whole, which is error E0310 otherwise.",
            "gather key",
        ),
        (
            LayoutKeyword,
            "ring",
            "Permits what `gather` permits, but shards of keys and values go around the devices, and attention takes them one after the other: no device holds all of the dim. Whatever else needs it whole is error E0317, unless `gather` permits that too.",
            "ring key",
        ),
        (
            LayoutKeyword,
            "order",
            "`order seq zigzag ctx`: in training, positions lie on the devices along `ctx` so that each has a range from the front and the range as far from the end, and a causal mask leaves all of them as much to compute. What depends on neighbors along the dim is error E0318.",
            "order seq zigzag ctx",
        ),
        (
            LayoutKeyword,
            "zigzag",
            "Behind `order`: the order of positions, of which there is one.",
            "order seq zigzag ctx",
        ),
        (
            LayoutKeyword,
            "params",
            "Before `:`: how parameters are stored. They are gathered where they are used.",
            "params: * -> data",
        ),
        (
            LayoutKeyword,
            "grads",
            "Before `:`: the gradients of parameters, once they are reduced.",
            "grads: * -> data",
        ),
        (
            LayoutKeyword,
            "moments",
            "Before `:`: the state of the optimizer, and what the update computes.",
            "moments: * -> data",
        ),
        (
            LayoutKeyword,
            "when",
            "Makes a rule yield to others that use its axis: `when free`.",
            "seq -> model when free",
        ),
        (
            LayoutKeyword,
            "free",
            "A rule with `when free` splits a dim where no other rule uses the axis, and permits to gather it.",
            "seq -> model when free",
        ),
        (
            LayoutKeyword,
            "microbatches",
            "A training step takes its batch in so many parts, in the memory of one: gradients are summed before they are used.",
            "microbatches 8",
        ),
        (
            LayoutKeyword,
            "schedule",
            "The order in which microbatches pass the stages of a pipeline: `1f1b` (the default), `gpipe` or `zb_h1`.",
            "schedule 1f1b",
        ),
        (
            LayoutKeyword,
            "chunks",
            "Each device of a pipeline has so many stages, which are not next to each other: the pipeline waits for less time at its ends, and sends more.",
            "chunks 2",
        ),
        (
            LayoutKeyword,
            "stages",
            "The lengths of the stages of a pipeline, in the order of the loop: with `chunks`, of each device's first, then of each device's second.",
            "stages 5, 6, 6, 5",
        ),
        (
            LayoutKeyword,
            "recompute",
            "What these paths name is computed again for the backward pass, instead of kept for it.",
            "recompute b1.*",
        ),
        (
            LayoutKeyword,
            "keep",
            "Copies of parameters that rules for `params:` split are gathered once in a step and kept until its backward pass is done; with paths, those of these parameters.",
            "keep params layers.*",
        ),
        (
            LayoutKeyword,
            "reduce",
            "How gradients of parameters are reduced: `in bf16`, so that half the bytes move; of a batch in parts `once` or `by part`.",
            "reduce grads in bf16",
        ),
        (
            LayoutKeyword,
            "once",
            "Gradients that rules split are reduced once in a step, and not by each part of its batch: fewer bytes move, and each device holds whole sums.",
            "reduce grads once",
        ),
        (
            LayoutKeyword,
            "by",
            "Before `part`: each part of a batch reduces gradients that rules split, so that no device holds a whole sum of all parts.",
            "reduce grads by part",
        ),
        (
            LayoutKeyword,
            "in",
            "Before the dtype in which gradients are reduced, which is `bf16`.",
            "reduce grads in bf16",
        ),
    ]
};

/// Every page, by kind and name.
pub fn pages() -> Vec<WordPage> {
    let by_fan = BY_FAN.iter().map(|(name, fans)| (*name, fans.to_vec(), fans.len()));
    let initializers = INITIALIZERS.iter().map(|(name, args)| (*name, args.to_vec(), args.len()));
    let rates = LEARNING_RATES.iter().map(|(name, args, required)| (*name, args.to_vec(), *required));
    let calls: SortedMap<&str, String> = initializers
        .chain(by_fan)
        .chain(rates)
        .map(|(name, args, required)| {
            let args = args.iter().enumerate().map(|(i, a)| match i < required {
                true => a.to_string(),
                false => format!("{a} = 0"),
            });
            (name, format!("{name}({})", args.collect::<Vec<_>>().join(", ")))
        })
        .collect();
    let mut out: Vec<WordPage> = OPTIMIZERS
        .iter()
        .map(|o| WordPage {
            kind: WordKind::Optimizer,
            name: o.name,
            form: format!(
                "optimizer {}({})",
                o.name,
                o.settings.iter().map(written).collect::<Vec<_>>().join(", ")
            ),
            doc: o.doc,
            settings: o.settings.iter().map(described).collect(),
        })
        .collect();
    out.extend(DOCS.iter().map(|(kind, name, doc, form)| WordPage {
        kind: *kind,
        name,
        form: if form.is_empty() { calls.get(name).cloned().unwrap_or_default() } else { form.to_string() },
        doc,
        settings: Vec::new(),
    }));
    out.sort_by_key(|p| (p.kind, p.name));
    out
}

/// The pages of a word; without one of that name, those of the words of which it is a part, as `cosine` is of
/// `warmup_cosine`.
pub fn named(word: &str) -> Vec<WordPage> {
    let all = pages();
    let exact: Vec<WordPage> = all.iter().filter(|p| p.name == word).cloned().collect();
    if !exact.is_empty() {
        return exact;
    }
    let keyword = |p: &WordPage| matches!(p.kind, WordKind::Keyword | WordKind::LayoutKeyword);
    let part = |p: &WordPage| !keyword(p) && p.name.split('_').any(|part| part == word);
    all.into_iter().filter(part).collect()
}

/// `beta1 = 0.9`, or `lr` where it must be given.
fn written(s: &Setting) -> String {
    match default(s) {
        Some(default) => format!("{} = {default}", s.name),
        None => s.name.to_string(),
    }
}

fn default(s: &Setting) -> Option<String> {
    match s.accepts {
        Accepts::Scalar(_, default) | Accepts::ScalarOrOff(_, default) => default.map(number),
        Accepts::Flag(default) => Some(default.to_string()),
        Accepts::Count(default) => Some(default.to_string()),
    }
}

/// `0.9`, `1e-8`.
fn number(x: f64) -> String {
    if x != 0.0 && x.abs() < 1e-2 { format!("{x:e}") } else { format!("{x}") }
}

fn described(s: &Setting) -> String {
    let what = match s.accepts {
        Accepts::Scalar(range, _) => format!("a number, which {}, or an expression of `step`", range.text()),
        Accepts::ScalarOrOff(range, _) => format!("a number, which {}, or `false`", range.text()),
        Accepts::Flag(_) => "`true` or `false`".into(),
        Accepts::Count(_) => "a whole number".into(),
    };
    match default(s) {
        Some(default) => format!("`{}`: {what}; {default} unless it is given", s.name),
        None => format!("`{}`: {what}; required", s.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::SPECIAL;
    use meshwright_sorted::SortedSet;

    fn names(kind: WordKind) -> SortedSet<&'static str> {
        pages().into_iter().filter(|p| p.kind == kind).map(|p| p.name).collect()
    }

    #[test]
    fn every_word_of_the_tables_has_a_page_and_no_other() {
        assert_eq!(names(WordKind::Optimizer), OPTIMIZERS.iter().map(|o| o.name).collect());
        let initializers = INITIALIZERS.iter().map(|i| i.0).chain(BY_FAN.iter().map(|i| i.0));
        assert_eq!(names(WordKind::Initializer), initializers.collect());
        assert_eq!(names(WordKind::LearningRate), LEARNING_RATES.iter().map(|s| s.0).collect());
        // All others have the pages of their ops.
        let ops = |name: &&str| meshwright_ops::families().any(|f| f.name == *name);
        assert_eq!(names(WordKind::BuiltIn), SPECIAL.into_iter().filter(|s| !ops(s)).collect());
        // `size` is a keyword only before `NAME {`: its page is that of the function.
        assert_eq!(
            names(WordKind::Keyword),
            meshwright_syntax::keywords().filter(|k| *k != "size").collect()
        );
        assert_eq!(names(WordKind::LayoutKeyword), meshwright_syntax::layout_keywords().collect());
        for p in pages() {
            assert!(p.doc.ends_with('.') && p.form.contains(p.name), "{p:?}");
        }
    }

    #[test]
    fn words_are_found_whole_or_by_a_part() {
        let found = |word: &str| named(word).iter().map(|p| p.form.clone()).collect::<Vec<_>>();
        assert_eq!(found("cosine"), ["warmup_cosine(peak, warmup, total, floor = 0)"]);
        assert_eq!(found("he_normal"), ["he_normal(fan_in)"]);
        assert_eq!(found("lion"), ["optimizer lion(lr, beta1 = 0.9, beta2 = 0.99, weight_decay = 0)"]);
        assert_eq!(found("glorot").len(), 2);
        assert_eq!(found("nothing").len(), 0);
        let lr = &named("adam")[0].settings[0];
        assert_eq!(lr, "`lr`: a number, which must be 0 or more, or an expression of `step`; required");
        assert_eq!(
            named("adam")[0].settings[3],
            "`eps`: a number, which must be 0 or more, or an expression of `step`; 1e-8 unless it is given"
        );
    }
}
