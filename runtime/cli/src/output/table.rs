//! Columns of text, aligned with blanks: to be read in a terminal, a pipe or a file alike.

use anstyle::Style;
use meshwright_diag::render::printable;
use std::borrow::Cow;

/// The widest that a column is. Longer cells stand out of it: one name of thousands of letters would else widen every row.
const WIDEST: usize = 200;

/// How a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// What is written on; by default a pipe or a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Screen {
    /// Characters of a line; none where lines may be of any length.
    pub(crate) width: Option<usize>,
    /// Lines that are seen at once; none where that means nothing.
    pub(crate) height: Option<usize>,
    /// Whether it shows color.
    pub(crate) color: bool,
}

impl Screen {
    /// A line as it is shown: cut where it is too long, in color, and without what would steer the terminal. It has no line end
    /// yet.
    pub(crate) fn line<'a>(&self, parts: impl IntoIterator<Item = (&'a str, Style)>) -> String {
        let parts: Vec<(Cow<'_, str>, Style)> =
            parts.into_iter().map(|(text, style)| (printable(text), style)).collect();
        let full: usize = parts.iter().map(|p| p.0.chars().count()).sum();
        let cut = self.width.filter(|w| full > *w);
        let mut left = cut.map_or(full, |w| w.saturating_sub(1));
        let mut out = String::new();
        for (text, style) in parts {
            let text: String = text.chars().take(left).collect();
            left -= text.chars().count();
            if text.trim().is_empty() || style == Style::new() || !self.color {
                out += &text;
            } else {
                out += &format!("{style}{text}{style:#}");
            }
        }
        if cut.is_some() {
            out.push('…');
        }
        out
    }
}

/// A text as a cell has it: in one line.
fn in_a_cell(text: String) -> String {
    match printable(&text) {
        shown if shown.contains(['\n', '\t', '\r']) => {
            shown.replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r")
        }
        shown => shown.into_owned(),
    }
}

/// A text with so many blanks that it is `width` wide: the standard library panics where that is more than 65,535.
pub(crate) fn padded(text: &str, width: usize, align: Align) -> String {
    let blanks = " ".repeat(width.saturating_sub(text.chars().count()));
    match align {
        Align::Left => format!("{text}{blanks}"),
        Align::Right => format!("{blanks}{text}"),
    }
}

/// Rows of cells. All rows are indented by two blanks, columns are two blanks apart, and no line ends in blanks.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    align: Vec<Align>,
    styles: Vec<Style>,
    dispensable: Vec<usize>,
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
enum Row {
    Cells(Vec<String>, Option<Style>),
    Text(String, Style),
}

impl Table {
    /// A table with columns that stand like this.
    pub(crate) fn new(align: &[Align]) -> Self {
        let styles = vec![Style::new(); align.len()];
        Table { align: align.to_vec(), styles, dispensable: Vec::new(), rows: Vec::new() }
    }

    /// Colors a column.
    pub(crate) fn style(mut self, column: usize, style: Style) -> Self {
        self.styles[column] = style;
        self
    }

    /// The columns that are left out where the table is too wide, the first of them first.
    pub(crate) fn dispensable(mut self, columns: &[usize]) -> Self {
        self.dispensable = columns.to_vec();
        self
    }

    /// Adds a row; missing cells are empty.
    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(Row::Cells(cells.into_iter().map(|c| in_a_cell(c.into())).collect(), None));
    }

    /// Adds a row of titles.
    pub(crate) fn titles<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let cells = cells.into_iter().map(|c| in_a_cell(c.into())).collect();
        self.rows.push(Row::Cells(cells, Some(Style::new().dimmed())));
    }

    /// Adds a line that no column minds.
    pub(crate) fn text(&mut self, line: impl Into<String>, style: Style) {
        self.rows.push(Row::Text(line.into(), style));
    }

    /// The table, each line with its end, for a pipe or a file.
    pub(crate) fn render(&self) -> String {
        self.render_on(&Screen::default())
    }

    /// The table, each line with its end.
    pub(crate) fn render_on(&self, screen: &Screen) -> String {
        let widths = self.widths(screen.width);
        let mut out = String::new();
        for row in &self.rows {
            let line = match row {
                Row::Text(line, style) => screen.line([(line.as_str(), *style)]),
                Row::Cells(cells, style) => {
                    let last = cells.iter().zip(&widths).rposition(|(c, w)| *w > 0 && !c.trim().is_empty());
                    let shown = cells.iter().enumerate().take(last.map_or(0, |l| l + 1));
                    let padded: Vec<(String, Style)> = shown
                        .filter(|(i, _)| widths[*i] > 0)
                        .map(|(i, cell)| {
                            let cell = match self.align[i] {
                                Align::Left if Some(i) == last => cell.trim_end().to_string(),
                                align => padded(cell, widths[i], align),
                            };
                            (format!("  {cell}"), style.unwrap_or(self.styles[i]))
                        })
                        .collect();
                    screen.line(padded.iter().map(|(cell, style)| (cell.as_str(), *style)))
                }
            };
            out += &line;
            out.push('\n');
        }
        out
    }

    /// The widths of the columns; 0 where one is not shown, as one that has nothing below its title.
    fn widths(&self, most: Option<usize>) -> Vec<usize> {
        let mut widths = vec![0; self.align.len()];
        let mut says = vec![false; self.align.len()];
        let mut titled = false;
        for row in &self.rows {
            let Row::Cells(cells, title) = row else { continue };
            titled |= title.is_some();
            for ((width, says), cell) in widths.iter_mut().zip(&mut says).zip(cells) {
                *width = (*width).max(cell.chars().count().min(WIDEST));
                *says |= title.is_none() && says_something(cell);
            }
        }
        // A table with titles alone keeps them.
        if titled && says.contains(&true) {
            widths.iter_mut().zip(says).filter(|(_, says)| !says).for_each(|(width, _)| *width = 0);
        }
        let mut dispensable = self.dispensable.iter();
        while most
            .is_some_and(|most| widths.iter().map(|w| if *w == 0 { 0 } else { w + 2 }).sum::<usize>() > most)
            && let Some(column) = dispensable.next()
        {
            widths[*column] = 0;
        }
        widths
    }
}

/// Whether a cell has more than the sign for nothing.
fn says_something(cell: &str) -> bool {
    !matches!(cell.trim(), "" | "-")
}

/// A table of Markdown, of which the first columns are words. Columns that say nothing are left out.
pub(crate) fn markdown_table<T: AsRef<str>>(titles: &[T], rows: &[Vec<String>], words: usize) -> String {
    let says =
        |i: &usize| rows.is_empty() || rows.iter().any(|r| r.get(*i).is_some_and(|c| says_something(c)));
    let kept: Vec<usize> = (0..titles.len()).filter(says).collect();
    let line = |row: Vec<String>| format!("| {} |\n", row.join(" | "));
    let escaped = |row: &Vec<String>| kept.iter().map(|i| row[*i].replace('|', "\\|")).collect();
    let rule = kept.iter().map(|i| if *i < words { "---" } else { "---:" }.to_string());
    let named = kept.iter().map(|i| titles[*i].as_ref().to_string());
    let mut out = line(named.collect()) + &line(rule.collect());
    rows.iter().for_each(|row| out += &line(escaped(row)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_empty_ones_go() {
        let mut t = Table::new(&[Align::Left, Align::Left, Align::Right]);
        t.row(["µ", "", "1"]);
        t.text("half way", Style::new());
        t.row(["long", "", "100"]);
        t.row(["short"]);
        assert_eq!(t.render(), "  µ        1\nhalf way\n  long   100\n  short\n");
    }

    #[test]
    fn columns_that_hold_nothing_but_dashes_are_left_out() {
        let mut t = Table::new(&[Align::Left, Align::Left, Align::Right, Align::Left]);
        t.titles(["run", "layout", "batch", "mesh"]);
        assert_eq!(t.render(), "  run  layout  batch  mesh\n");
        t.row(["a", "-", "10", ""]);
        t.row(["b", "-", "-", "-"]);
        assert_eq!(t.render(), "  run  batch\n  a       10\n  b        -\n");
        let rows = [["a", "-", "10"], ["b", "-", "-"]].map(|r| r.map(String::from).to_vec());
        let text = markdown_table(&["run", "layout", "batch"], &rows, 2);
        assert_eq!(text, "| run | batch |\n| --- | ---: |\n| a | 10 |\n| b | - |\n");
    }

    #[test]
    fn a_narrow_screen_loses_the_dispensable_columns_and_then_the_ends_of_lines() {
        let mut t = Table::new(&[Align::Left, Align::Left, Align::Left]).dispensable(&[1]);
        t.row(["value", "details", "because µ"]);
        let on = |width| t.render_on(&Screen { width: Some(width), ..Screen::default() });
        assert_eq!(on(27), "  value  details  because µ\n");
        assert_eq!(on(26), "  value  because µ\n");
        assert_eq!(on(18), "  value  because µ\n");
        assert_eq!(on(17), "  value  because…\n");
    }

    #[test]
    fn nothing_in_a_table_steers_the_terminal_or_widens_it_without_end() {
        let mut t = Table::new(&[Align::Left, Align::Right]).style(0, Style::new().bold());
        t.titles(["a\u{1b}[2J", "b"]);
        t.row(["x\ny", "1"]);
        t.text("\u{9b}31m", Style::new().bold());
        let colored = t.render_on(&Screen { width: None, height: None, color: true });
        assert!(colored.contains("a\\u{1b}[2J") && colored.contains("x\\ny"), "{colored}");
        assert!(colored.contains("\\u{9b}31m") && colored.lines().count() == 3, "{colored}");
        let long = "n".repeat(70_000);
        let mut t = Table::new(&[Align::Left, Align::Right]);
        t.row([&*long, "1"]);
        (0..1000).for_each(|n| t.row([n.to_string(), long[..n].to_string()]));
        let text = t.render();
        assert!(text.contains(&format!("  {long}  ")) && text.len() < 2_000_000, "{}", text.len());
    }

    #[test]
    fn color_changes_no_width() {
        let mut t = Table::new(&[Align::Left, Align::Right]).style(1, Style::new().bold());
        t.titles(["a", "b"]);
        t.row(["x", "1"]);
        let colored = t.render_on(&Screen { width: Some(6), height: None, color: true });
        assert_eq!(colored, "\u{1b}[2m  a\u{1b}[0m\u{1b}[2m  b\u{1b}[0m\n  x\u{1b}[1m  1\u{1b}[0m\n");
        assert_eq!(t.render(), "  a  b\n  x  1\n");
    }
}
