//! Syntax errors in users' words.

use meshwright_diag::foreign::{Advice, WordPlace, advice};
use meshwright_diag::{Diagnostic, FileId, Span, codes};
use pest::RuleType;
use pest::error::{Error, ErrorVariant, InputLocation};

use crate::scan::{Scan, TokenKind};

/// Work that one parse may do. A file of the largest size needs about a tenth of it.
const CALL_LIMIT: usize = 200_000_000;

/// Sets pest's limit, which is one for the whole process.
pub(crate) fn limit_calls() {
    pest::set_call_limit(std::num::NonZeroUsize::new(CALL_LIMIT));
}

/// Where a parse that began at byte `base` failed, and what the rules say would have fitted.
/// `None` for the place means that the call limit was met.
pub(crate) fn failure<R: RuleType>(
    error: &Error<R>,
    base: usize,
    words: impl Fn(&R) -> Option<&'static str>,
) -> (Option<usize>, Vec<&'static str>) {
    let ErrorVariant::ParsingError { positives, .. } = &error.variant else { return (None, Vec::new()) };
    let at = match error.location {
        InputLocation::Pos(p) | InputLocation::Span((p, _)) => base + p,
    };
    let mut expected: Vec<&'static str> = positives.iter().filter_map(words).collect();
    expected.sort_unstable();
    expected.dedup();
    (Some(at), sift(expected))
}

/// Keeps what a reader would have thought of: where a bracket may close, that an expression may also go on is
/// noise.
fn sift(mut expected: Vec<&'static str>) -> Vec<&'static str> {
    let has = |e: &[&str], words: &[&str]| e.iter().any(|x| words.contains(x));
    if has(&expected, &["`)`", "`]`"]) {
        expected.retain(|e| !["`=`", "`;`"].contains(e));
    } else if has(&expected, &["`=`"]) {
        expected.retain(|e| *e != "`,`");
    }
    let weak = ["an operator", "`(`", "`[`", "`as`", "`*`", "`..`", "`by`", "`in`", "`once`", "`sharing`"];
    if expected.iter().any(|e| !weak.contains(e)) {
        expected.retain(|e| !weak.contains(e));
    }
    // Words before signs; what closes or ends comes last.
    expected
        .sort_by_key(|e| (e.starts_with("the "), e.starts_with('`'), ["`)`", "`]`", "`}`"].contains(e), *e));
    expected
}

/// "`,`, `;` or `]`".
pub(crate) fn one_of(expected: &[&str]) -> String {
    match expected {
        [] => "something else".to_string(),
        [one] => (*one).to_string(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

/// The token at `index` as messages name it, and its place; behind the last token, the end of `end`.
pub(crate) fn found(file: FileId, text: &str, scan: &Scan, index: usize, end: &str) -> (String, Span) {
    match scan.tokens.get(index) {
        Some(token) => {
            let found = &text[token.start..token.end];
            let short: String = found.chars().take(30).collect();
            let dots = if short.len() < found.len() { "…" } else { "" };
            (format!("`{short}{dots}`"), Span::new(file, token.start, token.end))
        }
        None => {
            let at = scan.tokens.last().map_or(text.len(), |t| t.end);
            (end.to_string(), Span::new(file, at, at))
        }
    }
}

/// The diagnostic for token `index` where `expected` would have fitted, with what people of other languages
/// need to hear: `signs` says in which language's place it stands.
pub(crate) fn unexpected(
    file: FileId,
    text: &str,
    scan: &Scan,
    index: usize,
    expected: &[&str],
    end: &str,
    signs: WordPlace,
) -> Diagnostic {
    let (what, span) = found(file, text, scan, index, end);
    let wanted = one_of(expected);
    let d = Diagnostic::error(codes::E0101, format!("expected {wanted}, found {what}"))
        .at(span, format!("expected {wanted}"));
    let Some(token) = scan.tokens.get(index) else { return d };
    let replace = |d: Diagnostic, with: &str| d.fix(format!("write `{with}`"), span, with, false);
    let found = &text[token.start..token.end];
    match advice_for(text, scan, index, expected, signs) {
        Some(Advice::Name(here)) => return replace(d, here),
        Some(advice) => return d.help(advice.text(str::to_string)),
        None => {}
    }
    match found {
        // With a word before it, what follows is no divisor.
        "#" => replace(d, if token.leads { "//" } else { "// note:" }),
        ";" => d.fix("leave it out: nothing stands between statements", span, "", false),
        "'" | "“" | "”" => d.help("strings stand in `\"`"),
        "." if signs == WordPlace::Sign && method(text, scan, index).is_some() => {
            let d = d.note(
                "values have no attributes and no methods: functions stand before them, as in `relu(x)`",
            );
            let word = method(text, scan, index).unwrap_or("");
            match advice(WordPlace::Method, word).or_else(|| advice(WordPlace::Call, word)) {
                Some(advice) => d.help(format!("`.{word}`: {}", advice.text(str::to_string))),
                None => d,
            }
        }
        "." if !token.leads => d.help("a number has digits on both sides of its point: `0.5`, `1.0`"),
        "as" | "sharing" if token.kind == TokenKind::Word && signs == WordPlace::Sign => {
            let word = found;
            let d = d.help(format!("`{word}` stands right behind the `)` of the call whose parameters it is for: `f(x) {word} name`"));
            match moved_label(text, scan, index) {
                Some((from, to, written)) => {
                    let whole = Span::new(file, from, to);
                    d.fix(format!("put `{word}` behind the call"), whole, written, false)
                }
                None => d,
            }
        }
        "shared" if index >= 2 && &text[scan.tokens[index - 2].start..scan.tokens[index - 2].end] == "as" => {
            let (from, name) = (scan.tokens[index - 2], scan.tokens[index - 1]);
            let name = &text[name.start..name.end];
            let whole = Span::new(file, from.start, token.end);
            d.fix(format!("for the parameters of the call `{name}`"), whole, format!("sharing {name}"), false)
        }
        "==" if expected == ["`=`"] => replace(d, "="),
        _ if token.kind == TokenKind::Strange && found.chars().all(char::is_alphabetic) => {
            d.note("names have the letters `a` to `z` and `A` to `Z`, digits and `_`")
        }
        _ if token.kind == TokenKind::Strange => d.note("this character has no meaning here"),
        _ if token.kind == TokenKind::Number && found.bytes().any(|b| b.is_ascii_alphabetic()) => {
            d.note("a number is digits with at most one point and an exponent: `10_000`, `0.5`, `1e-9`")
        }
        _ => d,
    }
}

/// Of a call whose dims are moved before it has its label, `f(x)[d -> e] as name`: from where to where it is to be written
/// otherwise, and how.
fn moved_label(text: &str, scan: &Scan, index: usize) -> Option<(usize, usize, String)> {
    let at = |i: usize| scan.tokens.get(i).map(|t| &text[t.start..t.end]);
    let name = scan.tokens.get(index + 1).filter(|t| t.kind == TokenKind::Word)?;
    let mut begin = index;
    while at(begin.checked_sub(1)?)? == "]" {
        let mut open = 0;
        loop {
            begin = begin.checked_sub(1)?;
            match at(begin)? {
                "]" => open += 1,
                "[" => open -= 1,
                _ => {}
            }
            if open == 0 {
                break;
            }
        }
    }
    let call =
        scan.tokens.get(begin.checked_sub(1)?).filter(|t| begin < index && &text[t.start..t.end] == ")")?;
    let (dims, label) =
        (&text[call.end..scan.tokens[index - 1].end], &text[scan.tokens[index].start..name.end]);
    Some((call.end, name.end, format!(" {label}{}", dims.trim_start())))
}

/// What to write for a word or sign of another language, by where it stands.
fn advice_for(text: &str, scan: &Scan, index: usize, expected: &[&str], signs: WordPlace) -> Option<Advice> {
    let token = scan.tokens.get(index)?;
    let word = &text[token.start..token.end];
    if token.kind != TokenKind::Word {
        return advice(signs, word);
    }
    let named = scan.tokens.get(index + 1).is_some_and(|t| &text[t.start..t.end] == "=");
    let setting = expected.iter().any(|e| e.ends_with(" setting"));
    let places = [
        (named && !setting, WordPlace::Argument),
        (setting, WordPlace::Setting),
        (true, WordPlace::Statement),
    ];
    let mut places = places.into_iter().filter(|p| p.0 && signs == WordPlace::Sign);
    places.find_map(|(_, place)| advice(place, word))
}

/// The word right behind a point.
fn method<'t>(text: &'t str, scan: &Scan, index: usize) -> Option<&'t str> {
    let (point, word) = (scan.tokens.get(index)?, scan.tokens.get(index + 1)?);
    let close = point.end == word.start && word.kind == TokenKind::Word && !point.leads;
    close.then(|| &text[word.start..word.end])
}

/// The diagnostic where a parse met the call limit.
pub(crate) fn too_much_work(span: Span) -> Diagnostic {
    Diagnostic::error(codes::E0104, "this is too complicated to parse")
        .at(span, "the part that begins here")
        .help("give parts of it names, or cut the file into several")
}
