//! The tree of a layout file.

use super::{Name, PathGlob};
use meshwright_diag::Span;

/// A whole layout file, or the rules given on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutFile {
    /// Its lines, in order.
    pub items: Vec<LayoutItem>,
}

/// One line, or one part between `;` or `,`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutItem {
    /// Its kind.
    pub kind: LayoutKind,
    /// From its first to its last token, the scope included.
    pub span: Span,
}

/// Kinds of lines of a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutKind {
    /// `mesh r = 2, c = 4`.
    Mesh(MeshDecl),
    /// `params: vocab, d_ff -> model when free`.
    Rule(Rule),
    /// `gather key, value`: gathers that no rule implies are permitted for these dims.
    Gather(Vec<Name>),
    /// `ring key`: shards of these dims go around the devices in place of being gathered.
    Ring(Vec<Name>),
    /// `order seq zigzag ctx`: positions lie on the devices along these axes so that a causal mask leaves all of them as much.
    Order {
        /// The dim.
        dim: Name,
        /// The axes over which it is split.
        axes: Vec<Name>,
    },
    /// `microbatches 8`.
    Microbatches {
        /// The number of parts.
        count: u64,
        /// The place of the number.
        count_span: Span,
    },
    /// `schedule 1f1b`.
    Schedule(Name),
    /// `chunks 2`.
    Chunks {
        /// Stages of a device.
        count: u64,
        /// The place of the number.
        count_span: Span,
    },
    /// `stages 5, 6, 6, 5`, each with its place.
    Stages(Vec<(u64, Span)>),
    /// `recompute attention.*, layers.*`.
    Recompute(Vec<PathGlob>),
    /// `keep params`, or `keep params word, layers.*` with the paths of some.
    KeepParams(Vec<PathGlob>),
    /// `reduce grads in bf16`.
    ReduceGrads,
    /// `reduce grads once`, `reduce grads by part`.
    ReduceWhen(ReduceWhen),
}

impl LayoutKind {
    /// The text of a line that is neither a mesh nor a rule.
    pub fn setting(&self) -> Option<String> {
        let names = |all: &[Name]| all.iter().map(|n| n.text.as_str()).collect::<Vec<_>>().join(", ");
        let paths = |all: &[PathGlob]| all.iter().map(|p| p.text.as_str()).collect::<Vec<_>>().join(", ");
        Some(match self {
            LayoutKind::Mesh(_) | LayoutKind::Rule(_) => return None,
            LayoutKind::Gather(dims) => format!("gather {}", names(dims)),
            LayoutKind::Ring(dims) => format!("ring {}", names(dims)),
            LayoutKind::Order { dim, axes } => format!("order {} zigzag {}", dim.text, names(axes)),
            LayoutKind::Microbatches { count, .. } => format!("microbatches {count}"),
            LayoutKind::Schedule(name) => format!("schedule {}", name.text),
            LayoutKind::Chunks { count, .. } => format!("chunks {count}"),
            LayoutKind::Stages(counts) => {
                let counts: Vec<String> = counts.iter().map(|(n, _)| n.to_string()).collect();
                format!("stages {}", counts.join(", "))
            }
            LayoutKind::Recompute(globs) => format!("recompute {}", paths(globs)),
            LayoutKind::KeepParams(globs) if globs.is_empty() => "keep params".into(),
            LayoutKind::KeepParams(globs) => format!("keep params {}", paths(globs)),
            LayoutKind::ReduceGrads => "reduce grads in bf16".into(),
            LayoutKind::ReduceWhen(when) => format!("reduce grads {}", when.words()),
        })
    }
}

/// When gradients are reduced that a rule splits, in a step that takes its batch in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceWhen {
    /// Once, as the sum of all parts: each device holds whole sums until then.
    Once,
    /// Those of each part: each device holds its shard of the sum.
    ByPart,
}

impl ReduceWhen {
    /// As a layout has it behind `reduce grads`.
    pub fn words(self) -> &'static str {
        match self {
            ReduceWhen::Once => "once",
            ReduceWhen::ByPart => "by part",
        }
    }
}

/// A mesh as `--mesh` gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeshOption {
    /// `r=2,c=4`.
    Named(MeshDecl),
    /// `2x4`: sizes of the axes that the layout names, in its order.
    Sizes {
        /// Each with its place; they may be 0.
        sizes: Vec<(u64, Span)>,
        /// All of it.
        span: Span,
    },
}

/// `mesh r = 2, c = 4`, major axis first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshDecl {
    /// Its axes in order; names may repeat and sizes may be 0: the resolver complains.
    pub axes: Vec<AxisDecl>,
    /// The whole declaration.
    pub span: Span,
}

/// `r = 2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisDecl {
    /// Its name.
    pub name: Name,
    /// The number of devices along it, as written.
    pub size: u64,
    /// The place of the number.
    pub size_span: Span,
}

/// `scope: d1, d2 -> a, b when free`: for each dim on the left, one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its scope.
    pub scope: Scope,
    /// The dims, at least one.
    pub dims: Vec<DimPattern>,
    /// The axes each of them is split over, major first. Empty for `dim -> -`: left whole in this scope.
    pub axes: Vec<Name>,
    /// The place of `when free`, if it is there.
    pub when_free: Option<Span>,
}

/// A dim of a rule, or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DimPattern {
    /// A dim by name.
    Dim(Name),
    /// `*`: of each parameter, the largest dim that is free.
    Any(Span),
}

impl DimPattern {
    /// Its place.
    pub fn span(&self) -> Span {
        match self {
            DimPattern::Dim(name) => name.span,
            DimPattern::Any(span) => *span,
        }
    }
}

/// The scope of a rule; neither a kind nor a path means all values. A scope belongs to the one rule that
/// follows it on the same line: `params: a -> x; b -> y` scopes the first rule only, and a scope alone on its
/// line is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// `params:`, `grads:`, `moments:`, and where the word stands.
    pub kind: Option<(ScopeKind, Span)>,
    /// `layers.attention.*:`.
    pub path: Option<PathGlob>,
}

/// Which values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScopeKind {
    /// The parameters themselves.
    Params,
    /// Their gradients.
    Grads,
    /// The optimizer's moments of them.
    Moments,
}

impl ScopeKind {
    /// As it is written before the colon.
    pub fn word(self) -> &'static str {
        match self {
            ScopeKind::Params => "params",
            ScopeKind::Grads => "grads",
            ScopeKind::Moments => "moments",
        }
    }
}
