//! A plot as SVG: curves in colors that people who see red and green alike can tell apart, each with marks of its own.

use super::ticks::{log_ticks, ticks};
use super::{Curve, Plot};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::element::{DynElement, IntoDynElement};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

/// Those of the pages.
const COLORS: [RGBColor; 8] = [
    RGBColor(59, 118, 201),
    RGBColor(224, 130, 20),
    RGBColor(42, 157, 111),
    RGBColor(194, 71, 143),
    RGBColor(133, 101, 196),
    RGBColor(184, 161, 26),
    RGBColor(58, 166, 194),
    RGBColor(196, 85, 59),
];
const INK: RGBColor = RGBColor(28, 36, 48);
const GRID: RGBColor = RGBColor(222, 226, 232);
const SIZE: (u32, u32) = (960, 500);
/// Height of an entry of the legend.
const ENTRY: u32 = 22;
/// How many marks a curve has.
const MARKS: usize = 8;
/// The most points that are drawn of a curve: more are less than a pixel apart.
const POINTS: usize = 2000;
const FONT: &str = "sans-serif";

/// The file; none where there is nothing to draw.
pub(crate) fn file(plot: &Plot) -> Result<Option<String>, String> {
    let Some(extent) = plot.extent() else { return Ok(None) };
    let mut out = String::new();
    let height = SIZE.1 + ENTRY * plot.curves.len() as u32 + 8;
    drawn(plot, extent, &mut out, height).map_err(|e| e.to_string())?;
    Ok(Some(out))
}

/// An axis with marks that are given.
struct MarkedAxis {
    low: f64,
    high: f64,
    marks: Vec<(f64, String)>,
}

impl Ranged for MarkedAxis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.low) / (self.high - self.low);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.marks.iter().map(|m| m.0).collect()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for MarkedAxis {
    fn format_ext(&self, value: &f64) -> String {
        self.marks.iter().find(|m| m.0 == *value).map_or(String::new(), |m| m.1.clone())
    }
}

type DrawingResult = Result<(), Box<dyn std::error::Error>>;

fn drawn(plot: &Plot, extent: super::PlotRange, out: &mut String, height: u32) -> DrawingResult {
    let root = SVGBackend::with_string(out, (SIZE.0, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let (upper, lower) = root.split_vertically(SIZE.1);
    let room = (extent.y.1 - extent.y.0) * 0.04;
    let y = (extent.y.0 - room, extent.y.1 + room);
    let up = if plot.log { log_ticks } else { ticks }(y, 8);
    let axis = |(low, high): (f64, f64), marks: Vec<(f64, String)>| MarkedAxis { low, high, marks };
    let mut chart = ChartBuilder::on(&upper)
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(76)
        .build_cartesian_2d(axis(extent.x, ticks(extent.x, 8)), axis(y, up))?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .label_style((FONT, 14, &INK))
        .axis_desc_style((FONT, 15, &INK))
        .x_desc(plot.along.clone())
        .y_desc(plot.metric.clone())
        .draw()?;
    for (n, curve) in plot.curves.iter().enumerate() {
        let color = COLORS[n % COLORS.len()];
        for stretch in plot.stretches(curve) {
            let stretch = thinned(&stretch);
            chart.draw_series(LineSeries::new(stretch, color.stroke_width(2)))?;
        }
        chart.draw_series(marks(plot, curve, n).into_iter().map(|at| mark(n, at, color)))?;
        let middle = (ENTRY * n as u32 + ENTRY / 2) as i32;
        lower.draw(&PathElement::new([(76, middle), (116, middle)], color.stroke_width(2)))?;
        lower.draw(&mark(n, (96, middle), color))?;
        let text = (FONT, 14).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
        lower.draw(&Text::new(curve.name.clone(), (126, middle), text))?;
    }
    root.present()?;
    Ok(())
}

/// As many points as can be seen: of each piece of a longer curve the least and the greatest.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= POINTS {
        return points.to_vec();
    }
    let mut out = Vec::with_capacity(POINTS + 2);
    out.extend(points.first());
    for piece in points.chunks(points.len().div_ceil(POINTS / 2)) {
        let by = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let mut two: Vec<(f64, f64)> =
            piece.iter().min_by(by).into_iter().chain(piece.iter().max_by(by)).copied().collect();
        two.sort_by(|a, b| a.0.total_cmp(&b.0));
        two.dedup();
        out.extend(two);
    }
    out.extend(points.last());
    out
}

/// Positions of the marks of a curve: next to those of the others.
fn marks(plot: &Plot, curve: &Curve, n: usize) -> Vec<(f64, f64)> {
    let points = plot.stretches(curve).concat();
    if points.len() <= MARKS {
        return points;
    }
    let share = (n as f64 + 0.5) / plot.curves.len() as f64;
    let at = |i: usize| ((i as f64 + share) / MARKS as f64 * (points.len() - 1) as f64).round() as usize;
    (0..MARKS).filter_map(|i| points.get(at(i)).copied()).collect()
}

/// The mark of a curve.
fn mark<B, C>(n: usize, at: C, color: RGBColor) -> DynElement<'static, B, C>
where
    B: DrawingBackend,
    C: Clone + 'static,
{
    match n % 4 {
        0 => Circle::new(at, 4, color.filled()).into_dyn(),
        1 => TriangleMarker::new(at, 6, color.filled()).into_dyn(),
        2 => Cross::new(at, 4, color.stroke_width(2)).into_dyn(),
        _ => Circle::new(at, 4, color.stroke_width(2)).into_dyn(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_all_curves_with_their_names() {
        let curve = |name: &str, up: f64| Curve {
            name: name.into(),
            points: (0..5000).map(|x| (f64::from(x), up * f64::from(x % 7 + 1))).collect(),
        };
        let curves = vec![curve("runs/a <b> & c", 1.0), curve("runs/b", 10.0)];
        let plot = Plot { metric: "loss".into(), along: "step".into(), log: true, curves };
        let text = file(&plot).unwrap().unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{}", &text[..200]);
        for part in ["runs/a &lt;b&gt; &amp; c", "runs/b", "loss", "step", "#3B76C9", "#E08214"] {
            assert!(text.contains(part), "{part}");
        }
        // Of thousands of points, as many are drawn as can be seen.
        assert!(text.len() < 150_000, "{}", text.len());
        let none = Plot { curves: vec![], ..plot };
        assert_eq!(file(&none).unwrap(), None);
    }

    #[test]
    fn thinning_keeps_the_extremes() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|x| (f64::from(x), 1.0)).collect();
        (points[1234].1, points[9876].1) = (-5.0, 9.0);
        let few = thinned(&points);
        assert!(few.len() <= POINTS + 2 && few.contains(&points[1234]) && few.contains(&points[9876]));
        assert!(few.is_sorted_by(|a, b| a.0 <= b.0));
    }
}
