//! A candidate as the text of a layout.

use crate::space::{FixedRules, Space, Stored, Trades};
use meshwright_core::Program;
use meshwright_cost::pipe::Pipe;
use meshwright_diag::{FileId, Span};
use meshwright_sorted::SortedMap;
use meshwright_syntax::ast::{DimPattern, LayoutKind, ReduceWhen, ScopeKind};
use meshwright_syntax::parse_layout;

/// One layout of a space.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// Sizes of the axes, major first.
    pub mesh: Vec<usize>,
    /// The set of each axis, by its position in the space.
    pub sets: Vec<usize>,
    /// What is stored over each axis.
    pub stored: Vec<Stored>,
    /// Position of the number of parts in the space.
    pub parts: usize,
    /// Position of what is recomputed.
    pub recompute: usize,
    /// Memory that is traded for bytes.
    pub trades: Trades,
    /// The pipeline whose stages have this mesh each, once one is chosen.
    pub pipe: Option<Pipe>,
}

/// A candidate as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WrittenLayout {
    /// The lines of the layout, without the mesh.
    pub lines: Vec<String>,
    /// The mesh: `data=2,model=4`.
    pub mesh: String,
}

impl WrittenLayout {
    /// The lines as one, as the command line takes them.
    pub fn rules(&self) -> String {
        self.lines.join("; ")
    }

    /// A whole layout file.
    pub fn file(&self, heading: &[String]) -> String {
        let heading: String = heading.iter().map(|l| format!("// {l}\n")).collect();
        let mesh = self.mesh.replace(',', ", ").replace('=', " = ");
        let mesh = if mesh.is_empty() { String::new() } else { format!("mesh {mesh}\n") };
        format!("{heading}{mesh}{}\n", self.lines.join("\n"))
    }
}

/// The line that computes loops again; none for no loops.
pub(crate) fn recompute_line(loops: &[String]) -> Option<String> {
    let paths: Vec<String> = loops.iter().map(|l| format!("{l}.*")).collect();
    (!paths.is_empty()).then(|| format!("recompute {}", paths.join(", ")))
}

impl Space {
    /// The text of a candidate.
    pub fn written(&self, c: &Candidate) -> WrittenLayout {
        let names = self.axis_names(&c.sets);
        let staged = c.pipe.as_ref().zip(self.layers);
        let stages = staged.map(|(pipe, _)| format!("{}={}", Pipe::axis(&names), pipe.stages));
        let axes = names.iter().zip(&c.mesh).map(|(name, size)| format!("{name}={size}"));
        let mesh = stages.into_iter().chain(axes);
        let mut lines = Vec::new();
        lines.extend(self.choices.kept.text.lines().map(String::from));
        lines.extend(self.rules(c, &names));
        let over = |least: Stored| {
            let axes: Vec<&str> =
                names.iter().zip(&c.stored).filter(|(_, s)| **s >= least).map(|(n, _)| n.as_str()).collect();
            (!axes.is_empty()).then(|| axes.join(", "))
        };
        // A rule for parameters is one for gradients and moments too, and one for gradients for moments.
        let levels = [("moments", Stored::Moments), ("grads", Stored::Grads), ("params", Stored::Params)];
        let mut written: Option<String> = None;
        let mut scopes = Vec::new();
        for (word, level) in levels.into_iter().rev() {
            if let Some(axes) = over(level)
                && written.as_ref() != Some(&axes)
            {
                scopes.push(format!("{word}: * -> {axes}"));
                written = Some(axes);
            }
        }
        lines.extend(scopes.into_iter().rev());
        if let Some((_, (layers, _))) = staged {
            lines.push(format!("{} -> {}", self.name(layers), Pipe::axis(&names)));
        }
        if self.parts[c.parts] > 1 {
            lines.push(format!("microbatches {}", self.parts[c.parts]));
        }
        lines.extend(c.trades.keep.then(|| "keep params".to_string()));
        lines.extend(c.trades.reduce.then(|| {
            let split = c.stored.iter().copied().fold(self.choices.kept.stored, Stored::max);
            let when = if split >= Stored::Grads { ReduceWhen::Once } else { ReduceWhen::ByPart };
            format!("reduce grads {}", when.words())
        }));
        lines.extend(staged.map_or(vec![], |(pipe, layers)| pipe.lines(layers.1)));
        lines.extend(recompute_line(&self.recompute[c.recompute]));
        if !self.choices.gathers.is_empty() {
            lines.push(format!("gather {}", self.choices.gathers.join(", ")));
        }
        WrittenLayout { lines, mesh: mesh.collect::<Vec<_>>().join(",") }
    }

    /// A set as text: `heads, d_ff`, with `; seq when free` where a dim yields to it.
    pub fn set_text(&self, set: usize) -> String {
        let set = &self.sets[set];
        let dims: Vec<&str> = set.dims.iter().map(|d| self.name(*d)).collect();
        let free = set.free.map_or(String::new(), |d| format!("; {} when free", self.name(d)));
        format!("{}{free}", dims.join(", "))
    }

    /// Names of the axes: those that were given, those of the kept lines, or ones that say what is split.
    fn axis_names(&self, sets: &[usize]) -> Vec<String> {
        let given = if self.choices.axes.is_empty() { &self.choices.kept.axes } else { &self.choices.axes };
        let mut names: Vec<String> = given.iter().take(sets.len()).cloned().collect();
        for set in sets.iter().skip(names.len()) {
            let base = match &self.sets[*set] {
                of if of.batch => "data",
                of if of.dims.is_empty() => "idle",
                _ => "model",
            };
            let mut name = base.to_string();
            for n in 2.. {
                if !names.contains(&name) {
                    break;
                }
                name = format!("{base}{n}");
            }
            names.push(name);
        }
        names
    }

    /// Rules for all values: dims with equal axes share a line.
    fn rules(&self, c: &Candidate, names: &[String]) -> Vec<String> {
        let mut axes_of: SortedMap<(bool, &str), Vec<&str>> = SortedMap::new();
        for (set, name) in c.sets.iter().zip(names) {
            let set = &self.sets[*set];
            let dims = set.dims.iter().map(|d| (false, *d)).chain(set.free.map(|d| (true, d)));
            for (free, d) in dims {
                axes_of.entry((free, self.name(d))).or_default().push(name);
            }
        }
        /// Whether a line yields, its axes, and its dims.
        type LayoutLine<'a> = ((bool, Vec<&'a str>), Vec<&'a str>);
        let mut lines: Vec<LayoutLine<'_>> = Vec::new();
        for ((free, dim), axes) in axes_of {
            match lines.iter_mut().find(|(key, _)| *key == (free, axes.clone())) {
                Some((_, dims)) => dims.push(dim),
                None => lines.push(((free, axes), vec![dim])),
            }
        }
        let order =
            |axes: &[&str]| axes.iter().map(|a| names.iter().position(|n| n == a)).collect::<Vec<_>>();
        lines.sort_by_key(|((free, axes), _)| (*free, order(axes)));
        let text = |((free, axes), dims): LayoutLine<'_>| {
            format!("{} -> {}{}", dims.join(", "), axes.join(", "), if free { " when free" } else { "" })
        };
        lines.into_iter().map(text).collect()
    }
}

impl FixedRules {
    /// What the text of a layout says, less its mesh. `None` where it does not parse, which whoever has read it has reported.
    pub fn of(text: &str, program: &Program) -> Option<FixedRules> {
        let file = parse_layout(FileId(0), text).0?;
        let mut kept = FixedRules::default();
        let known: Vec<&str> = program.graph.dims.iter().map(|d| d.1).collect();
        let mut lines = Vec::new();
        for item in &file.items {
            let mut written = text[item.span.start as usize..item.span.end as usize].to_string();
            let is_known = |name: &str| known.contains(&name);
            match &item.kind {
                LayoutKind::Mesh(_) => continue,
                LayoutKind::Rule(rule) => {
                    // A file that several models share has dims of others.
                    let here = |d: &&DimPattern| match d {
                        DimPattern::Dim(name) => is_known(&name.text),
                        DimPattern::Any(_) => true,
                    };
                    if !rule.dims.iter().all(|d| here(&d)) {
                        let dims: Vec<&str> =
                            rule.dims.iter().filter(here).map(|d| spanned(text, d.span())).collect();
                        let (Some(first), Some(last)) = (rule.dims.first(), rule.dims.last()) else {
                            continue;
                        };
                        if dims.is_empty() {
                            continue;
                        }
                        let (from, to) = (first.span().start as usize, last.span().end as usize);
                        let (start, end) = (item.span.start as usize, item.span.end as usize);
                        written = format!("{}{}{}", &text[start..from], dims.join(", "), &text[to..end]);
                    }
                    for name in &rule.axes {
                        if !kept.axes.contains(&name.text) {
                            kept.axes.push(name.text.clone());
                        }
                    }
                    kept.scopes |= rule.scope.kind.is_some() || rule.scope.path.is_some();
                    kept.stored = kept.stored.max(match rule.scope.kind.as_ref().map(|kind| kind.0) {
                        _ if rule.scope.path.is_some() => Stored::Whole,
                        None => Stored::Whole,
                        Some(ScopeKind::Moments) => Stored::Moments,
                        Some(ScopeKind::Grads) => Stored::Grads,
                        Some(ScopeKind::Params) => Stored::Params,
                    });
                    let all = rule.scope.kind.is_none() && rule.scope.path.is_none();
                    for d in rule.dims.iter().filter(|_| all) {
                        if let DimPattern::Dim(name) = d
                            && is_known(&name.text)
                        {
                            kept.dims.insert(name.text.clone());
                        }
                    }
                }
                LayoutKind::Microbatches { .. } => kept.microbatches = true,
                LayoutKind::Recompute(_) => kept.recompute = true,
                LayoutKind::ReduceWhen(_) | LayoutKind::KeepParams(_) => kept.trades = true,
                LayoutKind::Gather(names) | LayoutKind::Ring(names) => {
                    let here: Vec<&str> =
                        names.iter().map(|n| n.text.as_str()).filter(|n| is_known(n)).collect();
                    if here.is_empty() {
                        continue;
                    }
                    let word = if matches!(item.kind, LayoutKind::Ring(_)) { "ring" } else { "gather" };
                    written = format!("{word} {}", here.join(", "));
                }
                LayoutKind::Order { dim, .. } if !is_known(&dim.text) => continue,
                LayoutKind::Order { .. }
                | LayoutKind::Schedule(_)
                | LayoutKind::Chunks { .. }
                | LayoutKind::Stages(_)
                | LayoutKind::ReduceGrads => {}
            }
            lines.push(written);
        }
        kept.text = lines.join("\n");
        Some(kept)
    }
}

fn spanned(text: &str, span: Span) -> &str {
    &text[span.start as usize..span.end as usize]
}
