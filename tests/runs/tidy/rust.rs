//! Rust files as the checks see them: the modules of each crate without its tests, and what is in them.

use super::{read, short};
use crate::support::root;
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// A file of a crate that is not a test.
pub(crate) struct SourceFile {
    /// Its path in the repository.
    pub(crate) name: String,
    /// The folder of its crate, such as `compiler/core`.
    pub(crate) krate: String,
    /// The path of its module.
    pub(crate) module: Vec<String>,
    /// Its items, those of `#[cfg(test)]` left out.
    pub(crate) items: Vec<Item>,
}

/// The crates of the compiler and of the runtime.
pub(crate) fn crates() -> Vec<String> {
    let mut out: Vec<String> = ["compiler", "runtime"]
        .iter()
        .flat_map(|half| std::fs::read_dir(root().join(half)).unwrap())
        .map(|e| short(&e.unwrap().path()))
        .filter(|name| root().join(name).join("Cargo.toml").exists())
        .collect();
    out.sort();
    assert!(out.len() >= 9, "{out:?}");
    out
}

/// The files of all crates.
pub(crate) fn sources() -> Vec<SourceFile> {
    crates().iter().flat_map(|c| sources_of(c)).collect()
}

/// The files of a crate, from its roots along `mod name;`.
pub(crate) fn sources_of(krate: &str) -> Vec<SourceFile> {
    let mut out = Vec::new();
    for file in ["src/lib.rs", "src/main.rs"] {
        let path = root().join(krate).join(file);
        if path.exists() {
            let folder = path.parent().unwrap().to_path_buf();
            // A binary beside a library is a module of its own.
            let module = if file.ends_with("main.rs") { vec!["(main)".to_string()] } else { Vec::new() };
            load(krate, &path, &folder, module, &mut out);
        }
    }
    out
}

fn load(krate: &str, path: &Path, folder: &Path, module: Vec<String>, out: &mut Vec<SourceFile>) {
    let file = parsed(path);
    let mut items: Vec<Item> = file.items.into_iter().filter(|i| !is_test(attributes(i))).collect();
    items.extend(modules_of_macros(&items));
    let at = out.len();
    out.push(SourceFile {
        name: short(path),
        krate: krate.into(),
        module: module.clone(),
        items: Vec::new(),
    });
    for item in &items {
        if let Item::Mod(m) = item
            && m.content.is_none()
        {
            let name = m.ident.to_string();
            let named = path_attribute(&m.attrs).map(|p| path.parent().unwrap().join(p));
            let candidates = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
            let found = named.into_iter().chain(candidates).find(|p| p.exists());
            let child = found.unwrap_or_else(|| panic!("{}: no file of `mod {name}`", path.display()));
            load(krate, &child, &folder.join(&name), [&module[..], &[name]].concat(), out);
        }
    }
    out[at].items = items;
}

/// The modules that macros of the same file declare, one for each name in a call, with the `pub use` of their items.
fn modules_of_macros(items: &[Item]) -> Vec<Item> {
    let macros = || items.iter().filter_map(|i| if let Item::Macro(m) = i { Some(m) } else { None });
    let body = |name: &syn::Ident| macros().find(|m| m.ident.as_ref() == Some(name)).map(|m| &m.mac.tokens);
    let mut out = vec![];
    for call in macros().filter(|m| m.ident.is_none()) {
        let text = call.mac.path.get_ident().and_then(body).map(TokenStream::to_string).unwrap_or_default();
        let text = text.replace(' ', "");
        if !text.contains("mod$") {
            continue;
        }
        for name in call.mac.tokens.clone() {
            if let TokenTree::Ident(name) = name {
                out.push(syn::parse_quote!(mod #name;));
                if text.contains("::*;") {
                    out.push(syn::parse_quote!(pub use #name::*;));
                }
            }
        }
    }
    out
}

#[test]
fn modules_that_macros_declare_are_found() {
    let file: syn::File = syn::parse_quote! {
        macro_rules! files { ($($name:ident),*) => { $(mod $name; pub use $name::*;)* }; }
        macro_rules! other { ($name:ident) => { fn $name() {} }; }
        files! { a, b }
        other! { c }
    };
    let found: Vec<String> =
        modules_of_macros(&file.items).iter().map(|i| i.to_token_stream().to_string()).collect();
    assert_eq!(found, ["mod a ;", "pub use a :: * ;", "mod b ;", "pub use b :: * ;"]);
    let names: Vec<String> = sources().into_iter().map(|s| s.name).collect();
    for file in ["compiler/ops/src/ops/softmax.rs", "runtime/cpu/src/kernels/softmax.rs"] {
        assert!(names.iter().any(|n| n == file), "{file}");
    }
}

/// A Rust file.
pub(crate) fn parsed(path: &Path) -> syn::File {
    syn::parse_file(&read(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn path_attribute(attrs: &[Attribute]) -> Option<PathBuf> {
    let of = |a: &Attribute| match &a.meta {
        syn::Meta::NameValue(v) if v.path.is_ident("path") => match &v.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(s), .. }) => Some(PathBuf::from(s.value())),
            _ => None,
        },
        _ => None,
    };
    attrs.iter().find_map(of)
}

/// Whether `#[test]` or `#[cfg(test)]` is among the attributes (also in `all(test, …)`).
pub(crate) fn is_test(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|a| match &a.meta {
        syn::Meta::Path(p) => p.is_ident("test"),
        syn::Meta::List(l) if l.path.is_ident("cfg") => {
            let text = l.tokens.to_string();
            text == "test" || text.starts_with("all (test") || text.starts_with("all(test")
        }
        _ => false,
    })
}

/// The attributes of an item.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Union(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

/// A name that a file defines.
pub(crate) struct Defined {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) line: usize,
    /// Lines from the signature to the closing brace.
    pub(crate) lines: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Type,
    Function,
    Module,
}

/// The types, functions and modules of a file; with `tests`, those of its tests too.
pub(crate) fn definitions(items: &[Item], tests: bool) -> Vec<Defined> {
    let mut found = Definitions { tests, out: Vec::new() };
    items.iter().for_each(|i| found.visit_item(i));
    found.out
}

struct Definitions {
    tests: bool,
    out: Vec<Defined>,
}

impl Definitions {
    fn add(&mut self, kind: Kind, name: &syn::Ident, span: proc_macro2::Span) {
        let (line, end) = (span.start().line, span.end().line);
        self.out.push(Defined { kind, name: name.to_string(), line, lines: end + 1 - line });
    }
}

impl<'a> Visit<'a> for Definitions {
    fn visit_item(&mut self, item: &'a Item) {
        if !self.tests && is_test(attributes(item)) {
            return;
        }
        match item {
            Item::Struct(i) => self.add(Kind::Type, &i.ident, i.ident.span()),
            Item::Enum(i) => self.add(Kind::Type, &i.ident, i.ident.span()),
            Item::Union(i) => self.add(Kind::Type, &i.ident, i.ident.span()),
            Item::Trait(i) => self.add(Kind::Type, &i.ident, i.ident.span()),
            Item::Type(i) => self.add(Kind::Type, &i.ident, i.ident.span()),
            Item::Mod(i) => self.add(Kind::Module, &i.ident, i.ident.span()),
            Item::Fn(i) => {
                let span = i.sig.fn_token.span().join(i.block.span()).unwrap();
                self.add(Kind::Function, &i.sig.ident, span);
            }
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, f: &'a syn::ImplItemFn) {
        if self.tests || !is_test(&f.attrs) {
            let span = f.sig.fn_token.span().join(f.block.span()).unwrap();
            self.add(Kind::Function, &f.sig.ident, span);
            visit::visit_impl_item_fn(self, f);
        }
    }

    fn visit_trait_item_fn(&mut self, f: &'a syn::TraitItemFn) {
        let end = f.default.as_ref().map_or(f.sig.span(), |b| b.span());
        self.add(Kind::Function, &f.sig.ident, f.sig.fn_token.span().join(end).unwrap());
        visit::visit_trait_item_fn(self, f);
    }
}

/// A path that code names: its segments, and the module in the file in which it stands.
pub(crate) struct Named {
    pub(crate) inner: Vec<String>,
    pub(crate) segments: Vec<String>,
    pub(crate) line: usize,
    pub(crate) how: How,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// In code.
    Path,
    /// By `use`, under that name; whether it is exported.
    Use { name: String, exported: bool },
    /// By `use …::*`.
    Glob { exported: bool },
}

/// Every path of a file's code, those in arguments of macros included.
pub(crate) fn paths(items: &[Item]) -> Vec<Named> {
    let mut found = Paths { inner: Vec::new(), out: Vec::new() };
    items.iter().for_each(|i| found.visit_item(i));
    found.out
}

struct Paths {
    inner: Vec<String>,
    out: Vec<Named>,
}

impl Paths {
    fn add(&mut self, segments: Vec<String>, line: usize, how: How) {
        self.out.push(Named { inner: self.inner.clone(), segments, line, how });
    }

    fn used(&mut self, tree: &UseTree, before: &[String], exported: bool) {
        let with = |i: &syn::Ident| [before, &[i.to_string()]].concat();
        match tree {
            UseTree::Path(p) => self.used(&p.tree, &with(&p.ident), exported),
            UseTree::Group(g) => g.items.iter().for_each(|t| self.used(t, before, exported)),
            UseTree::Glob(g) => {
                self.add(before.to_vec(), g.span().start().line, How::Glob { exported });
            }
            UseTree::Name(n) => {
                // `use a::{self}` names `a`.
                let own = n.ident == "self";
                let segments = if own { before.to_vec() } else { with(&n.ident) };
                let name = segments.last().cloned().unwrap_or_default();
                self.add(segments, n.span().start().line, How::Use { name, exported });
            }
            UseTree::Rename(r) => {
                let how = How::Use { name: r.rename.to_string(), exported };
                self.add(with(&r.ident), r.span().start().line, how);
            }
        }
    }

    /// `a::b::c` in the argument of a macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut segments: Vec<String> = Vec::new();
        let (mut colons, mut line) = (0, 0);
        for t in tokens {
            match t {
                TokenTree::Ident(i) => {
                    if colons != 2 {
                        self.tokens_end(&mut segments, line);
                        line = i.span().start().line;
                    }
                    segments.push(i.to_string());
                    colons = 0;
                }
                TokenTree::Punct(p) if p.as_char() == ':' && colons < 2 => colons += 1,
                other => {
                    self.tokens_end(&mut segments, line);
                    colons = 0;
                    if let TokenTree::Group(g) = other {
                        self.tokens(g.stream());
                    }
                }
            }
        }
        self.tokens_end(&mut segments, line);
    }

    fn tokens_end(&mut self, segments: &mut Vec<String>, line: usize) {
        let found = std::mem::take(segments);
        // `pub(super)` needs nothing of the module above.
        if !found.is_empty() && found != ["super"] {
            self.add(found, line, How::Path);
        }
    }
}

impl<'a> Visit<'a> for Paths {
    fn visit_item(&mut self, item: &'a Item) {
        if is_test(attributes(item)) {
            return;
        }
        match item {
            Item::Use(u) => {
                let exported = !matches!(u.vis, Visibility::Inherited);
                self.used(&u.tree, &[], exported);
            }
            Item::Mod(m) if m.content.is_some() => {
                self.inner.push(m.ident.to_string());
                visit::visit_item(self, item);
                self.inner.pop();
            }
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_impl_item_fn(&mut self, f: &'a syn::ImplItemFn) {
        if !is_test(&f.attrs) {
            visit::visit_impl_item_fn(self, f);
        }
    }

    /// `pub(super)` needs nothing of the module above.
    fn visit_visibility(&mut self, _: &'a Visibility) {}

    fn visit_path(&mut self, path: &'a syn::Path) {
        let segments = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.add(segments, path.span().start().line, How::Path);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, m: &'a syn::Macro) {
        self.tokens(m.tokens.clone());
        visit::visit_macro(self, m);
    }
}

/// The texts in a file's code, with their lines; documentation is left out unless `docs`.
pub(crate) fn literals(items: &[Item], docs: bool) -> Vec<(usize, String)> {
    let mut found = Literals { docs, out: Vec::new() };
    items.iter().for_each(|i| found.visit_item(i));
    found.out
}

struct Literals {
    docs: bool,
    out: Vec<(usize, String)>,
}

impl Literals {
    fn tokens(&mut self, tokens: TokenStream) {
        for t in tokens {
            match t {
                TokenTree::Group(g) => self.tokens(g.stream()),
                TokenTree::Literal(l) => {
                    if let Ok(s) = syn::parse_str::<syn::LitStr>(&l.to_string()) {
                        self.out.push((l.span().start().line, s.value()));
                    }
                }
                _ => {}
            }
        }
    }
}

impl<'a> Visit<'a> for Literals {
    fn visit_item(&mut self, item: &'a Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_attribute(&mut self, a: &'a Attribute) {
        if self.docs || !a.path().is_ident("doc") {
            if let syn::Meta::List(l) = &a.meta {
                self.tokens(l.tokens.clone());
            }
            visit::visit_attribute(self, a);
        }
    }

    fn visit_lit_str(&mut self, s: &'a syn::LitStr) {
        self.out.push((s.span().start().line, s.value()));
    }

    fn visit_macro(&mut self, m: &'a syn::Macro) {
        self.tokens(m.tokens.clone());
        visit::visit_macro(self, m);
    }
}
