//! A plot of characters: curves as dots of Braille, axes with marks, and a legend. Each curve has a letter on it at some places,
//! so that several can be told apart without color too.

use super::ticks::{log_ticks, ticks};
use super::{Curve, Plot, PlotRange};
use crate::output::table::Screen;
use anstyle::{AnsiColor, Style};
use meshwright_diag::render::printable;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Color;
use ratatui_core::symbols::Marker;
use ratatui_core::widgets::Widget;
use ratatui_widgets::canvas::{Canvas, Line, Points};

/// One after the other, and again from the first.
const COLORS: [(Color, AnsiColor); 6] = [
    (Color::Cyan, AnsiColor::Cyan),
    (Color::Yellow, AnsiColor::Yellow),
    (Color::Green, AnsiColor::Green),
    (Color::Magenta, AnsiColor::Magenta),
    (Color::Blue, AnsiColor::Blue),
    (Color::Red, AnsiColor::Red),
];
/// How often a curve has its letter.
const LETTERS: usize = 3;
/// Lines between two marks of the vertical axis, and characters between two of the horizontal one, at least.
const APART: (usize, usize) = (3, 10);

/// The most curves that have letters of their own.
pub(crate) const MOST: usize = 26;

fn letter(curve: usize) -> char {
    char::from(b'A' + (curve % MOST) as u8)
}

/// The lines of a plot of so many characters and lines; none where it has nothing to draw.
pub(crate) fn lines(plot: &Plot, (width, height): (usize, usize), screen: &Screen) -> Option<String> {
    let extent = plot.extent()?;
    let up = if plot.log { log_ticks } else { ticks }(extent.y, height / APART.0);
    let margin = up.iter().map(|t| t.1.chars().count()).max().unwrap_or(0);
    let inner = width.saturating_sub(margin + 2).max(10);
    let buffer = drawn(plot, extent, (inner, height));
    let row = |v: f64| {
        let share = (extent.y.1 - v) / (extent.y.1 - extent.y.0);
        (share * (height - 1) as f64).round() as usize
    };
    let mut out = format!("{:>margin$} {}\n", "", printable(&plot.metric));
    for y in 0..height {
        let mark = up.iter().find(|t| row(t.0) == y);
        let name = mark.map_or("", |t| t.1.as_str());
        out += &format!("{name:>margin$} {}", if mark.is_some() { '┤' } else { '│' });
        out += colored(&buffer, y, inner, screen).trim_end();
        out.push('\n');
    }
    out += &horizontal(extent, (margin, inner));
    out += format!("{:>margin$}  {:^inner$}", "", plot.along).trim_end();
    out.push('\n');
    out += &legend(plot, screen);
    Some(out)
}

/// The curves, in their colors.
fn drawn(plot: &Plot, extent: PlotRange, (width, height): (usize, usize)) -> Buffer {
    let side = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let area = Rect::new(0, 0, side(width), side(height));
    let mut buffer = Buffer::empty(area);
    // In shares of the axes: the canvas takes time by the size of numbers.
    let canvas = Canvas::default().marker(Marker::Braille).x_bounds([0.0, 1.0]).y_bounds([0.0, 1.0]);
    let canvas = canvas.paint(|to| {
        for (n, curve) in plot.curves.iter().enumerate() {
            let color = COLORS[n % COLORS.len()].0;
            for stretch in plot.stretches(curve) {
                let stretch: Vec<(f64, f64)> = stretch.into_iter().map(|p| extent.share(p)).collect();
                to.draw(&Points { coords: &stretch, color });
                for pair in stretch.windows(2) {
                    let ((x1, y1), (x2, y2)) = (pair[0], pair[1]);
                    to.draw(&Line { x1, y1, x2, y2, color });
                }
            }
            to.layer();
        }
    });
    canvas.render(area, &mut buffer);
    if plot.curves.len() > 1 {
        for (n, curve) in plot.curves.iter().enumerate() {
            for point in letters_at(plot, curve, n, extent) {
                let (right, up) = extent.share(point);
                let place = |share: f64, n: usize| side((share * (n - 1) as f64).round() as usize);
                let at = (place(right, width), side(height - 1) - place(up, height));
                if let Some(cell) = buffer.cell_mut(at) {
                    cell.set_char(letter(n)).set_fg(COLORS[n % COLORS.len()].0);
                }
            }
        }
    }
    buffer
}

/// Where a curve has its letters: at other places than the others.
fn letters_at(plot: &Plot, curve: &Curve, n: usize, extent: PlotRange) -> Vec<(f64, f64)> {
    let points = plot.stretches(curve).concat();
    let (low, high) = extent.x;
    let count = plot.curves.len() as f64;
    let place = |i: usize| low + (high - low) * (i as f64 + (n as f64 + 0.5) / count) / LETTERS as f64;
    let near = |x: f64| points.iter().min_by(|a, b| (a.0 - x).abs().total_cmp(&(b.0 - x).abs())).copied();
    let mut all: Vec<(f64, f64)> = (0..LETTERS).filter_map(|i| near(place(i))).collect();
    all.dedup();
    all
}

fn style(color: Color) -> Style {
    let ansi = COLORS.iter().find(|c| c.0 == color).map(|c| c.1);
    ansi.map_or(Style::new(), |c| c.on_default())
}

/// A line of the plot: cells of one color in one piece.
fn colored(buffer: &Buffer, y: usize, width: usize, screen: &Screen) -> String {
    let mut pieces: Vec<(String, Color)> = Vec::new();
    for x in 0..width {
        let Some(cell) = buffer.cell((x as u16, y as u16)) else { break };
        // The cell without dots is a blank.
        let symbol = if cell.symbol() == "\u{2800}" { " " } else { cell.symbol() };
        match pieces.last_mut().filter(|p| p.1 == cell.fg) {
            Some(piece) => piece.0 += symbol,
            None => pieces.push((symbol.into(), cell.fg)),
        }
    }
    let plain = Screen { width: None, ..*screen };
    plain.line(pieces.iter().map(|(text, color)| (text.as_str(), style(*color))))
}

/// The horizontal axis, and the names of its marks.
fn horizontal(extent: PlotRange, (margin, width): (usize, usize)) -> String {
    let marks = ticks(extent.x, width / APART.1);
    let mut line = vec!['─'; width];
    let mut names = vec![' '; width + margin + 2];
    let mut free = 0;
    for (v, name) in &marks {
        let at = ((v - extent.x.0) / (extent.x.1 - extent.x.0) * (width - 1) as f64).round() as usize;
        line[at.min(width - 1)] = '┬';
        let length = name.chars().count();
        let from = (at + margin + 2).saturating_sub(length / 2).min(names.len().saturating_sub(length));
        if from >= free {
            name.chars().enumerate().for_each(|(i, c)| names[from + i] = c);
            free = from + length + 1;
        }
    }
    let (line, names): (String, String) = (line.into_iter().collect(), names.into_iter().collect());
    format!("{:>margin$} └{line}\n{}\n", "", names.trim_end())
}

fn legend(plot: &Plot, screen: &Screen) -> String {
    let mut out = String::new();
    for (n, curve) in plot.curves.iter().enumerate() {
        let letter = if plot.curves.len() > 1 { format!("{} ", letter(n)) } else { String::new() };
        let color = COLORS[n % COLORS.len()].1.on_default();
        let sign = format!("  {letter}⠤⠤ ");
        out += &screen.line([(sign.as_str(), color), (curve.name.as_str(), Style::new())]);
        out.push('\n');
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn plot(curves: &[(&str, &[f64])]) -> Plot {
        let curve = |(name, values): &(&str, &[f64])| Curve {
            name: (*name).into(),
            points: values.iter().enumerate().map(|(x, y)| (x as f64, *y)).collect(),
        };
        Plot {
            metric: "loss".into(),
            along: "step".into(),
            log: false,
            curves: curves.iter().map(curve).collect(),
        }
    }

    #[test]
    fn a_falling_line_goes_from_the_left_top_to_the_right_bottom() {
        let text = lines(&plot(&[("a", &[4.0, 3.0, 2.0, 1.0, 0.0])]), (30, 6), &Screen::default()).unwrap();
        let expected = "  loss
4 ┤⠑⠤⣀
  │   ⠉⠒⠤⣀
  │       ⠉";
        let head: Vec<&str> = text.lines().take(4).collect();
        assert_eq!(head[0], "  loss");
        assert!(head[1].starts_with("4 ┤") && head[1].trim_end().chars().count() < 12, "{text}\n{expected}");
        let last = text.lines().nth(6).unwrap();
        assert!(last.starts_with("0 ┤   ") && last.chars().count() > 25, "{text}");
        assert!(text.contains("└") && text.contains("┬") && text.contains("step"), "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= 30 && !l.contains('\u{1b}')), "{text}");
        assert!(text.lines().last().unwrap().ends_with("⠤⠤ a"), "{text}");
    }

    #[test]
    fn numbers_of_any_size_are_drawn_at_once() {
        for values in
            [[2.0, 1e308, 3.0], [-1.7e308, 1.7e308, 0.0], [1e308, 1e308, 1e308], [1e-308, 5e-324, 0.0]]
        {
            let mut plot = plot(&[("a", &values), ("b", &values)]);
            for log in [false, true] {
                plot.log = log;
                let text = lines(&plot, (60, 10), &Screen::default()).unwrap();
                let plain = |l: &str| l.chars().count() <= 62 && !l.contains("NaN") && !l.contains("inf");
                assert!(text.lines().all(plain), "{text}");
                assert!(super::super::svg::file(&plot).unwrap().is_some());
            }
        }
        let mut far = plot(&[("a", &[1.0, 2.0])]);
        far.curves[0].points[1].0 = 1.7e308;
        far.curves[0].points.push((f64::NAN, 1.0));
        assert!(lines(&far, (60, 10), &Screen::default()).unwrap().contains('⠤'));
    }

    #[test]
    fn curves_are_told_apart_without_color_and_with() {
        let two = plot(&[("one", &[1.0, 2.0, 3.0, 4.0]), ("two", &[4.0, 3.0, 2.0, 1.0])]);
        let text = lines(&two, (60, 10), &Screen::default()).unwrap();
        let marks = |c: char| text.lines().skip(1).take(10).flat_map(str::chars).filter(|l| *l == c).count();
        assert!(marks('A') >= 2 && marks('B') >= 2, "{text}");
        assert!(text.contains("A ⠤⠤ one") && text.contains("B ⠤⠤ two"), "{text}");
        let color = lines(&two, (60, 10), &Screen { color: true, ..Screen::default() }).unwrap();
        assert!(color.contains("\u{1b}[36m") && color.contains("\u{1b}[33m"), "{color}");
        assert_eq!(lines(&plot(&[("a", &[f64::NAN])]), (60, 10), &Screen::default()), None);
    }
}
