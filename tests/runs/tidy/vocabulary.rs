//! The words of the field: names of the code and texts for users use them, not words of our own for the same things.

use super::rust::{Kind, definitions, literals, sources};
use super::{files, none, read, short};

/// Names of types, functions and modules that mean nothing to a stranger, and what to use instead.
const OWN_NAMES: &[(&str, &str)] = &[
    ("Around", "StridedView"),
    ("BadCall", "InvalidCall"),
    ("Bundle", "Bucket"),
    ("Cut", "split dim, or slice"),
    ("Dice", "RNG state"),
    ("Drawings", "random draws"),
    ("Ended", "RunError"),
    ("Faulty", "FaultInjector"),
    ("Flight", "async collective"),
    ("Goal", "output"),
    ("Habits", "capabilities"),
    ("Here", "device context"),
    ("Home", "slot"),
    ("Kept", "Bernoulli mask"),
    ("Leaf", "program input"),
    ("Letter", "message"),
    ("Lost", "DeviceError"),
    ("Mail", "control channel"),
    ("Misfit", "BufferMismatch"),
    ("Moment", "optimizer state"),
    ("Move", "reshard"),
    ("Needs", "requirements"),
    ("Opened", "session"),
    ("PairF32", "value and index"),
    ("PoolSpread", "unpool"),
    ("PoolTap", "argmax pool"),
    ("Route", "reshard path"),
    ("Room", "crate"),
    ("Slide", "window"),
    ("Standing", "progress"),
    ("Tap", "kernel position"),
    ("Unprepared", "LoweringError"),
    ("Where", "provenance"),
    ("Withdrawn", "Cancelled"),
    ("forget", "drop"),
    ("guarded", "abort on error"),
    ("keep", "store"),
    ("met", "synchronized stop"),
    ("pick", "value_parsers"),
    ("put", "bind"),
    ("settled", "agree on result"),
    ("together", "group launch"),
];

/// Words within names (`FirstCourier`, `courier_of`).
const OWN_PARTS: &[(&str, &str)] = &[
    ("blame", "root cause"),
    ("came to", "entered"),
    ("courier", "proxy thread"),
    ("depart", "pack"),
    ("dice", "RNG state"),
    ("drawings", "random draws"),
    ("pulse", "progress thread"),
    ("unfinished", "partial"),
    ("whereabouts", "last calls"),
    ("widen", "upcast"),
];

/// Phrases of our own in what users read.
const OWN_PHRASES: &[(&str, &str)] = &[
    ("a gather that no rule implies", "implicit all-gather"),
    ("a mistake of meshwright", "internal error: a bug in Meshwright"),
    ("a mistake in meshwright", "internal error: a bug in Meshwright"),
    ("a number that does not exist", "invalid constant"),
    ("a thing of another kind", "wrong kind of argument"),
    ("a training that does not work", "invalid `train` block"),
    ("asked for different things", "started with different settings"),
    ("bundle", "bucket"),
    ("courier", "proxy thread"),
    ("defined by itself", "cyclic definition"),
    ("dice", "RNG state"),
    ("drawings", "random draws"),
    ("hands on its", "donates its"),
    ("not built yet", "not implemented yet"),
    ("not yet built", "not implemented yet"),
    ("on a gpu nothing has run", "not yet run on a real GPU"),
    ("sign of life", "heartbeat"),
    ("signs of life", "heartbeats"),
    ("still to be taken", "not yet reduced"),
    ("unfinished", "partial"),
    ("whereabouts", "last calls"),
];

/// Beginnings of words in British spelling.
const BRITISH: &[(&str, &str)] = &[
    ("analys", "analyz (but `analysis`, `analyses`)"),
    ("artefact", "artifact"),
    ("behaviour", "behavior"),
    ("catalogue", "catalog"),
    ("centre", "center"),
    ("colour", "color"),
    ("defence", "defense"),
    ("favour", "favor"),
    ("generalis", "generaliz"),
    ("grey", "gray"),
    ("honour", "honor"),
    ("initialis", "initializ"),
    ("labelled", "labeled"),
    ("licence", "license"),
    ("maximis", "maximiz"),
    ("minimis", "minimiz"),
    ("modell", "model"),
    ("neighbour", "neighbor"),
    ("normalis", "normaliz"),
    ("optimis", "optimiz"),
    ("organis", "organiz"),
    ("parallelis", "paralleliz (but `parallelism`)"),
    ("quantis", "quantiz"),
    ("recognis", "recogniz"),
    ("serialis", "serializ"),
    ("specialis", "specializ"),
    ("summaris", "summariz"),
    ("synchronis", "synchroniz"),
    ("travell", "travel"),
    ("vectoris", "vectoriz"),
];

/// Words that begin like British ones.
const AMERICAN: [&str; 3] = ["analysis", "analyses", "parallelism"];

/// `FirstCourier` and `first_courier` as `first courier`.
fn spaced(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() && !out.ends_with(' ') {
            out.push(' ');
        }
        out.extend(if c == '_' { ' '.to_lowercase() } else { c.to_lowercase() });
    }
    out
}

/// Whether a phrase stands in a text as words of their own; both in small letters.
fn says(text: &str, phrase: &str) -> bool {
    let letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.match_indices(phrase)
        .any(|(i, _)| !letter(text[..i].chars().last()) && !letter(text[i + phrase.len()..].chars().next()))
}

/// The words of a text that are spelled as in Britain.
fn british(text: &str) -> Vec<(&'static str, &'static str)> {
    let words = || text.split(|c: char| !c.is_alphabetic()).filter(|w| !AMERICAN.contains(w));
    BRITISH.iter().copied().filter(|(begin, _)| words().any(|w| w.starts_with(begin))).collect()
}

#[test]
fn names_are_those_of_the_field() {
    let mut found = Vec::new();
    for s in sources() {
        let mut problem = |name: &str, line: usize, instead: &str| {
            found.push(format!("{}:{line}: `{name}`: the field says {instead}", s.name));
        };
        for d in definitions(&s.items, false) {
            let words = spaced(&d.name);
            for (_, instead) in OWN_NAMES.iter().filter(|w| w.0 == d.name) {
                problem(&d.name, d.line, instead);
            }
            let parts = OWN_PARTS.iter().copied().filter(|w| says(&words, w.0));
            for (_, instead) in parts.chain(british(&words)) {
                problem(&d.name, d.line, instead);
            }
            if d.kind == Kind::Module && OWN_NAMES.iter().any(|w| spaced(w.0) == words && w.0 != d.name) {
                problem(&d.name, d.line, "another word");
            }
        }
    }
    none(found);
}

/// What users read: pages, and texts in the code; with the places.
fn texts() -> Vec<(String, usize, String)> {
    let mut out = Vec::new();
    for path in files("md") {
        let name = short(&path);
        // Expectations of cases repeat what the code says.
        if !name.starts_with("tests/") {
            let page = paragraphs(&read(&path)).into_iter();
            out.extend(page.map(|(line, text)| (name.clone(), line, text.split('`').step_by(2).collect())));
        }
    }
    for s in sources() {
        // What documents the arguments of the command is its `--help`.
        let help = s.name.starts_with("runtime/cli/src/args");
        out.extend(literals(&s.items, help).into_iter().map(|(line, text)| (s.name.clone(), line, text)));
    }
    out
}

#[test]
fn texts_speak_as_the_field_does() {
    let mut found = Vec::new();
    for (name, line, text) in texts() {
        let text = text.to_lowercase();
        let phrases = OWN_PHRASES.iter().copied().filter(|w| says(&text, w.0));
        for (word, instead) in phrases.chain(british(&text)) {
            found.push(format!("{name}:{line}: \"{word}\": write {instead}"));
        }
    }
    none(found);
}

#[test]
fn what_is_not_there_yet_has_a_link() {
    let mut problems = Vec::new();
    for path in files("md") {
        let name = short(&path);
        if !name.starts_with("docs/") && name.contains('/') {
            continue;
        }
        let parts = paragraphs(&read(&path));
        let without = parts.iter().filter(|(_, p)| says(&p.to_lowercase(), "not yet") && !p.contains("]("));
        problems.extend(
            without.map(|(line, _)| format!("{name}:{line}: \"not yet\" without a link to what is planned")),
        );
    }
    none(problems);
}

/// The paragraphs of a page, entries of its lists and rows of its tables, each with its first line; without code.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut out = vec![(0, String::new())];
    let mut code = false;
    for (i, line) in text.lines().enumerate() {
        code ^= line.starts_with("```");
        let line = if code || line.starts_with("```") { "" } else { line };
        if line.is_empty() || line.starts_with(['|', '#']) || line.trim_start().starts_with("- ") {
            out.push((i + 1, String::new()));
        }
        if let Some((_, part)) = out.last_mut() {
            part.push_str(line.trim());
            part.push(' ');
        }
    }
    out
}

#[test]
fn words_are_found_as_words() {
    assert_eq!(spaced("FirstCourier"), "first courier");
    assert_eq!(spaced("came_to"), "came to");
    assert!(says("the first courier", "courier") && !says("the couriers", "courier"));
    assert!(!british("the neighbours").is_empty() && british("an analysis of parallelism").is_empty());
}
