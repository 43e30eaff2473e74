//! Items, statements and the lines of train blocks.

use super::doc::{Group, Op};
use super::expr::{args, dims, equals, expr};
use super::runs::{RowKind, RowPart, Runs};
use super::writer::Writer;
use crate::ast::{
    Better, Binding, Call, Item, ItemKind, Layer, Metric, Minimize, ModelFile, Name, ParamGroup, PathGlob,
    Repeat, SizePreset, Statement, StatementKind, TrainKind, TrainSetting, Variable,
};
use crate::scan::Scan;

/// The file in the one style. `None` where tree and tokens disagree.
pub(super) fn print(file: &ModelFile, text: &str, scan: &Scan) -> Option<String> {
    let mut w = Writer::new(text, scan);
    let ModelFile { doc: _, items } = file;
    for (i, item) in items.iter().enumerate() {
        w.line(i == 0);
        super::model::item(&mut w, item);
    }
    w.last_line(items.is_empty());
    w.finish()
}

/// A keyword, and lines further right for what follows it.
fn keyword(w: &mut Writer<'_>) {
    w.take();
    w.push(Op::Indent);
    w.blank();
}

fn item(w: &mut Writer<'_>, item: &Item) {
    let Item { doc: _, kind, span: _ } = item;
    keyword(w);
    match kind {
        ItemKind::Dims(bindings) | ItemKind::Consts(bindings) => {
            w.list(bindings.len(), |w, i| binding(w, &bindings[i]));
            w.push(Op::End);
        }
        ItemKind::Use(_) => {
            w.take();
            w.push(Op::End);
        }
        ItemKind::Size(preset) => size(w, preset),
        ItemKind::Layer(layer) => {
            let Layer { name: _, params, body } = layer;
            w.take();
            w.word("(");
            w.list(params.len(), |w, i| {
                w.take();
                if let Some(default) = &params[i].default {
                    equals(w);
                    expr(w, default);
                }
            });
            w.word(")");
            super::model::body(w, body);
        }
        ItemKind::Model(model) => {
            w.take();
            body(w, &model.body);
        }
        ItemKind::Train(train) => {
            w.take();
            block(w, train.settings.len(), |w, i, _| setting(w, &train.settings[i]));
        }
    }
}

fn binding(w: &mut Writer<'_>, binding: &Binding) {
    w.take();
    equals(w);
    expr(w, &binding.value);
}

/// `{ … }` behind a head whose `Indent` it ends: `count` lines, each written by `line`, which is told whether the line
/// stands apart from the one before.
fn block(w: &mut Writer<'_>, count: usize, mut line: impl FnMut(&mut Writer<'_>, usize, bool)) {
    w.push(Op::End);
    w.blank();
    w.word("{");
    if count == 0 && w.peek() == "}" && !w.commented(0) {
        return w.word("}");
    }
    w.push(Op::Indent);
    for i in 0..count {
        let apart = w.line(i == 0);
        line(w, i, apart);
    }
    // Comments before the `}` belong to what is in the block.
    w.last_line(count == 0);
    w.push(Op::End);
    w.word("}");
}

/// `size base { layers = 12, heads = 12 }`, on one line if it fits and holds no comment.
fn size(w: &mut Writer<'_>, preset: &SizePreset) {
    let SizePreset { name: _, values } = preset;
    w.take();
    let entry = |w: &mut Writer<'_>, i: usize| {
        binding(w, &values[i]);
        if i + 1 < values.len() && w.peek() != "," {
            w.insert(",");
        } else if w.peek() == "," && (i + 1 < values.len() || w.commented(1)) {
            w.word(",");
        } else if w.peek() == "," {
            w.skip();
        }
    };
    if values.is_empty() || w.commented_until("}") {
        return block(w, values.len(), |w, i, _| entry(w, i));
    }
    w.push(Op::End);
    w.blank();
    w.push(Op::Open(Group::Chain));
    w.word("{");
    w.push(Op::Indent);
    for i in 0..values.len() {
        w.push(Op::Break);
        entry(w, i);
    }
    w.push(Op::End);
    w.push(Op::Break);
    w.word("}");
    w.push(Op::Close);
}

fn body(w: &mut Writer<'_>, statements: &[Statement]) {
    let mut runs = Runs::default();
    block(w, statements.len(), |w, i, apart| {
        if apart {
            runs.separate();
        }
        statement(w, &statements[i], &mut runs);
    });
    runs.align(&mut w.pads);
}

fn statement(w: &mut Writer<'_>, statement: &Statement, runs: &mut Runs) {
    let Statement { kind, span: _ } = statement;
    let mark = w.mark();
    match kind {
        StatementKind::Let { names, value } => {
            keyword(w);
            named(w, mark, names, runs, RowKind::Let);
            expr(w, value);
        }
        StatementKind::Assign { names, value } => {
            named(w, mark, names, runs, RowKind::Assign);
            expr(w, value);
        }
        StatementKind::Param(variable) => super::model::variable(w, mark, variable, runs, RowKind::Param),
        StatementKind::State(variable) => super::model::variable(w, mark, variable, runs, RowKind::State),
        StatementKind::Input(input) => {
            keyword(w);
            w.take();
            let name = w.part(mark);
            runs.row(RowKind::Input, &[name]);
            if w.peek() == "[" {
                dims(w, &input.dims);
            }
            w.word(":");
            w.blank();
            w.take();
            if input.range.is_some() {
                w.blank();
                w.word("in");
                w.blank();
                w.take();
            }
        }
        StatementKind::Loss(binding) | StatementKind::Output(binding) => result(w, mark, None, binding, runs),
        StatementKind::Metric(Metric { better, binding }) => result(w, mark, *better, binding, runs),
        StatementKind::Repeat(repeat) => {
            let Repeat { scan: _, dim: _, index, body } = repeat;
            runs.separate();
            keyword(w);
            w.take();
            if index.is_some() {
                w.blank();
                w.word("as");
                w.blank();
                w.take();
            }
            // The block ends the indent.
            return super::model::body(w, body);
        }
        StatementKind::Return(values) => {
            runs.separate();
            keyword(w);
            w.list(values.len(), |w, i| expr(w, &values[i]));
        }
    }
    w.push(Op::End);
}

/// `loss l = …`, `metric max accuracy = …`.
fn result(w: &mut Writer<'_>, mark: usize, better: Option<Better>, binding: &Binding, runs: &mut Runs) {
    w.take();
    w.push(Op::Indent);
    let what = w.part(mark);
    w.blank();
    let mark = w.mark();
    if better.is_some() {
        w.take();
        w.blank();
    }
    w.take();
    let name = w.part(mark);
    runs.row(RowKind::Result, &[what, name]);
    equals(w);
    expr(w, &binding.value);
}

/// `a, b = ` behind a keyword or none.
fn named(w: &mut Writer<'_>, mark: usize, names: &[Name], runs: &mut Runs, kind: RowKind) {
    for i in 0..names.len() {
        if i > 0 {
            w.word(",");
            w.blank();
        }
        w.take();
        if i == 0 && kind == RowKind::Assign {
            w.push(Op::Indent);
        }
    }
    let part = w.part(mark);
    runs.row(kind, &[part]);
    equals(w);
}

/// `param w[in, out]: f32 = value`.
fn variable(w: &mut Writer<'_>, mark: usize, variable: &Variable, runs: &mut Runs, kind: RowKind) {
    let Variable { name: _, dims: names, dtype, init } = variable;
    keyword(w);
    w.take();
    let name: RowPart = w.part(mark);
    let mark = w.mark();
    if w.peek() == "[" {
        dims(w, names);
    }
    if dtype.is_some() {
        w.word(":");
        w.blank();
        w.take();
    }
    let ty = w.part(mark);
    runs.row(kind, &[name, ty]);
    equals(w);
    expr(w, init);
}

fn setting(w: &mut Writer<'_>, setting: &TrainSetting) {
    let TrainSetting { kind, span: _ } = setting;
    keyword(w);
    match kind {
        TrainKind::Minimize(minimize) => {
            let Minimize { loss: _, of, every, from } = minimize;
            w.take();
            if !of.is_empty() {
                phrase(w, "of");
                super::model::globs(w, of);
            }
            for (word, value) in [("every", every), ("from", from)] {
                if let Some(value) = value {
                    phrase(w, word);
                    expr(w, value);
                }
            }
        }
        TrainKind::Group(group) => {
            let ParamGroup { of, settings } = group;
            super::model::globs(w, of);
            // The block ends the indent.
            block(w, settings.len(), |w, i, _| super::model::setting(w, &settings[i]));
            return separators(w);
        }
        TrainKind::Ema { decay, of } => {
            expr(w, decay);
            if !of.is_empty() {
                phrase(w, "of");
                super::model::globs(w, of);
            }
        }
        TrainKind::Optimizer(call) | TrainKind::Clip(call) | TrainKind::Precision(call) => {
            super::model::call(w, call)
        }
        TrainKind::Freeze(globs) => super::model::globs(w, globs),
        TrainKind::WeightDecay { value, except } => {
            if let Some(value) = value {
                expr(w, value);
                w.blank();
            }
            if !except.is_empty() {
                w.word("except");
                w.blank();
                super::model::globs(w, except);
            }
        }
    }
    w.push(Op::End);
    separators(w);
}

/// ` of ` before more of a setting.
fn phrase(w: &mut Writer<'_>, word: &str) {
    w.blank();
    w.word(word);
    w.blank();
}

/// Leaves out the `;` behind a setting: each has a line of its own.
fn separators(w: &mut Writer<'_>) {
    while w.peek() == ";" {
        w.skip();
    }
}

/// `adam(lr = 1e-3)`, `adam`, `global_norm = 1.0`.
fn call(w: &mut Writer<'_>, call: &Call) {
    w.take();
    match (w.peek(), call.args.first()) {
        ("(", _) => args(w, &call.args),
        ("=", Some(arg)) => {
            equals(w);
            expr(w, &arg.value);
        }
        _ => {}
    }
}

/// `embed.*, layers.norm1.*`; each is one word to the reader, several to the scanner.
fn globs(w: &mut Writer<'_>, globs: &[PathGlob]) {
    w.list(globs.len(), |w, i| w.take_until(globs[i].span.end as usize));
}
