//! Plots of curves: in the terminal with the dots of Braille, and as SVG.

pub(crate) mod braille;
pub(crate) mod svg;
mod ticks;

/// A curve.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    /// As the legend has it.
    pub(crate) name: String,
    /// Its points, from left to right; a value that is no number breaks it.
    pub(crate) points: Vec<(f64, f64)>,
}

/// What is plotted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plot {
    /// The quantity that goes up.
    pub(crate) metric: String,
    /// The quantity that goes to the right.
    pub(crate) along: String,
    /// Whether values stand at their logarithms.
    pub(crate) log: bool,
    pub(crate) curves: Vec<Curve>,
}

/// The least and the greatest of each axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlotRange {
    pub(crate) x: (f64, f64),
    /// In the scale of the plot: logarithms where it is one of these.
    pub(crate) y: (f64, f64),
}

impl Plot {
    /// A value as it is drawn; none where it cannot be. What is greater than [`MOST`] stands there: from one such value to
    /// another is farther than numbers reach.
    pub(crate) fn scaled(&self, y: f64) -> Option<f64> {
        let y = if self.log { y.log10() } else { y };
        y.is_finite().then_some(y.clamp(-MOST, MOST))
    }

    /// The stretches of a curve without a gap, as they are drawn.
    pub(crate) fn stretches(&self, curve: &Curve) -> Vec<Vec<(f64, f64)>> {
        let mut all = vec![Vec::new()];
        for (x, y) in &curve.points {
            match (self.scaled(*y).filter(|_| x.is_finite()), all.last_mut()) {
                (Some(y), Some(open)) => open.push((x.clamp(-MOST, MOST), y)),
                _ => all.push(Vec::new()),
            }
        }
        all.retain(|s| !s.is_empty());
        all
    }

    /// What all curves cover, with some room where that is a point or a line; none where nothing can be drawn.
    pub(crate) fn extent(&self) -> Option<PlotRange> {
        let all: Vec<(f64, f64)> = self.curves.iter().flat_map(|c| self.stretches(c).concat()).collect();
        let of = |get: fn(&(f64, f64)) -> f64| {
            let least = all.iter().map(get).min_by(f64::total_cmp)?;
            let most = all.iter().map(get).max_by(f64::total_cmp)?;
            Some(if least < most { (least, most) } else { roomy(least) })
        };
        Some(PlotRange { x: of(|p| p.0)?, y: of(|p| p.1)? })
    }
}

/// The greatest value that is drawn.
const MOST: f64 = 4e307;

impl PlotRange {
    /// Where a point stands between the ends of both axes: from 0 to 1.
    pub(crate) fn share(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let of = |v: f64, (low, high): (f64, f64)| (v - low) / (high - low);
        (of(x, self.x), of(y, self.y))
    }
}

/// A range around a single value.
fn roomy(v: f64) -> (f64, f64) {
    let room = if v == 0.0 { 1.0 } else { v.abs() * 0.1 };
    (v - room, v + room)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn gaps_break_curves_and_logarithms_leave_out_what_has_none() {
        let points = [1.0, f64::NAN, 10.0, 100.0, 0.0].iter().zip(1..).map(|(y, x)| (f64::from(x), *y));
        let curve = Curve { name: "a".into(), points: points.collect() };
        let plot = |log| Plot { metric: "m".into(), along: "x".into(), log, curves: vec![curve.clone()] };
        let even = plot(false);
        assert_eq!(even.stretches(&curve), [vec![(1.0, 1.0)], vec![(3.0, 10.0), (4.0, 100.0), (5.0, 0.0)]]);
        assert_eq!(even.extent(), Some(PlotRange { x: (1.0, 5.0), y: (0.0, 100.0) }));
        let log = plot(true);
        assert_eq!(log.stretches(&curve), [vec![(1.0, 0.0)], vec![(3.0, 1.0), (4.0, 2.0)]]);
        assert_eq!(log.extent(), Some(PlotRange { x: (1.0, 4.0), y: (0.0, 2.0) }));
        let none = Plot { curves: vec![], ..even };
        assert_eq!(none.extent(), None);
        assert_eq!((roomy(0.0), roomy(10.0)), ((-1.0, 1.0), (9.0, 11.0)));
    }
}
