//! Words that can be written at a place.

use super::pages;
use super::place::text;
use crate::project::{Analysis, Projects};
use crate::snapshot::Snapshot;
use crate::text::{LanguageKind, LineIndex, path_of};
use lsp_types::{
    CompletionItem, CompletionItemKind, CompletionParams, CompletionResponse, Documentation, MarkupContent,
    MarkupKind,
};
use meshwright_core::names::{Symbol, SymbolKind};
use meshwright_core::reference::{WordKind, pages as word_pages};
use meshwright_cost::shipped_machines::MACHINES;
use meshwright_diag::FileId;
use meshwright_ops::families;
use meshwright_ops::reference::named as ops;
use meshwright_ops::signature::Form;
use meshwright_plan::actions::PipelineSchedule;
use meshwright_sorted::SortedSet;
use meshwright_syntax::{Language, Token, TokenKind, tokens};

/// Types that declarations and `cast` may name.
const DTYPES: [&str; 6] = ["float", "f32", "f64", "i32", "u8", "bool"];

/// A place where something is to be completed.
struct CompletionSite<'a> {
    source: &'a str,
    /// The tokens before the word that is being typed.
    before: Vec<Token>,
    offset: usize,
    /// The analysis of the text, and its number there.
    known: Option<(&'a Analysis, FileId)>,
}

/// Answers a request for completions.
pub(crate) fn completion(
    snapshot: &Snapshot,
    projects: &mut Projects,
    params: &CompletionParams,
) -> Option<CompletionResponse> {
    let at = &params.text_document_position;
    let path = path_of(&at.text_document.uri);
    let source = snapshot.read(&path).ok()?;
    let kind = snapshot.documents.get(&path).map_or_else(|| LanguageKind::of(&path), |d| d.kind);
    let offset = LineIndex::of(&source).offset(&source, at.position);
    let language = if kind == LanguageKind::Model { Language::Model } else { Language::Layout };
    let scanned = tokens(&source, language);
    let known = text(snapshot, projects, &at.text_document.uri);
    let before = scanned
        .tokens
        .iter()
        .copied()
        .filter(|t| t.end < offset || t.end == offset && t.kind != TokenKind::Word);
    let site = CompletionSite {
        source: &source,
        before: before.collect(),
        offset,
        known: known.as_ref().map(|(a, file)| (&**a, *file)),
    };
    let line = source[..offset].rsplit('\n').next().unwrap_or_default();
    let items = if scanned.comments.iter().any(|c| c.start < offset && offset <= c.end) {
        if line.contains("// meshwright:") { site.options(snapshot, line) } else { Vec::new() }
    } else {
        match kind {
            LanguageKind::Model => site.of_model(snapshot),
            LanguageKind::Layout => site.of_layout(),
        }
    };
    let mut told = SortedSet::new();
    let items = items.into_iter().filter(|i| told.insert(i.label.clone()));
    Some(CompletionResponse::Array(items.collect()))
}

impl CompletionSite<'_> {
    /// The text of a token, counted from the place back: 1 is the one before it.
    fn back(&self, n: usize) -> &str {
        let i = self.before.len().checked_sub(n);
        i.and_then(|i| self.before.get(i)).map_or("", |t| &self.source[t.start..t.end])
    }

    /// True for a word that begins its line.
    fn leads(&self) -> bool {
        let last = self.before.last().map_or(0, |t| t.end);
        self.source[last..self.offset].contains('\n') || self.before.is_empty()
    }

    /// The bracket that is open, with the word before it.
    fn open(&self) -> Option<(&str, &str)> {
        let mut closed = 0;
        for i in 1..=self.before.len() {
            match self.back(i) {
                ")" | "]" | "}" => closed += 1,
                "(" | "[" | "{" if closed > 0 => closed -= 1,
                bracket @ ("(" | "[" | "{") => {
                    // The dims of an op stand between its name and its operands.
                    let mut name = i + 1;
                    if bracket == "(" && self.back(name) == "]" {
                        while name <= self.before.len() && self.back(name) != "[" {
                            name += 1;
                        }
                        name += 1;
                    }
                    return Some((bracket, self.back(name)));
                }
                _ => {}
            }
        }
        None
    }

    /// The kind of a block, such as `train`: the word that begins the line of the innermost open brace.
    fn block(&self) -> Option<&str> {
        let mut closed = 0;
        for i in 1..=self.before.len() {
            match self.back(i) {
                "}" => closed += 1,
                "{" if closed > 0 => closed -= 1,
                "{" => {
                    let brace = self.before.len() - i;
                    let first = self.before[..brace].iter().rev().find(|t| t.leads)?;
                    return Some(&self.source[first.start..first.end]);
                }
                _ => {}
            }
        }
        None
    }

    fn names(&self, kinds: &[SymbolKind]) -> Vec<CompletionItem> {
        let Some((a, file)) = self.known else { return Vec::new() };
        let visible = a.names.visible(file, self.offset as u32);
        visible.filter(|s| kinds.contains(&s.kind)).map(|s| a.item(s)).collect()
    }

    fn of_model(&self, snapshot: &Snapshot) -> Vec<CompletionItem> {
        use SymbolKind as K;
        let dims = || self.names(&[K::Dim, K::Argument]);
        let block = self.block();
        match self.back(1) {
            "use" => return vec![plain("\"std:nn\"", CompletionItemKind::FILE)],
            "optimizer" => return words(&[WordKind::Optimizer]),
            "minimize" => return self.results(),
            "train" => return self.names(&[K::Model]),
            "repeat" | "scan" | "by" | "in" => return dims(),
            ":" => return dtypes(),
            "as" | "dim" | "const" | "layer" | "model" | "let" | "input" | "param" | "state" | "loss" => {
                return Vec::new();
            }
            _ => {}
        }
        match self.open() {
            Some(("[", name)) => {
                let options = ops(name).into_iter().flat_map(|f| f.signature.options);
                let options = options.map(|o| {
                    described(plain(&format!("{} = ", o.name), CompletionItemKind::PROPERTY), o.doc)
                });
                return dims().into_iter().chain(options).collect();
            }
            Some(("(", name)) => {
                let mut out = self.arguments(name);
                out.extend(self.expression(block));
                return out;
            }
            _ => {}
        }
        if self.leads() {
            return match block {
                None => keywords(&["use", "dim", "const", "layer", "model", "train"]),
                Some("train" | "group") => keywords(&[
                    "minimize",
                    "optimizer",
                    "clip",
                    "precision",
                    "freeze",
                    "weight_decay",
                    "group",
                    "ema",
                ]),
                Some("size") => self.names(&[K::Dim, K::Const]),
                Some(_) => {
                    let begin = [
                        "let", "param", "state", "input", "loss", "metric", "output", "repeat", "scan",
                        "return",
                    ];
                    keywords(&begin).into_iter().chain(self.names(&[K::Value, K::State])).collect()
                }
            };
        }
        match block {
            Some("size") => self.names(&[K::Dim, K::Const]),
            _ if snapshot.documents.iter().next().is_none() => Vec::new(),
            block => self.expression(block),
        }
    }

    /// All that an expression may hold.
    fn expression(&self, block: Option<&str>) -> Vec<CompletionItem> {
        use SymbolKind as K;
        let all = [
            K::Value,
            K::Input,
            K::Param,
            K::State,
            K::Argument,
            K::Index,
            K::Const,
            K::Dim,
            K::Layer,
            K::Loss,
            K::Metric,
            K::Output,
        ];
        let mut out = self.names(&all);
        if block == Some("train") {
            out.extend(words(&[WordKind::LearningRate]));
            return out;
        }
        let called =
            families().filter(|f| f.signature.form != Form::Symbol && f.signature.form != Form::Syntax);
        out.extend(called.map(|f| {
            let item = plain(f.name, CompletionItemKind::FUNCTION);
            CompletionItem { detail: Some(f.text()), ..documented(item, pages::of_op(f)) }
        }));
        out.extend(words(&[WordKind::BuiltIn, WordKind::Initializer]));
        out
    }

    /// Named arguments of what is called: of a layer, of an op, of an optimizer.
    fn arguments(&self, name: &str) -> Vec<CompletionItem> {
        let argument = |n: &str| plain(&format!("{n} = "), CompletionItemKind::PROPERTY);
        let layer = self.known.and_then(|(a, _)| {
            let symbol = a.names.of_kind(SymbolKind::Layer).find(|s| s.name == name)?;
            a.layer(symbol)
        });
        let params = layer.into_iter().flat_map(|l| &l.params).filter(|p| p.default.is_some());
        let options = ops(name).into_iter().flat_map(|f| f.signature.options);
        let pages = word_pages().into_iter().filter(|p| p.name == name);
        let settings: Vec<String> = pages.flat_map(|p| p.settings).collect();
        let set = settings.iter().filter_map(|line| {
            let name = line.strip_prefix('`')?.split('`').next()?;
            Some(described(argument(name), line))
        });
        let params = params.map(|p| argument(&p.name.text));
        params.chain(options.map(|o| described(argument(o.name), o.doc))).chain(set).collect()
    }

    /// Losses, which a `train` block can minimize.
    fn results(&self) -> Vec<CompletionItem> {
        let Some((a, _)) = self.known else { return Vec::new() };
        a.names.of_kind(SymbolKind::Loss).map(|s| a.item(s)).collect()
    }

    fn of_layout(&self) -> Vec<CompletionItem> {
        use SymbolKind as K;
        let dims = || self.names(&[K::Dim]);
        let statement = self.before.iter().rposition(|t| t.leads || &self.source[t.start..t.end] == ";");
        let first = statement.filter(|_| !self.leads() && self.back(1) != ";");
        let Some(first) = first else {
            let begin = [
                "mesh",
                "gather",
                "ring",
                "order",
                "microbatches",
                "schedule",
                "chunks",
                "stages",
                "recompute",
                "keep",
                "reduce",
                "params",
                "grads",
                "moments",
            ];
            return dims().into_iter().chain(keywords(&begin)).collect();
        };
        let words: Vec<&str> = self.before[first..].iter().map(|t| &self.source[t.start..t.end]).collect();
        let first = words.iter().find(|w| **w != ";").copied().unwrap_or_default();
        let arrow = words.contains(&"->");
        match (first, self.back(1)) {
            (_, "->") | (_, ",") if arrow => self.names(&[K::Axis]),
            (_, "when") => keywords(&["free"]),
            _ if arrow => keywords(&["when"]),
            ("schedule", _) => {
                let names = PipelineSchedule::ALL.map(PipelineSchedule::name);
                names.map(|s| plain(s, CompletionItemKind::ENUM_MEMBER)).to_vec()
            }
            ("order", "order") => dims(),
            ("order", "zigzag" | ",") => self.names(&[K::Axis]),
            ("order", _) => keywords(&["zigzag"]),
            ("recompute" | "keep", "keep") => keywords(&["params"]),
            ("recompute" | "keep", _) => self.paths(),
            ("reduce", "reduce") => keywords(&["grads"]),
            ("reduce", "grads") => keywords(&["in", "once", "by"]),
            ("mesh" | "microbatches" | "chunks" | "stages" | "reduce", _) => Vec::new(),
            ("params" | "grads" | "moments", "params" | "grads" | "moments") => self.paths(),
            _ => dims(),
        }
    }

    /// The paths of parameters, and of the layers that hold them.
    fn paths(&self) -> Vec<CompletionItem> {
        let program = self.known.and_then(|(a, _)| a.program.as_deref());
        let paths = program.into_iter().flat_map(|p| &p.params).map(|p| p.path.as_str());
        let mut all = SortedSet::new();
        for path in paths {
            all.insert(path.to_string());
            all.extend(path.match_indices('.').map(|(i, _)| format!("{}.*", &path[..i])));
        }
        all.iter().map(|p| plain(p, CompletionItemKind::FIELD)).collect()
    }

    /// The options of a comment.
    fn options(&self, snapshot: &Snapshot, line: &str) -> Vec<CompletionItem> {
        let done = line.trim_end_matches(|c: char| !c.is_whitespace());
        let value = |names: Vec<String>| {
            names.iter().map(|n| plain(n, CompletionItemKind::VALUE)).collect::<Vec<_>>()
        };
        match done.split_whitespace().last().unwrap_or_default() {
            "--layout" => value(snapshot.host.layouts().iter().map(|l| l.0.to_string()).collect()),
            "--machine" => value(MACHINES.iter().map(|m| m.name.to_string()).collect()),
            "--preset" => {
                let a = self.known.map(|k| k.0);
                let all = a.into_iter().flat_map(|a| a.names.of_kind(SymbolKind::Preset));
                value(all.map(|s| s.name.clone()).collect())
            }
            "--mesh" | "--model" => Vec::new(),
            "--dim" => self.names(&[SymbolKind::Dim]),
            "--set" => self.names(&[SymbolKind::Const]),
            _ => value(
                ["--layout", "--mesh", "--preset", "--dim", "--set", "--machine", "--model"]
                    .map(String::from)
                    .to_vec(),
            ),
        }
    }
}

impl Analysis {
    /// A declaration as a completion.
    fn item(&self, s: &Symbol) -> CompletionItem {
        use SymbolKind as K;
        let kind = match s.kind {
            K::Dim => CompletionItemKind::TYPE_PARAMETER,
            K::Const => CompletionItemKind::CONSTANT,
            K::Layer => CompletionItemKind::FUNCTION,
            K::Param | K::State | K::Loss | K::Metric | K::Output => CompletionItemKind::FIELD,
            K::Axis => CompletionItemKind::ENUM_MEMBER,
            K::Preset => CompletionItemKind::STRUCT,
            K::Model => CompletionItemKind::CLASS,
            K::Argument | K::Input | K::Value | K::Index | K::Label => CompletionItemKind::VARIABLE,
        };
        let detail = match s.kind {
            K::Dim => self.inspection.dims.get(&s.name).map(|d| self.sizes(&[*d])),
            K::Layer => self.form(s),
            _ => self.meanings(s.at).next().map(|m| self.signature(m)),
        };
        let detail = detail.or_else(|| Some(self.declaration(s)));
        let item = CompletionItem { detail, ..plain(&s.name, kind) };
        if s.doc.is_empty() { item } else { documented(item, s.doc.clone()) }
    }
}

fn plain(label: &str, kind: CompletionItemKind) -> CompletionItem {
    CompletionItem { label: label.into(), kind: Some(kind), ..CompletionItem::default() }
}

fn described(item: CompletionItem, doc: &str) -> CompletionItem {
    documented(item, doc.to_string())
}

fn documented(item: CompletionItem, value: String) -> CompletionItem {
    let doc = Documentation::MarkupContent(MarkupContent { kind: MarkupKind::Markdown, value });
    CompletionItem { documentation: Some(doc), ..item }
}

fn dtypes() -> Vec<CompletionItem> {
    DTYPES.map(|t| plain(t, CompletionItemKind::KEYWORD)).to_vec()
}

fn keywords(words: &[&str]) -> Vec<CompletionItem> {
    let pages = word_pages();
    let item = |word: &&str| {
        let item = plain(word, CompletionItemKind::KEYWORD);
        let keyword = [WordKind::Keyword, WordKind::LayoutKeyword];
        match pages.iter().find(|p| p.name == *word && keyword.contains(&p.kind)) {
            Some(page) => documented(item, pages::of_page(page)),
            None => item,
        }
    };
    words.iter().map(item).collect()
}

fn words(kinds: &[WordKind]) -> Vec<CompletionItem> {
    let all = word_pages().into_iter().filter(|p| kinds.contains(&p.kind));
    let item = |p: meshwright_core::reference::WordPage| {
        let item = plain(p.name, CompletionItemKind::FUNCTION);
        CompletionItem { detail: Some(p.form.clone()), ..documented(item, pages::of_page(&p)) }
    };
    all.map(item).collect()
}
