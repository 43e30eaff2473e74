//! Lines from a list of layout operations, in the manner of Oppen (1980) and Wadler (2003).
//!
//! A document is flat: texts, places where a line may end, and brackets around them. So nothing here recurses, and
//! the work is linear: whether something fits is answered by looking ahead one line at most.

/// The width that lines keep to where they can, in characters. Comments are not wrapped.
pub const WIDTH: usize = 100;
/// Blanks of one step.
const INDENT: usize = 4;
/// No continuation line begins further right than this, so that deep nesting leaves room for text.
const LAST_ALIGN: usize = 60;
/// Comments behind lines whose lengths differ by more are not put below each other.
const COMMENT_SPREAD: usize = 30;
/// Blanks before a comment that follows code.
const COMMENT_GAP: usize = 2;

/// Breaks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// All of them end their lines, or none.
    Chain,
    /// Each ends its line where what follows it does not fit.
    Fill,
}

/// One operation.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// A text without line ends.
    Text(String),
    /// A blank, unless a line begins or ends here.
    Blank,
    /// A blank or the end of the line, as the innermost group decides.
    Break,
    /// The end of the line, if anything is on it.
    Line,
    /// An empty line.
    Empty,
    /// A comment behind what is on the line, and the line's end.
    Trailing(String),
    /// A comment on a line of its own.
    Own(String),
    /// Opens a group.
    Open(Group),
    /// Closes a group.
    Close,
    /// From here on, lines begin one step further right than the lines around.
    Indent,
    /// From here on, lines begin in this column.
    Align,
    /// Ends the innermost `Indent` or `Align`.
    End,
    /// So many blanks as `pads` says at this place.
    Pad(usize),
}

/// A finished line.
#[derive(Debug, Default)]
struct Line {
    indent: usize,
    code: String,
    /// Characters of indent and code.
    width: usize,
    comment: Option<String>,
}

/// The text of a document. Its lines end in `\n`, and so does the text unless it is empty.
pub(super) fn print(ops: &[Op], pads: &[usize]) -> String {
    let mut p = Printer {
        ops,
        pads,
        lines: Vec::new(),
        line: Line::default(),
        ended: false,
        indents: vec![0],
        groups: Vec::new(),
    };
    for at in 0..ops.len() {
        p.op(at);
    }
    p.finish_line();
    joined(p.lines)
}

struct Printer<'a> {
    ops: &'a [Op],
    pads: &'a [usize],
    lines: Vec<Line>,
    line: Line,
    /// True if a comment has ended the line, so that the next text begins another.
    ended: bool,
    indents: Vec<usize>,
    /// The open groups, and whether the breaks of a chain end their lines.
    groups: Vec<(Group, bool)>,
}

impl Printer<'_> {
    fn op(&mut self, at: usize) {
        match &self.ops[at] {
            Op::Text(text) => {
                if self.ended {
                    self.finish_line();
                }
                self.begin();
                self.line.code.push_str(text);
                self.line.width += text.chars().count();
            }
            Op::Blank => self.blanks(1),
            Op::Pad(id) => self.blanks(self.pads[*id]),
            Op::Break => {
                let ends = match self.groups.last() {
                    Some((Group::Fill, _)) => !self.fits(at + 1, self.column() + 1),
                    Some((Group::Chain, broken)) => *broken,
                    None => false,
                };
                if ends && !self.ended {
                    self.finish_line();
                } else {
                    self.blanks(1);
                }
            }
            Op::Line => self.finish_line(),
            Op::Empty => {
                self.finish_line();
                self.lines.push(Line::default());
            }
            Op::Trailing(text) => {
                self.line.comment = Some(text.clone());
                self.end_by_comment();
            }
            Op::Own(text) => {
                self.finish_line();
                self.begin();
                self.line.comment = Some(text.clone());
                self.end_by_comment();
            }
            Op::Open(kind) => {
                let broken = *kind == Group::Chain && !self.fits_group(at + 1);
                self.groups.push((*kind, broken));
            }
            Op::Close => {
                self.groups.pop();
            }
            Op::Indent => self.indents.push(self.indent() + INDENT),
            Op::Align => {
                let column = self.column();
                let next = if self.ended || column > LAST_ALIGN {
                    (self.indent() + INDENT).min(LAST_ALIGN.max(self.indent()))
                } else {
                    column
                };
                self.indents.push(next);
            }
            Op::End => {
                self.indents.pop();
            }
        }
    }

    fn indent(&self) -> usize {
        self.indents.last().copied().unwrap_or(0)
    }

    fn is_empty(&self) -> bool {
        self.line.code.is_empty() && self.line.comment.is_none()
    }

    /// The column of the next text.
    fn column(&self) -> usize {
        if self.ended || self.line.code.is_empty() { self.indent() } else { self.line.width }
    }

    fn begin(&mut self) {
        if self.is_empty() {
            self.line.indent = self.indent();
            self.line.width = self.line.indent;
        }
    }

    fn blanks(&mut self, count: usize) {
        if !self.ended && !self.line.code.is_empty() {
            self.line.code.extend(std::iter::repeat_n(' ', count));
            self.line.width += count;
        }
    }

    /// A comment ends the line whatever was planned, so chains around it go over several lines anyway.
    fn end_by_comment(&mut self) {
        self.ended = true;
        for group in &mut self.groups {
            group.1 = true;
        }
    }

    fn finish_line(&mut self) {
        if !self.is_empty() {
            let mut line = std::mem::take(&mut self.line);
            let trimmed = line.code.trim_end_matches(' ').len();
            line.width -= line.code.len() - trimmed;
            line.code.truncate(trimmed);
            self.lines.push(line);
        }
        self.ended = false;
    }

    /// True if a chain that begins at `from` fits on the line as far as its end, with the text after it up to the
    /// next place where the line may end.
    fn fits_group(&self, from: usize) -> bool {
        self.measure(from, self.column(), true)
    }

    /// The same for what follows a break of a fill.
    fn fits(&self, from: usize, column: usize) -> bool {
        self.measure(from, column, false)
    }

    /// What is measured, a `chain` or up to the next break of a fill, goes on one line with all groups in it. What
    /// comes behind its end may have breaks of its own.
    fn measure(&self, from: usize, mut column: usize, chain: bool) -> bool {
        let mut inside = usize::from(chain);
        let mut around = self.groups.len();
        let mut behind = false;
        for op in &self.ops[from..] {
            match op {
                Op::Text(text) => column += text.chars().count(),
                Op::Blank => column += 1,
                Op::Pad(id) => column += self.pads[*id],
                Op::Break if inside > 0 && !behind => column += 1,
                Op::Break if inside > 0 => return column <= WIDTH,
                Op::Break => match around.checked_sub(1).map(|i| self.groups[i]) {
                    Some((Group::Chain, false)) => column += 1,
                    _ => return column <= WIDTH,
                },
                Op::Line | Op::Empty | Op::Trailing(_) | Op::Own(_) => return column <= WIDTH,
                Op::Open(_) => inside += 1,
                Op::Close if inside > 0 => {
                    inside -= 1;
                    behind |= inside == 0 && chain;
                }
                Op::Close => (around, behind) = (around.saturating_sub(1), true),
                Op::Indent | Op::Align | Op::End => {}
            }
            if column > WIDTH {
                return false;
            }
        }
        true
    }
}

/// The lines as one text, comments of neighboring lines below each other.
fn joined(mut lines: Vec<Line>) -> String {
    while lines.last().is_some_and(|l| l.code.is_empty() && l.comment.is_none()) {
        lines.pop();
    }
    let columns = comment_columns(&lines);
    let mut out = String::new();
    for (line, column) in lines.iter().zip(columns) {
        if !line.code.is_empty() || line.comment.is_some() {
            out.extend(std::iter::repeat_n(' ', line.indent));
        }
        out.push_str(&line.code);
        if let Some(comment) = &line.comment {
            if !line.code.is_empty() {
                out.extend(std::iter::repeat_n(' ', column - line.width));
            }
            out.push_str(comment);
        }
        out.push('\n');
    }
    out
}

/// For each line with code and a comment, the column of the comment.
fn comment_columns(lines: &[Line]) -> Vec<usize> {
    let mut columns = vec![0; lines.len()];
    let mut run: Vec<usize> = Vec::new();
    let mut close = |run: &mut Vec<usize>| {
        let widest = run.iter().map(|&i| lines[i].width).max().unwrap_or(0);
        for i in run.drain(..) {
            columns[i] = widest + COMMENT_GAP;
        }
    };
    // Of the lines of the run, the narrowest and the widest.
    let (mut low, mut high) = (usize::MAX, 0);
    for (i, line) in lines.iter().enumerate() {
        // A line without code, or one that opens or closes a block, separates.
        if line.code.is_empty() || line.code == "}" {
            close(&mut run);
        }
        if line.comment.is_some() && !line.code.is_empty() {
            if run.is_empty() {
                (low, high) = (line.width, line.width);
            }
            (low, high) = (low.min(line.width), high.max(line.width));
            if high - low > COMMENT_SPREAD {
                close(&mut run);
                (low, high) = (line.width, line.width);
            }
            run.push(i);
        }
        if line.code.ends_with('{') {
            close(&mut run);
        }
    }
    close(&mut run);
    columns
}
