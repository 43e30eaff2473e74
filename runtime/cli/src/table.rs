//! Columns of text, aligned with blanks: to be read in a terminal, a pipe or a file alike.

/// How a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows of cells. All rows are indented by two blanks, columns are two blanks apart, and no line ends in blanks.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    align: Vec<Align>,
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
enum Row {
    Cells(Vec<String>),
    Text(String),
}

impl Table {
    /// A table with columns that stand like this.
    pub(crate) fn new(align: &[Align]) -> Self {
        Table { align: align.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(Row::Cells(cells.into_iter().map(Into::into).collect()));
    }

    /// Adds a line that no column minds.
    pub(crate) fn text(&mut self, line: impl Into<String>) {
        self.rows.push(Row::Text(line.into()));
    }

    /// The table, each line with its end.
    pub(crate) fn render(&self) -> String {
        let mut widths = vec![0; self.align.len()];
        for row in &self.rows {
            let Row::Cells(cells) = row else { continue };
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut out = String::new();
        for row in &self.rows {
            let line = match row {
                Row::Text(line) => line.clone(),
                Row::Cells(cells) => {
                    let cells = cells.iter().zip(&widths).zip(&self.align).filter(|((_, w), _)| **w > 0);
                    cells.fold(String::new(), |line, ((cell, width), align)| match align {
                        Align::Left => format!("{line}  {cell:<width$}"),
                        Align::Right => format!("{line}  {cell:>width$}"),
                    })
                }
            };
            out += line.trim_end();
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_empty_ones_go() {
        let mut t = Table::new(&[Align::Left, Align::Left, Align::Right]);
        t.row(["µ", "", "1"]);
        t.text("half way");
        t.row(["long", "", "100"]);
        t.row(["short"]);
        assert_eq!(t.render(), "  µ        1\nhalf way\n  long   100\n  short\n");
    }
}
