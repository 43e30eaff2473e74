//! Mutations of the shipped programs: no panic, no wrong span, no long wait, and an error wherever there is no tree.

use std::time::{Duration, Instant};

use meshwright_diag::{Diagnostic, FileId, Sources, render};
use meshwright_syntax::{parse_layout, parse_mesh, parse_model, parse_mtf_layout};

use crate::support::{MODELS, layouts};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap()
    }
}

const PIECES: [&str; 36] = [
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ";",
    ":",
    "=",
    "->",
    "-",
    "*",
    "**",
    "//",
    "..",
    "\"",
    "\n",
    "let ",
    "dim ",
    "repeat ",
    "model m {",
    "not ",
    " as ",
    " by ",
    "1e999",
    "0x",
    "é",
    "\u{0}",
    "\r\n",
    "\t",
    "@",
    "1.",
    "size s {",
    "99999999999999999999",
    "日本",
];

/// One deletion, insertion, doubling or swap of up to 12 characters, at places in `text`.
fn mutate(text: &mut Vec<char>, random: &mut Random) {
    let at = random.below(text.len() + 1);
    let len = (1 + random.below(12)).min(text.len() - at);
    match random.below(5) {
        0 => drop(text.drain(at..at + len)),
        1 => drop(text.splice(at..at, PIECES[random.below(PIECES.len())].chars())),
        2 => {
            let copy = text[at..at + len].to_vec();
            let to = random.below(text.len() + 1);
            text.splice(to..to, copy);
        }
        3 if text.len() > 1 => {
            let (a, b) = (random.below(text.len()), random.below(text.len()));
            text.swap(a, b);
        }
        _ => text.truncate(if random.below(8) == 0 { at } else { text.len() }),
    }
}

fn sound(sources: &Sources, text: &str, has_tree: bool, diagnostics: &[Diagnostic]) {
    assert_eq!(has_tree, diagnostics.is_empty(), "{text}\n{diagnostics:?}");
    for d in diagnostics {
        let places = d.labels.iter().map(|l| l.span).chain(d.fixes.iter().map(|f| f.span));
        for span in places {
            assert!(text.get(span.start as usize..span.end as usize).is_some(), "{d:?}\n{text}");
        }
        assert!(!d.labels.is_empty(), "{d:?}");
        render::concise(d, sources);
        render::json(d, sources);
    }
    if let Some(d) = diagnostics.first() {
        render::full(d, sources, false);
    }
}

#[test]
fn two_thousand_mutations() {
    let mut texts: Vec<String> = MODELS.iter().map(|(_, t)| (*t).to_string()).collect();
    texts.extend(layouts().into_iter().map(|(_, t)| t));
    texts.push("batch:r;hidden:c".to_string());
    let mut random = Random(1);
    let (mut whole, mut longest) = (0, Duration::ZERO);
    for case in 0..2000 {
        let mut text: Vec<char> = texts[case % texts.len()].chars().collect();
        for _ in 0..1 + random.below(6) {
            mutate(&mut text, &mut random);
        }
        let text: String = text.into_iter().collect();
        let mut sources = Sources::new();
        let file = sources.add("case", text.as_str());
        assert_eq!(file, FileId(0));
        let start = Instant::now();
        let (tree, d) = parse_model(file, &text);
        let (layout, l) = parse_layout(file, &text);
        let (mtf, m) = parse_mtf_layout(file, &text);
        let (mesh, s) = parse_mesh(file, &text);
        longest = longest.max(start.elapsed());
        whole += usize::from(tree.is_some() || layout.is_some());
        sound(&sources, &text, tree.is_some(), &d);
        sound(&sources, &text, layout.is_some(), &l);
        sound(&sources, &text, mtf.is_some(), &m);
        sound(&sources, &text, mesh.is_some(), &s);
    }
    // Mutations must not all be fatal, or nothing behind the first error is tested.
    assert!(whole > 100 && whole < 1900, "{whole}");
    assert!(longest < Duration::from_millis(500), "{longest:?}");
}
