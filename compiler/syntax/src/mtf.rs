//! Mesh TensorFlow's form of meshes and layouts, `r:2;c:2` and `batch:r;hidden:c`, as the command line takes it.

use meshwright_diag::{Diagnostic, FileId, Outcome, Span, codes, has_errors};

use crate::ast::{
    AxisDecl, DimPattern, LayoutFile, LayoutItem, LayoutKind, MeshDecl, MeshOption, Name, Rule, Scope,
};
use crate::layout::{too_large, whole_number};

/// What may stand between two pairs; also several of them.
const BETWEEN: [char; 7] = [' ', ',', '.', ';', '\t', '\r', '\n'];

/// `a:b` with the places of both.
struct Halves<'a> {
    left: (&'a str, Span),
    right: (&'a str, Span),
    span: Span,
}

/// Parses `batch:r;hidden:c`. The delimiters are those of Mesh TensorFlow: blank, `,`, `.` and `;`.
pub fn parse_mtf_layout(file: FileId, text: &str) -> Outcome<LayoutFile> {
    let mut diagnostics = Vec::new();
    let mut items = Vec::new();
    for pair in halves(file, text, &[':'], "dim:axis", &mut diagnostics) {
        let dim = name(pair.left, "a dim", &mut diagnostics);
        let axis = name(pair.right, "an axis", &mut diagnostics);
        if let (Some(dim), Some(axis)) = (dim, axis) {
            let rule = Rule {
                scope: Scope::default(),
                dims: vec![DimPattern::Dim(dim)],
                axes: vec![axis],
                when_free: None,
            };
            items.push(LayoutItem { kind: LayoutKind::Rule(rule), span: pair.span });
        }
    }
    finish(LayoutFile { items }, diagnostics)
}

/// Parses a mesh: `r=2,c=2`, Mesh TensorFlow's `r:2;c:2`, or sizes alone, `2x2`. An empty text is the mesh of one device.
pub fn parse_mesh(file: FileId, text: &str) -> Outcome<MeshOption> {
    let mut diagnostics = Vec::new();
    if let Some(sizes) = sizes(file, text, &mut diagnostics) {
        return finish(MeshOption::Sizes { sizes, span: Span::new(file, 0, text.len()) }, diagnostics);
    }
    let mut axes = Vec::new();
    for pair in halves(file, text, &['=', ':'], "axis=size", &mut diagnostics) {
        let name = name(pair.left, "an axis", &mut diagnostics);
        let (digits, size_span) = pair.right;
        if !digits.starts_with(|c: char| c.is_ascii_digit())
            || !digits.chars().all(|c| c.is_ascii_digit() || c == '_')
        {
            diagnostics.push(
                Diagnostic::error(codes::E0101, format!("expected the size of the axis, found `{digits}`"))
                    .at(size_span, "expected a whole number"),
            );
        } else if let Some(size) = whole_number(digits) {
            axes.extend(name.map(|name| AxisDecl { name, size, size_span }));
        } else {
            diagnostics.push(too_large(size_span));
        }
    }
    finish(MeshOption::Named(MeshDecl { axes, span: Span::new(file, 0, text.len()) }), diagnostics)
}

/// `2x4`: whole numbers between `x`; none where the text is of another form.
fn sizes(file: FileId, text: &str, diagnostics: &mut Vec<Diagnostic>) -> Option<Vec<(u64, Span)>> {
    let number = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_digit()) && part.chars().all(|c| c.is_ascii_digit() || c == '_')
    };
    if text.len() > crate::MAX_BYTES || !text.split('x').all(|part| number(part.trim_matches(' '))) {
        return None;
    }
    let (mut out, mut at) = (Vec::new(), 0);
    for part in text.split('x') {
        let start = at + (part.len() - part.trim_start_matches(' ').len());
        let digits = part.trim_matches(' ');
        let span = Span::new(file, start, start + digits.len());
        match whole_number(digits) {
            Some(size) => out.push((size, span)),
            None => diagnostics.push(too_large(span)),
        }
        at += part.len() + 1;
    }
    Some(out)
}

fn finish<T>(tree: T, mut diagnostics: Vec<Diagnostic>) -> Outcome<T> {
    diagnostics.sort_by_key(|d| d.labels.first().map_or(0, |l| l.span.start));
    diagnostics.truncate(crate::MAX_ERRORS);
    (if has_errors(&diagnostics) { None } else { Some(tree) }, diagnostics)
}

/// Cuts the text into pairs. Blanks around the sign between two halves are allowed.
fn halves<'a>(
    file: FileId,
    text: &'a str,
    signs: &[char],
    form: &str,
    diagnostics: &mut Vec<Diagnostic>,
) -> Vec<Halves<'a>> {
    if text.len() > crate::MAX_BYTES {
        diagnostics.push(
            Diagnostic::error(
                codes::E0103,
                format!("{} bytes; at most {} are read", text.len(), crate::MAX_BYTES),
            )
            .at(Span::new(file, 0, 0), ""),
        );
        return Vec::new();
    }
    let mut out = Vec::new();
    let mut at = 0;
    // Any blank stands between two pairs, as it may stand beside a sign.
    while let Some(skip) = text[at..].find(|c: char| !BETWEEN.contains(&c) && !c.is_whitespace()) {
        if diagnostics.len() >= crate::MAX_ERRORS {
            break;
        }
        let start = at + skip;
        // A piece ends at a delimiter, but blanks beside a sign do not end it.
        let (mut end, mut after_sign) = (start, false);
        while let Some(c) = text[end..].chars().next() {
            if c.is_whitespace() {
                let blanks = text[end..].find(|c: char| !c.is_whitespace()).unwrap_or(text.len() - end);
                if !after_sign && !text[end + blanks..].starts_with(signs) {
                    break;
                }
                end += blanks;
            } else if BETWEEN.contains(&c) {
                break;
            } else {
                after_sign = signs.contains(&c);
                end += c.len_utf8();
            }
        }
        at = end;
        let end = start + text[start..end].trim_end().len();
        let piece = &text[start..end];
        let span = Span::new(file, start, end);
        let mut cut = piece.split(signs);
        match (cut.next(), cut.next(), cut.next()) {
            (Some(left), Some(right), None) if !left.trim().is_empty() && !right.trim().is_empty() => {
                let left_end = start + left.trim_end().len();
                let right_start = end - right.trim_start().len();
                out.push(Halves {
                    left: (left.trim(), Span::new(file, start, left_end)),
                    right: (right.trim(), Span::new(file, right_start, end)),
                    span,
                });
            }
            _ => diagnostics.push(
                Diagnostic::error(codes::E0101, format!("expected `{form}`, found `{}`", shown(piece)))
                    .at(span, format!("expected `{form}`")),
            ),
        }
    }
    out
}

fn shown(text: &str) -> String {
    text.chars().take(30).collect()
}

fn name((text, span): (&str, Span), what: &str, diagnostics: &mut Vec<Diagnostic>) -> Option<Name> {
    let word = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if word && !text.starts_with(|c: char| c.is_ascii_digit()) {
        return Some(Name { text: text.to_string(), span });
    }
    diagnostics.push(
        Diagnostic::error(codes::E0101, format!("`{}` cannot be the name of {what}", shown(text)))
            .at(span, "letters, digits and `_`, not beginning with a digit"),
    );
    None
}
