//! Signatures: what a call of a family may hold, as data. One binder checks calls against them; messages and the reference
//! page are written from them too.

use crate::call::{OpCall, Piece, Setting, Value};
use crate::{Graph, OpError, Spot, Type};
use meshwright_diag::codes;
use std::fmt::{self, Display};

/// The syntax of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `name(x, y)`, or `name[dims](x, y)` where the signature has groups.
    Named,
    /// `x + y` or `-x`.
    Symbol,
    /// By other means: a rename, an index, or only inside of gradients. Such calls are not checked against a signature.
    Syntax,
}

/// Operands, brackets and options that a call of a family may have.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// Its syntax.
    pub form: Form,
    /// The operands, in order.
    pub operands: &'static [Argument],
    /// Groups of the brackets, between the `;`.
    pub groups: &'static [DimGroup],
    /// Options that are set by name.
    pub options: &'static [Choice],
}

/// An operand.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// Its name in messages and in the reference.
    pub name: &'static str,
    /// The number of times it may be given.
    pub given: Given,
}

/// The number of times an operand may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// Once.
    Once,
    /// Once or not at all.
    Optional,
    /// Once or more; such an operand is the last.
    Repeated,
}

/// A group of dims in brackets, up to a `;` or the end.
#[derive(Clone, Copy, Debug)]
pub struct DimGroup {
    /// An example of it.
    pub text: &'static str,
    /// Fewest pieces.
    pub least: usize,
    /// Most pieces.
    pub most: usize,
    /// Which of its pieces have an arrow, `d -> k`.
    pub arrow: Arrow,
    /// True if its pieces are windows, `rows by kh`.
    pub window: bool,
    /// The relation of its dims to the first operand.
    pub of: Of,
}

/// Which pieces of a group have an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrow {
    /// None.
    Never,
    /// Any.
    May,
    /// All.
    Must,
    /// The last, which stands for all.
    Last,
}

/// The relation of the dims of a group to the first operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// It has them, and lacks those behind the arrow.
    Operand,
    /// Nothing that could be said here.
    Other,
}

/// An option that is set by name, as in `stride = 2`.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Its name.
    pub name: &'static str,
    /// The words that it may be set to.
    pub words: &'static [&'static str],
    /// The numbers or truth values that it may be set to.
    pub values: Values,
    /// Its value if it is not set.
    pub default: Unset,
    /// Its effect, for the reference and for messages.
    pub doc: &'static str,
}

/// The numbers or truth values that an option may be set to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// `true` or `false`.
    Flag,
    /// Any number.
    Number,
    /// Whole numbers of a range, both ends included.
    Whole(f64, f64),
}

/// The value of an option that is not set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unset {
    /// It must be set.
    Needed,
    /// This.
    Is(Setting),
    /// Something that the rest of the call decides, in words.
    By(&'static str),
}

/// One dim of the operand: `softmax[d](x)`.
pub const DIM: DimGroup =
    DimGroup { text: "d", least: 1, most: 1, arrow: Arrow::Never, window: false, of: Of::Operand };

/// One dim or more of the operand: `sum[d, e](x)`.
pub const DIMS: DimGroup = DimGroup { text: "d, e", most: usize::MAX, ..DIM };

/// A dim of the operand that becomes another: `top_k[d -> k](x)`.
pub const BECOMES: DimGroup = DimGroup { text: "d -> k", arrow: Arrow::Must, ..DIM };

const X: Argument = Argument::once("x");
const Y: Argument = Argument::once("y");

impl Argument {
    /// An operand that must be given.
    pub const fn once(name: &'static str) -> Argument {
        Argument { name, given: Given::Once }
    }

    /// An operand that may be left out.
    pub const fn optional(name: &'static str) -> Argument {
        Argument { name, given: Given::Optional }
    }
}

impl Signature {
    /// Written by other means.
    pub const SYNTAX: Signature = Signature { form: Form::Syntax, operands: &[], groups: &[], options: &[] };
    /// `-x`.
    pub const PREFIX: Signature = Signature { form: Form::Symbol, operands: &[X], ..Self::SYNTAX };
    /// `x + y`.
    pub const INFIX: Signature = Signature { form: Form::Symbol, operands: &[X, Y], ..Self::SYNTAX };
    /// `name(x)`.
    pub const UNARY: Signature = Signature::named(&[X]);
    /// `name(x, y)`.
    pub const BINARY: Signature = Signature::named(&[X, Y]);

    /// `name(…)` of some operands.
    pub const fn named(operands: &'static [Argument]) -> Signature {
        Signature { form: Form::Named, operands, groups: &[], options: &[] }
    }

    /// `name[…](x)`.
    pub const fn over(groups: &'static [DimGroup]) -> Signature {
        Signature { groups, ..Self::UNARY }
    }

    /// The fewest and the most operands.
    pub fn arity(&self) -> (usize, usize) {
        let least = self.operands.iter().filter(|a| a.given != Given::Optional).count();
        let repeated = self.operands.iter().any(|a| a.given == Given::Repeated);
        (least, if repeated { usize::MAX } else { self.operands.len() })
    }

    /// True if that many operands may be given.
    pub fn takes(&self, operands: usize) -> bool {
        let (least, most) = self.arity();
        (least..=most).contains(&operands)
    }

    /// True if it folds any number of dims away; with none it is its operand.
    pub fn folds(&self) -> bool {
        matches!(self.groups, [g] if g.is_plain() && g.most > 1)
    }

    /// The text of a call of `name`: with everything that it may have, or without optional parts.
    pub fn text(&self, name: &str, all: bool) -> String {
        let given = |a: &&Argument| all || a.given != Given::Optional;
        let mut inside: Vec<String> =
            self.operands.iter().filter(given).map(|a| a.name.to_string()).collect();
        if self.operands.iter().any(|a| a.given == Given::Repeated) {
            inside.push("…".into());
        }
        match (self.form, inside.as_slice()) {
            (Form::Syntax, _) => return name.into(),
            (Form::Symbol, [x]) if name.ends_with(char::is_alphabetic) => return format!("{name} {x}"),
            (Form::Symbol, [x]) => return format!("{name}{x}"),
            (Form::Symbol, _) => return inside.join(&format!(" {name} ")),
            (Form::Named, _) => {}
        }
        let set = |c: &&Choice| all || c.default == Unset::Needed;
        inside.extend(self.options.iter().filter(set).map(|c| format!("{} = {}", c.name, c.default)));
        let groups: Vec<&str> = self.groups.iter().filter(|g| all || g.least > 0).map(|g| g.text).collect();
        let groups = if groups.is_empty() { String::new() } else { format!("[{}]", groups.join("; ")) };
        format!("{name}{groups}({})", inside.join(", "))
    }

    /// Checks a call against it and fills in what is not set.
    ///
    /// # Errors
    /// If the call does not fit; the error has the place.
    pub(crate) fn bind(&self, g: &Graph, c: &mut OpCall) -> Result<(), OpError> {
        let x = match c.args.first() {
            Some(Value::Tensor(id)) => g.ty(*id).clone(),
            _ => Type::new(c.float, []),
        };
        self.bind_over(g, c, &x)
    }

    /// The same of a first operand of that type, which need not exist.
    ///
    /// # Errors
    /// As `bind`.
    pub fn bind_over(&self, g: &Graph, c: &mut OpCall, x: &Type) -> Result<(), OpError> {
        if !self.takes(c.args.len()) {
            let text =
                format!("`{}` is written `{}`: {} operands", c.name, self.text(c.name, true), c.args.len());
            return Err(OpError::new(codes::E0212, text));
        }
        if c.groups.len() > self.groups.len() {
            let only = if self.groups.len() > 1 { "no further `;`" } else { "one list of dims, without `;`" };
            return Err(OpError::new(codes::E0203, format!("`{}[…]` takes {only}", c.name))
                .at(Spot::Piece(self.groups.len(), 0))
                .help("separate dims by commas"));
        }
        for (k, group) in self.groups.iter().enumerate() {
            group.check(g, c, k, x).map_err(|e| {
                let help = format!("it is written `{}`", self.text(c.name, true));
                if e.help.is_some() { e } else { e.help(help) }
            })?;
        }
        let set = self.options.iter().filter_map(|o| o.bind(c).transpose()).collect::<Result<Vec<_>, _>>()?;
        c.options = set;
        Ok(())
    }
}

impl DimGroup {
    /// True if its pieces are dims alone.
    pub fn is_plain(&self) -> bool {
        self.arrow == Arrow::Never && !self.window
    }

    /// Checks the group of number `k` of a call.
    fn check(&self, g: &Graph, c: &OpCall, k: usize, x: &Type) -> Result<(), OpError> {
        let pieces = c.groups.get(k).map_or(&[][..], Vec::as_slice);
        self.count(g, c, pieces, x)?;
        for (i, p) in pieces.iter().enumerate() {
            let last = i + 1 == pieces.len();
            self.piece(g, c, p, last).map_err(|e| e.at(Spot::Piece(k, i)))?;
        }
        if self.of == Of::Other {
            return Ok(());
        }
        let mut seen = Vec::new();
        for d in pieces.iter().flat_map(|p| &p.dims) {
            let (name, has) = (g.dims.name(*d), g.dims.list(&x.dims));
            if seen.contains(d) {
                return Err(OpError::new(codes::E0203, format!("`{}[…]` names `{name}` twice", c.name)));
            }
            seen.push(*d);
            if !x.has(*d) {
                let help = match x.dims.is_empty() {
                    true => format!("leave `{name}` out: a single number has no dims to name"),
                    false => format!("leave `{name}` out, or name one of {has}"),
                };
                return Err(OpError::no_dim(format!("`{}[{name}]`", c.name), *d, (0, x), &g.dims).help(help));
            }
        }
        let taken = |p: &Piece| p.to.iter().copied().find(|t| !p.dims.contains(t) && x.has(*t));
        if let Some(t) = pieces.iter().find_map(taken) {
            let (name, has) = (g.dims.name(t), g.dims.list(&x.dims));
            let text =
                format!("`{}[… -> {name}]` of a value that has the dim `{name}` already: {has}", c.name);
            return Err(OpError::new(codes::E0203, text)
                .operand(0)
                .help("name another dim behind the arrow"));
        }
        Ok(())
    }

    fn count(&self, g: &Graph, c: &OpCall, pieces: &[Piece], x: &Type) -> Result<(), OpError> {
        let n: usize = if self.is_plain() { pieces.iter().map(|p| p.dims.len()).sum() } else { pieces.len() };
        let what = if self.window { "window" } else { "dim" };
        if n == 0 && self.least > 0 {
            let e = OpError::new(codes::E0203, format!("`{}[…]` needs a {what}", c.name));
            let plain = self.is_plain() && self.of == Of::Operand;
            return Err(if plain {
                e.help(format!("name one or more of {}", g.dims.list(&x.dims)))
            } else {
                e
            });
        }
        if (self.least..=self.most).contains(&n) {
            return Ok(());
        }
        let takes = if self.least == self.most {
            "one".to_string()
        } else {
            format!("{} to {}", self.least, self.most)
        };
        let plural = if self.most == 1 { "" } else { "s" };
        Err(OpError::new(codes::E0203, format!("`{}[…]` takes {takes} {what}{plural}, not {n}", c.name)))
    }

    fn piece(&self, g: &Graph, c: &OpCall, p: &Piece, last: bool) -> Result<(), OpError> {
        let name = c.name;
        let wrong = |text: String| Err(OpError::new(codes::E0203, text));
        if self.is_plain() && !(p.to.is_empty() && p.by.is_none()) {
            return Err(OpError::new(codes::E0203, format!("`{name}[…]` takes dims and nothing else"))
                .help("rename, index or slice the operand instead: `x[seq -> key]`"));
        }
        if !self.is_plain() && (p.dims.len() != 1 || p.to.len() > 1) {
            let list = g.dims.list(if p.dims.len() == 1 { &p.to } else { &p.dims });
            return wrong(format!("`{name}[…]` takes one dim here, not {list}"));
        }
        let must = self.arrow == Arrow::Must || self.arrow == Arrow::Last && last;
        let never = self.arrow == Arrow::Never || self.arrow == Arrow::Last && !last;
        match (&p.to[..], p.by) {
            ([], _) if must => {
                wrong(format!("`{name}[…]` does not say what `{}` becomes", g.dims.list(&p.dims)))
            }
            ([to, ..], _) if never => wrong(format!("`-> {}` stands where no arrow can", g.dims.name(*to))),
            (_, None) if self.window => {
                let from = g.dims.list(&p.dims);
                wrong(format!("`{name}[…]` does not say what slides along {from}"))
            }
            (_, Some(by)) if !self.window => {
                wrong(format!("`by {}` stands where no window can", g.dims.name(by)))
            }
            _ => Ok(()),
        }
    }
}

impl Choice {
    /// One that is false unless it is set.
    pub const fn flag(name: &'static str, doc: &'static str) -> Choice {
        Choice { name, words: &[], values: Values::Flag, default: Unset::Is(Setting::Bool(false)), doc }
    }

    /// A whole number of a range, with a default.
    pub const fn whole(
        name: &'static str,
        (low, high): (f64, f64),
        default: f64,
        doc: &'static str,
    ) -> Choice {
        let default = Unset::Is(Setting::Number(default));
        Choice { name, words: &[], values: Values::Whole(low, high), default, doc }
    }

    /// Its value in a call; `None` where the rest of the call decides it.
    fn bind(&self, c: &OpCall) -> Result<Option<(&'static str, Setting)>, OpError> {
        let error =
            |text: String| OpError::new(codes::E0212, text).at(Spot::Option(self.name)).help(self.help());
        match (c.options.iter().find(|o| o.0 == self.name), self.default) {
            (Some((_, s)), _) if self.fits(*s) => Ok(Some((self.name, *s))),
            (Some((_, s)), _) => Err(error(format!("`{} = {s}` of `{}`: it is {self}", self.name, c.name))),
            (None, Unset::Is(s)) => Ok(Some((self.name, s))),
            (None, Unset::By(_)) => Ok(None),
            (None, Unset::Needed) => Err(error(format!("`{}` needs `{} = …`", c.name, self.name))),
        }
    }

    /// Its meaning, as a line of help.
    pub fn help(&self) -> String {
        format!("`{}`: {}", self.name, self.doc)
    }

    fn fits(&self, s: Setting) -> bool {
        match (s, self.values) {
            (Setting::Word(w), _) => self.words.contains(&w),
            (Setting::Bool(_), Values::Flag | Values::Number) | (Setting::Number(_), Values::Number) => true,
            (Setting::Number(v), Values::Whole(low, high)) => v.fract() == 0.0 && (low..=high).contains(&v),
            _ => false,
        }
    }
}

/// The values that it accepts.
impl Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for w in self.words {
            write!(f, "`{w}` or ")?;
        }
        match self.values {
            Values::Flag => f.write_str("`true` or `false`"),
            Values::Number => f.write_str("a number"),
            Values::Whole(low, high) if low < 0.0 => write!(f, "a whole number of at most {high} either way"),
            Values::Whole(low, high) => write!(f, "a whole number from {low} to {high}"),
        }
    }
}

impl Display for Unset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unset::Needed => f.write_str("…"),
            Unset::Is(s) => s.fmt(f),
            Unset::By(_) => f.write_str("…"),
        }
    }
}

impl Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Number(v) => v.fmt(f),
            Setting::Bool(b) => b.fmt(f),
            Setting::Word(w) => f.write_str(w),
        }
    }
}
