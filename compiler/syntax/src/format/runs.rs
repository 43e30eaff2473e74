//! Neighboring statements of one kind have their parts below each other, as tables have.

/// Parts whose widths differ by more are not put below each other.
const SPREAD: usize = 24;

/// Statements that may stand below each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    /// `let`
    Let,
    /// `x = …` in a `repeat`
    Assign,
    /// `param`
    Param,
    /// `state`
    State,
    /// `input`
    Input,
    /// `loss`, `metric`, `output`
    Result,
    /// A rule of a layout with a scope.
    Scoped,
}

/// The beginning of a statement, up to where blanks may be put in.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowPart {
    /// Its characters; `None` where a comment stands in it.
    pub(super) width: Option<usize>,
    /// The number of the pad behind it.
    pub(super) pad: usize,
}

/// One statement.
#[derive(Debug)]
struct Row {
    kind: RowKind,
    /// Whether it goes on with the row before.
    joins: bool,
    /// Width and pad of each part.
    parts: Vec<(usize, usize)>,
}

/// The statements of one block.
#[derive(Debug, Default)]
pub(super) struct Runs {
    rows: Vec<Row>,
    separate: bool,
}

impl Runs {
    /// What comes next does not go on with what came before.
    pub(super) fn separate(&mut self) {
        self.separate = true;
    }

    /// A statement and its parts.
    pub(super) fn row(&mut self, kind: RowKind, parts: &[RowPart]) {
        match parts.iter().map(|p| Some((p.width?, p.pad))).collect::<Option<Vec<_>>>() {
            Some(parts) => {
                self.rows.push(Row { kind, joins: !self.separate, parts });
                self.separate = false;
            }
            None => self.separate(),
        }
    }

    /// Sets the pads of all rows.
    pub(super) fn align(self, pads: &mut [usize]) {
        let mut run: Vec<&Row> = Vec::new();
        // Of each part of the run, the narrowest and the widest.
        let mut bounds: Vec<(usize, usize)> = Vec::new();
        for row in &self.rows {
            let wider = |(b, p): (&(usize, usize), &(usize, usize))| (b.0.min(p.0), b.1.max(p.0));
            let wide: Vec<(usize, usize)> = bounds.iter().zip(&row.parts).map(wider).collect();
            // Rows of one kind have equally many parts.
            let joins = row.joins
                && run.last().is_some_and(|r| r.kind == row.kind)
                && wide.iter().all(|(low, high)| high - low <= SPREAD);
            if joins {
                bounds = wide;
            } else {
                set(&run, pads);
                run.clear();
                bounds = row.parts.iter().map(|p| (p.0, p.0)).collect();
            }
            run.push(row);
        }
        set(&run, pads);
    }
}

fn set(run: &[&Row], pads: &mut [usize]) {
    let parts = run.first().map_or(0, |r| r.parts.len());
    for i in 0..parts {
        let widest = run.iter().map(|r| r.parts[i].0).max().unwrap_or(0);
        for &(width, pad) in run.iter().map(|r| &r.parts[i]) {
            pads[pad] = widest - width;
        }
    }
}
