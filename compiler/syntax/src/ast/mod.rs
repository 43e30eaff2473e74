//! The trees of both languages, with spans on everything.
//!
//! **Stable:** name resolution is written against this file; add to it, do not change what is there.
//!
//! The parser checks form only. That a statement stands where it may (no `input` in a layer, no `return` in a
//! model), that names exist, that dims are distinct: all of it is the resolver's business. No tree is deeper
//! than [`crate::MAX_DEPTH`], so recursion over it is safe.

mod layout;

pub use layout::*;
use meshwright_diag::Span;

/// A name where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub text: String,
    /// Its place.
    pub span: Span,
}

/// A pattern of parameter paths: words and `*` joined by dots, such as `layers.attention.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathGlob {
    /// The pattern as written.
    pub text: String,
    /// Its place.
    pub span: Span,
}

/// A whole model file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelFile {
    /// The `//!` comments at the top, without the marks, a line each.
    pub doc: String,
    /// Its items in order.
    pub items: Vec<Item>,
}

/// One item of a model file.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The `///` comments right above, without the marks, a line each.
    pub doc: String,
    /// Its kind.
    pub kind: ItemKind,
    /// From its keyword to its end.
    pub span: Span,
}

/// Kinds of items.
#[derive(Clone, Debug, PartialEq)]
pub enum ItemKind {
    /// `dim a = 1, b = a * 2`.
    Dims(Vec<Binding>),
    /// `const lr = 1e-3`.
    Consts(Vec<Binding>),
    /// `size base { layers = 12 }`: values of dims and consts under a name.
    Size(SizePreset),
    /// `use "layers.mw"`.
    Use(Use),
    /// `layer name(x, in, out) { … }`.
    Layer(Layer),
    /// `model name { … }`.
    Model(Model),
    /// `train name { … }`.
    Train(Train),
}

/// `name = value`, of a dim, a const or a size.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// The name declared or set.
    pub name: Name,
    /// Its value.
    pub value: Expr,
    /// From the name to the end of the value.
    pub span: Span,
}

/// `size base { layers = 12, heads = 12 }`.
#[derive(Clone, Debug, PartialEq)]
pub struct SizePreset {
    /// Its name.
    pub name: Name,
    /// The values that it sets.
    pub values: Vec<Binding>,
}

/// `use "layers.mw"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The path between the quotes, escapes resolved.
    pub path: String,
    /// The string with its quotes.
    pub path_span: Span,
}

/// `layer name(x, in, out, rate = 0.1) { … }`.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Its name.
    pub name: Name,
    /// Parameters: tensors, dim lists or numbers; the body decides which.
    pub params: Vec<LayerParam>,
    /// Its statements.
    pub body: Vec<Statement>,
}

/// One thing a layer takes.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerParam {
    /// Its name inside the layer.
    pub name: Name,
    /// Its value where the call gives none.
    pub default: Option<Expr>,
}

/// `model name { … }`.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Its name.
    pub name: Name,
    /// Its statements.
    pub body: Vec<Statement>,
}

/// `train name { … }`.
#[derive(Clone, Debug, PartialEq)]
pub struct Train {
    /// The model it trains.
    pub model: Name,
    /// Its lines, in order; the resolver checks that each is there at most once.
    pub settings: Vec<TrainSetting>,
}

/// One line of a train block.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainSetting {
    /// Its kind.
    pub kind: TrainKind,
    /// From its keyword to its end.
    pub span: Span,
}

/// Kinds of lines of a train block.
#[derive(Clone, Debug, PartialEq)]
pub enum TrainKind {
    /// `minimize mlm`, `minimize g_loss of gen.* every 2 from 1`.
    Minimize(Minimize),
    /// `optimizer adam(lr = 1e-3)`; a bare name is a call without arguments. Learning-rate schedules are
    /// expressions.
    Optimizer(Call),
    /// `clip global_norm = 1.0` or `clip global_norm(1.0)`: the same call with one positional argument.
    Clip(Call),
    /// `precision bf16`, `precision f16(growth = 1000)`.
    Precision(Call),
    /// `freeze embed.*, layers.norm1.*`.
    Freeze(Vec<PathGlob>),
    /// `weight_decay 0.01 except *.b, norm.*`; without a number it keeps the optimizer's.
    WeightDecay {
        /// The factor.
        value: Option<Expr>,
        /// The parameters that do not decay.
        except: Vec<PathGlob>,
    },
    /// `group critic.* { optimizer adam(lr = 4e-4) }`.
    Group(ParamGroup),
    /// `ema 0.999 of gen.*`; without paths, of all that is trained.
    Ema {
        /// The share of the old average.
        decay: Expr,
        /// The parameters that are averaged.
        of: Vec<PathGlob>,
    },
}

/// `minimize g_loss of gen.* every 2 from 1`.
#[derive(Clone, Debug, PartialEq)]
pub struct Minimize {
    /// The loss.
    pub loss: Name,
    /// The parameters that it is minimized for; all others where empty.
    pub of: Vec<PathGlob>,
    /// `every 2`: in which steps.
    pub every: Option<Expr>,
    /// `from 1`: the first of these steps.
    pub from: Option<Expr>,
}

/// `group critic.* { optimizer adam(lr = 4e-4) }`: what differs for some parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamGroup {
    /// Their paths.
    pub of: Vec<PathGlob>,
    /// Its lines, in order.
    pub settings: Vec<TrainSetting>,
}

/// One statement of a layer, a model or a `repeat`.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// Its kind.
    pub kind: StatementKind,
    /// From its first to its last token.
    pub span: Span,
}

/// Kinds of statements.
#[derive(Clone, Debug, PartialEq)]
pub enum StatementKind {
    /// `let x = …`, or `let a, b = f(x)` where the layer says `return a, b`.
    Let {
        /// The declared names, at least one.
        names: Vec<Name>,
        /// The value.
        value: Expr,
    },
    /// `x = …` inside `repeat`: the value that the next round starts with.
    Assign {
        /// The carried names, at least one.
        names: Vec<Name>,
        /// The value.
        value: Expr,
    },
    /// `param w[in, out] = normal(0, 1)`.
    Param(Variable),
    /// `state average[d] = 0`: kept between steps, not trained.
    State(Variable),
    /// `input image[batch, rows]: u8`, `input label[batch]: i32 in classes`.
    Input(Input),
    /// `loss xent = …`.
    Loss(Binding),
    /// `metric max accuracy = …`.
    Metric(Metric),
    /// `output probabilities = …`.
    Output(Binding),
    /// `repeat layers as i { … }`, `scan seq { … }`.
    Repeat(Repeat),
    /// `return a, b`; at least one.
    Return(Vec<Expr>),
}

/// A `metric`.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Which of its values are better, where it says so.
    pub better: Option<Better>,
    /// Its name and value.
    pub binding: Binding,
}

/// Which values of a metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// `min`
    Less,
    /// `max`
    More,
}

impl Better {
    /// The word before a name.
    pub fn word(self) -> &'static str {
        match self {
            Better::Less => "min",
            Better::More => "max",
        }
    }

    /// The direction that a word before a name stands for.
    pub fn of(word: &str) -> Option<Better> {
        [Better::Less, Better::More].into_iter().find(|b| b.word() == word)
    }
}

/// A `param` or `state`.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Its name.
    pub name: Name,
    /// Its dims in declared order; each may be a layer's parameter that stands for a list. Empty for a scalar.
    pub dims: Vec<Name>,
    /// `: f32`, where it pins one.
    pub dtype: Option<Name>,
    /// The initial value.
    pub init: Expr,
}

/// An `input`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The name that data is bound to.
    pub name: Name,
    /// Its dims in declared order.
    pub dims: Vec<Name>,
    /// Its type: `u8`, `i32`, `bool`, `float`, …
    pub dtype: Name,
    /// `in vocab`: values are positions along this dim.
    pub range: Option<Name>,
}

/// `repeat layers as i { … }` or `scan seq { … }`.
#[derive(Clone, Debug, PartialEq)]
pub struct Repeat {
    /// True for a `scan`: all iterations share its parameters, and values that it declares with `let` are collected along the
    /// dim.
    pub scan: bool,
    /// The dim whose size is the count.
    pub dim: Name,
    /// The name of the index, if any.
    pub index: Option<Name>,
    /// The body.
    pub body: Vec<Statement>,
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    /// Its kind.
    pub kind: ExprKind,
    /// Its place, with the parentheses around it if there are any.
    pub span: Span,
}

/// Kinds of expressions.
#[derive(Clone, Debug, PartialEq)]
pub enum ExprKind {
    /// `28`, `10_000`.
    Int(u64),
    /// `0.1`, `1e-9`; finite.
    Float(f64),
    /// `true`, `false`.
    Bool(bool),
    /// `"text"`, escapes resolved.
    Str(String),
    /// A dim, const, tensor or word such as `same` or `float`.
    Name(String),
    /// `-x`, `not x` (also written `!x`).
    Unary {
        /// Which.
        op: UnaryOp,
        /// Its operand.
        operand: Box<Expr>,
    },
    /// `a + b`. A comparison does not chain: `a < b < c` is a syntax error.
    Binary {
        /// Which.
        op: BinaryOp,
        /// The place of the sign.
        op_span: Span,
        /// Left operand.
        lhs: Box<Expr>,
        /// Right operand.
        rhs: Box<Expr>,
    },
    /// `name(args) as label`: a layer or an element-wise function.
    Call(Call),
    /// `name[dims](args)`: a built-in op over dims.
    DimOp(DimOp),
    /// `x[seq -> key]`, `t[vocab = token]`: moves dims of `base`.
    Index {
        /// The indexed value.
        base: Box<Expr>,
        /// The changes of its dims, at least one.
        items: Vec<DimItem>,
    },
    /// `[rows, cols]` as an argument; may be empty. Elements may be layer parameters that stand for lists.
    DimList(Vec<Name>),
}

/// A sign before one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnaryOp {
    /// `-`
    Neg,
    /// `not`, `!`
    Not,
}

/// A sign between two operands, from the loosest to the tightest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryOp {
    /// `or`
    Or,
    /// `and`
    And,
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`, real division.
    Div,
    /// `//`, integer division.
    IntDiv,
    /// `%`
    Rem,
    /// `**`; binds tighter than a sign before it and groups to the right.
    Pow,
}

impl UnaryOp {
    /// As it is written.
    pub fn symbol(self) -> &'static str {
        match self {
            UnaryOp::Neg => "-",
            UnaryOp::Not => "not",
        }
    }
}

impl BinaryOp {
    /// As it is written.
    pub fn symbol(self) -> &'static str {
        match self {
            BinaryOp::Or => "or",
            BinaryOp::And => "and",
            BinaryOp::Eq => "==",
            BinaryOp::Ne => "!=",
            BinaryOp::Lt => "<",
            BinaryOp::Le => "<=",
            BinaryOp::Gt => ">",
            BinaryOp::Ge => ">=",
            BinaryOp::Add => "+",
            BinaryOp::Sub => "-",
            BinaryOp::Mul => "*",
            BinaryOp::Div => "/",
            BinaryOp::IntDiv => "//",
            BinaryOp::Rem => "%",
            BinaryOp::Pow => "**",
        }
    }
}

/// `as left` or `sharing left` behind a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallLabel {
    /// True if the call uses the parameters of an earlier one, and has none of its own.
    pub shares: bool,
    /// The element of the parameters' path: that of this call, or of the earlier one.
    pub name: Name,
    /// With the word before it.
    pub span: Span,
}

/// `name(args) as label`, `name(args) sharing label`.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The layer or function.
    pub name: Name,
    /// Its arguments in order, positional and named mixed as written.
    pub args: Vec<Arg>,
    /// Which parameters it uses, where the call says so.
    pub label: Option<CallLabel>,
}

/// An argument, `x` or `padding = same`.
#[derive(Clone, Debug, PartialEq)]
pub struct Arg {
    /// The name before `=`.
    pub name: Option<Name>,
    /// The value.
    pub value: Expr,
    /// `in d` behind it: `cast(i, i32 in d)`.
    pub within: Option<Name>,
}

/// `name[group; group](args)`.
#[derive(Clone, Debug, PartialEq)]
pub struct DimOp {
    /// The op.
    pub name: Name,
    /// The content of the brackets, cut at `;`: `conv[rows by kh, cols by kw; in]` has two groups. At least one
    /// group; only a lone one may be empty (`size[]` does not mean more than `size`).
    pub groups: Vec<Vec<DimItem>>,
    /// Its arguments.
    pub args: Vec<Arg>,
}

/// One piece of a bracket: `dims [= at] [-> to] [by window]`.
///
/// | written | dims | at | to | window |
/// |---|---|---|---|---|
/// | `seq` | seq | | | |
/// | `seq -> key` | seq | | key | |
/// | `d_model -> heads * d_head` | d_model | | heads, d_head | |
/// | `heads * d_head -> d_model` | heads, d_head | | d_model | |
/// | `vocab = token`, and an op's option `by = 1` | vocab | Value(token) | | |
/// | `seq = 0..64 -> head` | seq | Range(0, 64) | head | |
/// | `rows by kh` | rows | | | kh |
/// | `rows -> r2 by kh` | rows | | r2 | kh |
#[derive(Clone, Debug, PartialEq)]
pub struct DimItem {
    /// The dims before the arrow, at least one; more than one where joined by `*`.
    pub dims: Vec<Name>,
    /// The position after `=`.
    pub at: Option<At>,
    /// The dims behind `->`; empty where there is no arrow, more than one where joined by `*`.
    pub to: Vec<Name>,
    /// The dim behind `by`: the window that slides.
    pub window: Option<Name>,
    /// The whole piece.
    pub span: Span,
}

/// A position after `=` in a bracket.
#[derive(Clone, Debug, PartialEq)]
pub enum At {
    /// A position, a tensor of positions, or the value of an option.
    Value(Expr),
    /// `low..high`, the high end not included.
    Range(Expr, Expr),
}
