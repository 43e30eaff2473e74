//! Fixes applied to texts: the sure ones, if they do not overlap.

use crate::{Code, Diagnostic, FileId, Fix, Sources, Span};

/// A fix that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The code of the diagnostic that it repairs.
    pub code: Code,
    /// The title of the fix.
    pub title: String,
    /// Its place in the text as it was.
    pub span: Span,
    /// The replaced text; empty for an insertion.
    pub before: String,
    /// The new text.
    pub after: String,
}

/// A text with its fixes applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The text's number.
    pub file: FileId,
    /// The new text.
    pub text: String,
    /// The applied fixes, in order of place; never empty.
    pub applied: Vec<Applied>,
}

/// The fix of a diagnostic that a tool may apply: the only one that is sure; or, with `unsure`, the only one that there is. A
/// diagnostic with several offers a choice, and none of them is taken.
pub fn applicable<'d>(diagnostic: &'d Diagnostic, sources: &Sources, unsure: bool) -> Option<&'d Fix> {
    // Data, checkpoints and options refer to what a model declares; what a layout declares has no meaning elsewhere.
    let of_model = diagnostic.code.id.starts_with("E02");
    let certain = |f: &&Fix| f.sure && !(of_model && renames_most(f, sources));
    let sure: Vec<&Fix> = diagnostic.fixes.iter().filter(certain).collect();
    match (sure.as_slice(), diagnostic.fixes.as_slice()) {
        ([fix], _) => Some(fix),
        ([], [fix]) if unsure => Some(fix),
        _ => None,
    }
}

/// Applies to each text of which `may` says so the fixes that are [`applicable`]. Of fixes that overlap, or insert at one place,
/// the first in the text is applied: what is left of the others shows when the new text is read again.
pub fn repair(
    diagnostics: &[Diagnostic],
    sources: &Sources,
    unsure: bool,
    may: &dyn Fn(FileId) -> bool,
) -> Vec<Repaired> {
    let mut sure: Vec<(&Fix, Code)> = Vec::new();
    for d in diagnostics {
        if let Some(fix) = applicable(d, sources, unsure)
            && may(fix.span.file)
            && changes(fix, sources)
        {
            sure.push((fix, d.code));
        }
    }
    sure.sort_by_key(|(f, _)| f.span);
    let mut out: Vec<Repaired> = Vec::new();
    for (fix, code) in sure {
        let same = out.last().is_some_and(|r| r.file == fix.span.file);
        if !same {
            out.push(Repaired { file: fix.span.file, text: String::new(), applied: Vec::new() });
        }
        let Some(mine) = out.last_mut() else { continue };
        let free = mine
            .applied
            .last()
            .is_none_or(|last| fix.span.start >= last.span.end && fix.span.start > last.span.start);
        if free {
            mine.applied.push(Applied {
                code,
                title: fix.title.clone(),
                span: fix.span,
                before: sources.slice(fix.span).to_string(),
                after: fix.replacement.clone(),
            });
        }
    }
    for r in &mut out {
        let old = sources.text(r.file);
        let mut at = 0;
        for a in &r.applied {
            r.text.push_str(&old[at..a.span.start as usize]);
            r.text.push_str(&a.after);
            at = a.span.end as usize;
        }
        r.text.push_str(&old[at..]);
    }
    out
}

/// Whether a fix writes a name that stands only where it is declared, or less often than the other one: then it is perhaps the
/// misspelled one, and the fix would carry its mistake to every use.
fn renames_most(fix: &Fix, sources: &Sources) -> bool {
    let (text, range) = (sources.text(fix.span.file), fix.span.start as usize..fix.span.end as usize);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let Some(old) = text.get(range).filter(|old| !old.is_empty() && old.chars().all(is_word)) else {
        return false;
    };
    // What comments say counts for neither. A division without blanks is cut off too, for both alike.
    let code = || text.lines().filter_map(|l| l.split("//").next());
    let count = |name: &str| code().flat_map(|l| l.split(|c| !is_word(c))).filter(|w| *w == name).count();
    // What stands nowhere is declared elsewhere: a function, or a name of another file.
    let declared = count(&fix.replacement);
    declared == 1 || declared > 0 && count(old) > declared
}

/// True if a fix lies within its text and changes it.
fn changes(fix: &Fix, sources: &Sources) -> bool {
    let range = fix.span.start as usize..fix.span.end as usize;
    sources.text(fix.span.file).get(range).is_some_and(|old| old != fix.replacement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes;

    fn fixed(text: &str, fixes: &[(usize, usize, &str, bool)]) -> Option<String> {
        let mut sources = Sources::new();
        let file = sources.add("a", text);
        let one = |(start, end, with, sure): &(usize, usize, &str, bool)| {
            Diagnostic::error(codes::E0201, "m").fix("t", Span::new(file, *start, *end), *with, *sure)
        };
        let all: Vec<Diagnostic> = fixes.iter().map(one).collect();
        repair(&all, &sources, false, &|_| true).into_iter().next().map(|r| r.text)
    }

    #[test]
    fn fixes_apply_in_order_of_place_and_never_overlap() {
        let text = "one two three";
        assert_eq!(fixed(text, &[(8, 13, "3", true), (0, 3, "1", true)]), Some("1 two 3".into()));
        assert_eq!(fixed(text, &[(0, 7, "both", true), (4, 7, "2", true)]), Some("both three".into()));
        assert_eq!(fixed(text, &[(4, 7, "2", true), (4, 7, "2", true)]), Some("one 2 three".into()));
        assert_eq!(fixed(text, &[(3, 3, "!", true), (3, 3, "?", true)]), Some("one! two three".into()));
        assert_eq!(fixed(text, &[(0, 3, "1", true), (3, 3, "!", true)]), Some("1! two three".into()));
        assert_eq!(fixed(text, &[(0, 3, "1", false)]), None);
        assert_eq!(fixed(text, &[(0, 3, "one", true)]), None);
        assert_eq!(fixed(text, &[(0, 99, "1", true)]), None);
        assert_eq!(fixed("aé", &[(0, 2, "1", true)]), None);
        assert_eq!(fixed("aé", &[(1, 3, "e", true)]), Some("ae".into()));
    }

    /// `size` is declared as `sise`: whether by mistake is not known while no use is spelled so.
    #[test]
    fn uses_are_not_renamed_to_a_name_that_none_of_them_has() {
        let found = |text: &str| {
            let mut sources = Sources::new();
            let file = sources.add("a", text);
            let places = text.match_indices("size").map(|(at, _)| Span::new(file, at, at + 4));
            let unknown = |at| Diagnostic::error(codes::E0201, "m").fix("t", at, "sise", true);
            let all: Vec<Diagnostic> = places.map(unknown).collect();
            repair(&all, &sources, false, &|_| true).into_iter().next().map(|r| r.text)
        };
        assert_eq!(found("dim sise = 3 // sise\nx[size] y[size]"), None);
        assert_eq!(found("dim sise = 3\nx[size]"), None);
        assert_eq!(found("dim sise = 3\nx[size] y[sise]"), Some("dim sise = 3\nx[sise] y[sise]".into()));
        assert_eq!(found("x[size] y[size]"), Some("x[sise] y[sise]".into()));
    }

    #[test]
    fn a_choice_is_left_to_people_and_other_texts_alone() {
        let mut sources = Sources::new();
        let (a, b) = (sources.add("a", "x"), sources.add("b", "y"));
        let d = Diagnostic::error(codes::E0201, "m");
        let two = d.clone().fix("t", Span::new(a, 0, 1), "1", true).fix("t", Span::new(a, 0, 1), "2", true);
        assert_eq!(repair(std::slice::from_ref(&two), &sources, true, &|_| true), []);
        let one = d.clone().fix("t", Span::new(b, 0, 1), "2", true).fix("or", Span::new(b, 0, 1), "3", false);
        assert_eq!(repair(std::slice::from_ref(&one), &sources, false, &|f| f == a), []);
        let done = repair(&[one], &sources, false, &|f| f == b);
        assert_eq!((done[0].file, done[0].text.as_str(), done[0].applied[0].before.as_str()), (b, "2", "y"));
        let unsure = d.clone().fix("t", Span::new(a, 0, 1), "z", false);
        assert_eq!(repair(std::slice::from_ref(&unsure), &sources, false, &|_| true), []);
        assert_eq!(repair(std::slice::from_ref(&unsure), &sources, true, &|_| true)[0].text, "z");
        let choice = unsure.fix("t", Span::new(a, 0, 1), "w", false);
        assert_eq!(repair(&[choice], &sources, true, &|_| true), []);
    }
}
