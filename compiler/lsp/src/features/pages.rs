//! The documentation of words: ops, layers, optimizers, keywords.

use crate::project::Analysis;
use crate::text::LanguageKind;
use meshwright_core::names::{Symbol, SymbolKind};
use meshwright_core::reference::{WordKind, WordPage, named as words};
use meshwright_ops::Family;
use meshwright_ops::reference::{named as ops, reference};
use meshwright_syntax::ast::{ItemKind, Layer};

/// The page of a word of the language, in Markdown.
pub(super) fn of_word(word: &str, kind: LanguageKind) -> Option<String> {
    let known = words(word);
    let pages = known
        .iter()
        .filter(|p| p.name == word && (p.kind == WordKind::LayoutKeyword) == (kind == LanguageKind::Layout));
    let pages = pages.map(of_page);
    let families = if kind == LanguageKind::Model { ops(word) } else { Vec::new() };
    let all: Vec<String> = families.into_iter().map(of_op).chain(pages).collect();
    (!all.is_empty()).then(|| all.join("\n\n---\n\n"))
}

/// The page of an op.
pub(super) fn of_op(family: &Family) -> String {
    let r = reference(family);
    let mut out = format!("```meshwright\n{}\n```\n\n{}\n", r.form, r.doc);
    r.options.iter().for_each(|o| out.push_str(&format!("\n- {o}")));
    if !r.types.is_empty() {
        out.push_str(&format!("\n\nTypes: {}", r.types.join("; ")));
    }
    if !r.gradient {
        out.push_str("\n\nIt has no gradient.");
    }
    out
}

/// The page of another word.
pub(super) fn of_page(page: &WordPage) -> String {
    let mut out = format!("```meshwright\n{}\n```\n\n{}: {}\n", page.form, page.kind.text(), page.doc);
    page.settings.iter().for_each(|s| out.push_str(&format!("\n- {s}")));
    out
}

impl Analysis {
    /// The layer of a declaration.
    pub(super) fn layer(&self, symbol: &Symbol) -> Option<&Layer> {
        let (_, tree) = self.trees.iter().find(|t| t.0 == symbol.at.file)?;
        tree.items.iter().find_map(|i| match &i.kind {
            ItemKind::Layer(l) if l.name.span == symbol.at => Some(l),
            _ => None,
        })
    }

    /// How a layer is called: `dense(x, in, out, gain = 1)`.
    pub(super) fn form(&self, symbol: &Symbol) -> Option<String> {
        let layer = self.layer(symbol)?;
        let params = layer.params.iter().map(|p| match &p.default {
            None => p.name.text.clone(),
            Some(value) => format!("{} = {}", p.name.text, self.sources.slice(value.span)),
        });
        Some(format!("{}({})", layer.name.text, params.collect::<Vec<_>>().join(", ")))
    }

    /// What a declaration says, in a line of code.
    pub(super) fn declaration(&self, symbol: &Symbol) -> String {
        match symbol.kind {
            SymbolKind::Layer => {
                format!("layer {}", self.form(symbol).unwrap_or_else(|| symbol.name.clone()))
            }
            SymbolKind::Model => format!("model {}", symbol.name),
            SymbolKind::Preset => self.sources.slice(symbol.item).to_string(),
            SymbolKind::Dim | SymbolKind::Const => {
                format!("{} {}", symbol.kind.text(), self.sources.slice(symbol.item))
            }
            SymbolKind::Axis => match self.axis(&symbol.name) {
                Some(size) => format!("axis {} = {size}", symbol.name),
                None => format!("axis {}", symbol.name),
            },
            kind => format!("{} {}", kind.text(), symbol.name),
        }
    }

    /// The devices along an axis.
    fn axis(&self, name: &str) -> Option<usize> {
        let mesh = &self.bound.as_ref()?.mesh;
        mesh.find(name).map(|a| mesh.size(a))
    }
}
