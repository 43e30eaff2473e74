//! Limits that keep the code readable: lengths, circles of imports, names of types, and who may end the process.

use super::rust::{How, Kind, SourceFile, definitions, parsed, paths, sources, sources_of};
use super::{files, none, read, short};
use meshwright_sorted::{SortedMap, SortedSet};

/// Lines of a file, without the tests in it; a file of tests has no more either.
const MOST_LINES: usize = 600;
/// Lines of a function.
const MOST_FUNCTION_LINES: usize = 80;
/// Names of files that say nothing of what is in them.
const VAGUE: [&str; 57] = [
    "added", "again", "against", "ahead", "alone", "apart", "beneath", "board", "broken", "caused", "chosen",
    "damaged", "each", "encoded", "ends", "found", "given", "held", "helpers", "joined", "kept", "kit",
    "last", "launched", "level", "lies", "live", "mend", "misc", "named", "note", "old", "own", "pieces",
    "placed", "placing", "refused", "renamed", "reserved", "rooted", "same", "settle", "several", "shipped",
    "spread", "started", "strided", "teller", "thin", "tied", "trained", "utils", "visible", "walk", "with",
    "words", "wrong",
];
/// How many types of the tree may have one name.
const MOST_NAMESAKES: usize = 2;

#[test]
fn files_hold_one_idea() {
    let mut problems = Vec::new();
    for path in files("rs") {
        let (text, name) = (read(&path), short(&path));
        let is_test = name.contains("/tests/") || name.starts_with("tests/") || name.ends_with("tests.rs");
        let lines = if is_test {
            text.lines().count()
        } else {
            text.lines().take_while(|l| *l != "#[cfg(test)]").count()
        };
        if lines > MOST_LINES {
            problems.push(format!("{name}: {lines} lines, more than {MOST_LINES}: split it"));
        }
        if !is_test && !text.starts_with("//!") {
            problems.push(format!("{name}: does not begin with what it is (`//!`)"));
        }
    }
    none(problems);
}

#[test]
fn names_of_files_say_what_is_in_them() {
    let vague = |path: &std::path::PathBuf| {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        VAGUE
            .contains(&stem.as_str())
            .then(|| format!("{}: `{stem}` says nothing of what is in it", short(path)))
    };
    none(files("rs").iter().filter_map(vague).collect());
}

#[test]
fn functions_are_short() {
    let mut found = Vec::new();
    for path in files("rs") {
        let name = short(&path);
        for d in definitions(&parsed(&path).items, true) {
            if d.kind == Kind::Function && d.lines > MOST_FUNCTION_LINES {
                found.push(format!("{name}:{}: `{}` has {} lines", d.line, d.name, d.lines));
            }
        }
    }
    none(found);
}

#[test]
fn few_types_share_a_name() {
    let mut places: SortedMap<String, Vec<String>> = SortedMap::new();
    for s in sources() {
        for d in definitions(&s.items, false).into_iter().filter(|d| d.kind == Kind::Type) {
            places.entry(d.name).or_default().push(format!("{}:{}", s.name, d.line));
        }
    }
    let many = places.into_iter().filter(|(_, at)| at.len() > MOST_NAMESAKES);
    none(
        many.map(|(name, at)| format!("{} types are called `{name}`: {}", at.len(), at.join(", "))).collect(),
    );
}

#[test]
fn only_the_command_reads_the_environment_and_ends_the_process() {
    const READS: [&str; 8] = ["var", "var_os", "vars", "vars_os", "args", "args_os", "set_var", "remove_var"];
    let mut found = Vec::new();
    for s in sources().iter().filter(|s| s.krate != "runtime/cli") {
        for p in paths(&s.items) {
            let [.., of, what] = p.segments.as_slice() else { continue };
            let reads = of == "env" && READS.contains(&what.as_str());
            if reads || (of == "process" && ["exit", "abort"].contains(&what.as_str())) {
                found.push(format!("{}:{}: `{of}::{what}`", s.name, p.line));
            }
        }
    }
    none(found);
}

/// Estimates and searches give the same for the same Plan and machine, wherever they run.
#[test]
fn what_estimates_and_searches_has_no_files_no_clock_and_no_chance() {
    const IMPURE: [&str; 6] = ["fs", "io", "net", "time", "env", "process"];
    let mut found = Vec::new();
    for krate in ["compiler/cost", "compiler/search"] {
        let manifest = read(&crate::support::root().join(krate).join("Cargo.toml"));
        let chance = |line: &&str| line.starts_with("rand") || line.starts_with("getrandom");
        found.extend(manifest.lines().filter(chance).map(|line| format!("{krate}: depends on `{line}`")));
        for s in sources_of(krate) {
            for p in paths(&s.items) {
                let uses = |first: &str, next: &[&str]| {
                    p.segments.windows(2).any(|w| w[0] == first && next.contains(&w[1].as_str()))
                };
                let clock =
                    p.segments.iter().any(|s| ["Instant", "SystemTime", "RandomState"].contains(&s.as_str()));
                if uses("std", &IMPURE) || clock || p.segments.first().is_some_and(|s| s == "rand") {
                    found.push(format!("{}:{}: `{}`", s.name, p.line, p.segments.join("::")));
                }
            }
        }
    }
    none(found);
}

/// The modules of a crate: what each is called, the file that it is in, the names that it defines and imports.
struct Modules {
    all: SortedMap<Vec<String>, Module>,
}

#[derive(Default)]
struct Module {
    file: usize,
    defines: SortedSet<String>,
    imports: SortedMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Words in calls of macros, which may define them.
    named: SortedSet<String>,
}

impl Modules {
    fn of(files: &[SourceFile]) -> Modules {
        let mut all = SortedMap::new();
        for (file, s) in files.iter().enumerate() {
            add_module(&s.items, s.module.clone(), file, &mut all);
        }
        let mut modules = Modules { all };
        for s in files {
            for p in paths(&s.items) {
                let module = [&s.module[..], &p.inner].concat();
                let Some(to) = modules.absolute(&module, &p.segments) else { continue };
                let m = modules.all.get_mut(&module).unwrap();
                match p.how {
                    How::Use { name, .. } => drop(m.imports.insert(name, to)),
                    How::Glob { .. } => m.globs.push(to),
                    How::Path => {}
                }
            }
        }
        modules
    }

    /// A path from the root of the crate; none where it leads out of it, or names something of the same module.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let root: Vec<String> = module.iter().take_while(|m| *m == "(main)").cloned().collect();
        Some(match first.as_str() {
            "crate" => [&root[..], rest].concat(),
            "self" => [module, rest].concat(),
            "super" => {
                let ups = 1 + rest.iter().take_while(|s| *s == "super").count();
                [&module[..module.len().checked_sub(ups)?], &rest[ups - 1..]].concat()
            }
            name => {
                let child = [module, &[name.to_string()]].concat();
                let own = &self.all[module];
                if self.all.contains_key(&child) {
                    [&child[..], rest].concat()
                } else {
                    [&own.imports.get(name)?[..], rest].concat()
                }
            }
        })
    }

    /// The file that defines what a path from the root names.
    fn file(&self, path: &[String], depth: usize) -> Option<usize> {
        let mut at: Vec<String> = Vec::new();
        for (i, segment) in path.iter().enumerate() {
            at.push(segment.clone());
            if self.all.contains_key(&at) {
                continue;
            }
            at.pop();
            let (module, rest) = (self.all.get(&at)?, &path[i + 1..]);
            if module.defines.contains(segment) || depth == 0 {
                return Some(module.file);
            }
            if let Some(to) = module.imports.get(segment) {
                return self.file(&[&to[..], rest].concat(), depth - 1);
            }
            let exported = |has: &dyn Fn(&Module) -> bool| {
                let mut modules = module.globs.iter().filter_map(|g| Some((g, self.all.get(g)?)));
                let (g, _) = modules.find(|(_, m)| has(m))?;
                self.file(&[&g[..], std::slice::from_ref(segment)].concat(), depth - 1)
            };
            // Definitions of a macro are in the file that calls it.
            return exported(&|m| m.defines.contains(segment))
                .or_else(|| exported(&|m| m.imports.contains_key(segment)))
                .or_else(|| exported(&|m| m.named.contains(segment)))
                .or(Some(module.file));
        }
        self.all.get(&at).map(|m| m.file)
    }
}

fn add_module(items: &[syn::Item], path: Vec<String>, file: usize, all: &mut SortedMap<Vec<String>, Module>) {
    let mut module = Module { file, ..Module::default() };
    for item in items {
        let name = match item {
            syn::Item::Const(i) => &i.ident,
            syn::Item::Enum(i) => &i.ident,
            syn::Item::Fn(i) => &i.sig.ident,
            syn::Item::Static(i) => &i.ident,
            syn::Item::Struct(i) => &i.ident,
            syn::Item::Trait(i) => &i.ident,
            syn::Item::Type(i) => &i.ident,
            syn::Item::Union(i) => &i.ident,
            syn::Item::Mod(m) => {
                if let Some((_, inner)) = &m.content {
                    add_module(inner, [&path[..], &[m.ident.to_string()]].concat(), file, all);
                }
                continue;
            }
            syn::Item::Macro(m) if m.ident.is_none() => {
                words(m.mac.tokens.clone(), &mut module.named);
                continue;
            }
            _ => continue,
        };
        module.defines.insert(name.to_string());
    }
    all.insert(path, module);
}

fn words(tokens: proc_macro2::TokenStream, out: &mut SortedSet<String>) {
    for token in tokens {
        match token {
            proc_macro2::TokenTree::Ident(i) => drop(out.insert(i.to_string())),
            proc_macro2::TokenTree::Group(g) => words(g.stream(), out),
            _ => {}
        }
    }
}

/// For each file of a crate the files that its code needs, each with the path by which it names it first. A name that is
/// only passed on by `pub use` makes its users need the file that defines it, not the file that passes it on.
fn imports(files: &[SourceFile]) -> Vec<SortedMap<usize, String>> {
    let modules = Modules::of(files);
    let mut out = vec![SortedMap::new(); files.len()];
    for (from, s) in files.iter().enumerate() {
        for p in paths(&s.items) {
            if matches!(p.how, How::Use { exported: true, .. } | How::Glob { exported: true }) {
                continue;
            }
            let module = [&s.module[..], &p.inner].concat();
            let to = modules.absolute(&module, &p.segments).and_then(|path| modules.file(&path, 16));
            if let Some(to) = to.filter(|to| *to != from) {
                out[from].entry(to).or_insert_with(|| format!("{}, line {}", p.segments.join("::"), p.line));
            }
        }
    }
    out
}

/// The files that `from` leads to.
fn reached(from: usize, edges: &[SortedMap<usize, String>]) -> SortedSet<usize> {
    let mut seen = SortedSet::new();
    let mut left: Vec<usize> = edges[from].keys().copied().collect();
    while let Some(i) = left.pop() {
        if seen.insert(i) {
            left.extend(edges[i].keys().copied());
        }
    }
    seen
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut found = Vec::new();
    for krate in super::rust::crates() {
        let files = sources_of(&krate);
        let edges = imports(&files);
        let reach: Vec<SortedSet<usize>> = (0..files.len()).map(|i| reached(i, &edges)).collect();
        let mut told = SortedSet::new();
        for i in 0..files.len() {
            if !reach[i].contains(&i) || !told.insert(i) {
                continue;
            }
            let circle: Vec<usize> = reach[i].iter().copied().filter(|j| reach[*j].contains(&i)).collect();
            told.extend(&circle);
            let mut lines = vec![format!("{} files import each other in a circle:", circle.len())];
            for from in &circle {
                let to = edges[*from].iter().filter(|e| circle.contains(e.0));
                lines.extend(
                    to.map(|(to, by)| format!("    {} -> {} ({by})", files[*from].name, files[*to].name)),
                );
            }
            found.push(lines.join("\n"));
        }
    }
    none(found);
}
