//! Items: what stands outside of all blocks.

use super::Parser;
use super::expr::parts;
use super::grammar::Rule;
use super::keywords::{ITEMS, is_keyword};
use super::statements::binding;
use crate::ast::{Binding, Item, ItemKind, Layer, LayerParam, Model, ModelFile, SizePreset, Train, Use};

impl Parser<'_> {
    /// The whole file. What failed is left out; the diagnostics tell.
    pub(super) fn file(&mut self) -> ModelFile {
        let mut tree = ModelFile { doc: self.file_doc(), items: Vec::new() };
        while !self.done() {
            let first = self.at;
            let meant = ITEMS.contains(&self.token(first)) && self.token(first) != "size";
            if !meant && !self.item_begins(first) {
                self.stray();
                continue;
            }
            let word = self.token(first).to_string();
            self.at += 1;
            match self.item(&word) {
                Some(kind) => {
                    tree.items.push(Item { doc: self.doc_above(first), kind, span: self.since(first) })
                }
                None => self.skip_to_item(),
            }
        }
        tree
    }

    /// Something that begins no item: reported once for all that follows up to the next item.
    fn stray(&mut self) {
        let word = self.token(self.at).to_string();
        if word == "}" {
            self.error("this `}` closes nothing", self.at, "no block is open here");
        } else if is_keyword(&word) {
            let message = format!("`{word}` belongs in a layer or a model");
            self.error(message, self.at, "no block is open here");
        } else {
            self.unexpected(self.at, &["`dim`", "`layer`", "`model`", "another item"]);
        }
        self.at += 1;
        self.skip_to_item();
    }

    fn skip_to_item(&mut self) {
        while !self.done() && !self.item_begins(self.at) {
            self.at += 1;
        }
    }

    fn item(&mut self, word: &str) -> Option<ItemKind> {
        match word {
            "dim" => self.bindings().map(ItemKind::Dims),
            "const" => self.bindings().map(ItemKind::Consts),
            "use" => self.parse(Rule::import, |b, p| {
                let string = parts(p).next()?;
                let path_span = b.span(&string);
                let path = b.string(string.as_str(), path_span)?;
                Some(ItemKind::Use(Use { path, path_span }))
            }),
            "layer" => {
                let head = self.parse(Rule::layer_head, |b, p| {
                    let mut inner = parts(p);
                    let name = b.name(&inner.next()?);
                    let params = inner.map(|p| {
                        let mut inner = parts(p);
                        let name = b.name(&inner.next()?);
                        let default = match inner.next() {
                            Some(p) => Some(b.expr(p)?),
                            None => None,
                        };
                        Some(LayerParam { name, default })
                    });
                    let params: Option<Vec<_>> = params.collect();
                    Some((name, params?))
                });
                let Some((name, params)) = head else {
                    self.broken_block();
                    return None;
                };
                let body = self.body(self.span(self.at - 1));
                Some(ItemKind::Layer(Layer { name, params, body }))
            }
            _ => {
                let name = self.parse(Rule::block_head, |b, p| Some(b.name(&parts(p).next()?)));
                if name.is_none() && !self.seek_brace() {
                    return None;
                }
                let open = self.span(self.at - 1);
                // The block is read even where its head is broken, for the mistakes in it.
                Some(match word {
                    "model" => {
                        let body = self.body(open);
                        ItemKind::Model(Model { name: name?, body })
                    }
                    "train" => {
                        let settings = self.settings(open);
                        ItemKind::Train(Train { model: name?, settings })
                    }
                    _ => {
                        let values = self.entries(open);
                        ItemKind::Size(SizePreset { name: name?, values })
                    }
                })
            }
        }
    }

    fn bindings(&mut self) -> Option<Vec<Binding>> {
        self.parse(Rule::bindings, |b, p| parts(p).map(|p| binding(b, p)).collect())
    }

    /// The `//!` comments before the first token.
    fn file_doc(&self) -> String {
        let first = self.scan.tokens.first().map_or(self.text.len(), |t| t.start);
        let comments = self.scan.comments.iter().take_while(|c| c.start < first);
        joined(comments.filter_map(|c| self.text[c.start..c.end].strip_prefix("//!")))
    }

    /// The `///` comments on the lines right above token `first`.
    fn doc_above(&self, first: usize) -> String {
        let mut end = self.scan.tokens[first].start;
        let floor = first.checked_sub(1).map_or(0, |i| self.scan.tokens[i].end);
        let mut lines = Vec::new();
        let until = self.scan.comments.partition_point(|c| c.start < end);
        for comment in self.scan.comments[..until].iter().rev() {
            let text = &self.text[comment.start..comment.end];
            let gap = &self.text[comment.end..end];
            let Some(line) = text.strip_prefix("///") else { break };
            if comment.start < floor || gap.matches('\n').count() > 1 {
                break;
            }
            lines.push(line);
            end = comment.start;
        }
        joined(lines.into_iter().rev())
    }
}

/// Lines without the blank that follows the mark.
fn joined<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.map(|l| l.strip_prefix(' ').unwrap_or(l).trim_end()).collect::<Vec<_>>().join("\n")
}
