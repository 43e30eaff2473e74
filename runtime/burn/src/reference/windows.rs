//! Convolutions and pools.

use super::values::{RefTensor, positions};
use super::{Reference, other_operands};
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::dims::WalkDim;
use meshwright_device::kernels::windows::{ConvolveCall, PoolCall, PoolWork, WindowSlide};
use meshwright_plan::Monoid;

fn sizes(dims: &[WalkDim]) -> Vec<usize> {
    dims.iter().map(|dim| dim.size).collect()
}

fn axes<'a>(dims: impl IntoIterator<Item = &'a WalkDim>, tensor: usize) -> Vec<Option<usize>> {
    dims.into_iter().map(|dim| dim.axes[tensor]).collect()
}

/// Index of the element under a window in the first operand, if it exists.
fn covered(
    x: &RefTensor,
    (of, position): (&[Option<usize>], &[usize]),
    slides: &[WindowSlide],
    (row, step): (&[usize], &[usize]),
) -> Option<usize> {
    let (mut axes, mut at) = (of.to_vec(), position.to_vec());
    for s in slides {
        let (by_row, by_step) = (i64::from(s.by_row), i64::from(s.by_step));
        let sum = row[s.row] as i64 * by_row + step[s.step] as i64 * by_step + i64::from(s.from);
        let divisor = i64::from(s.divisor);
        let found = sum >= 0 && sum % divisor == 0 && sum / divisor < i64::from(s.len);
        axes.push(Some(s.axis));
        at.push(found.then_some((sum / divisor) as usize)?);
    }
    Some(x.place(&axes, &at))
}

impl Computes<ConvolveCall> for Reference<'_> {
    /// Sums of products in which windows slide.
    fn compute(self, call: &ConvolveCall) -> Result<(), KernelError> {
        let Reference { inputs: [x, kernel], outputs: [out], .. } = self else {
            return Err(other_operands());
        };
        let result: Vec<&WalkDim> = call.groups.iter().chain(&call.rows).chain(&call.columns).collect();
        let all: Vec<&WalkDim> = result.iter().copied().chain(&call.steps).collect();
        let (of_x, of_kernel) = (axes(all.iter().copied(), 0), axes(all.iter().copied(), 1));
        let of_out = axes(result.iter().copied(), 2);
        let (groups, rows) = (call.groups.len(), call.rows.len());
        let all_sizes: Vec<usize> = result.iter().map(|dim| dim.size).collect();
        for at in positions(&all_sizes) {
            let mut sum = 0.0;
            for step in positions(&sizes(&call.steps)) {
                let position = [at.clone(), step.clone()].concat();
                let row = &at[groups..groups + rows];
                if let Some(place) = covered(x, (&of_x, &position), &call.slides, (row, &step)) {
                    sum += x.numbers[place] * kernel.at(&of_kernel, &position);
                }
            }
            let place = out.place(&of_out, &at);
            out.numbers[place] = sum;
        }
        Ok(())
    }
}

/// Whether `x` replaces `old`: it is beyond it, or the first NaN.
fn is_beyond(monoid: Monoid, x: f64, old: f64) -> bool {
    let further = if monoid == Monoid::Min { x < old } else { x > old };
    further || x.is_nan() && !old.is_nan()
}

impl Computes<PoolCall> for Reference<'_> {
    fn compute(self, call: &PoolCall) -> Result<(), KernelError> {
        let Reference { inputs: inputs @ [chosen, ..], outputs: [out], .. } = self else {
            return Err(other_operands());
        };
        let input = inputs.last().unwrap_or(chosen);
        let (of_input, of_out) = (axes(&call.rows, 0), axes(&call.rows, 1));
        for at in positions(&sizes(&call.rows)) {
            let mut value = match call.work {
                PoolWork::Fold(Monoid::Max) => f64::NEG_INFINITY,
                PoolWork::Fold(Monoid::Min) => f64::INFINITY,
                _ => 0.0,
            };
            let (mut best, mut any) = (0, false);
            for (tap, step) in positions(&sizes(&call.taps)).enumerate() {
                let Some(place) = covered(input, (&of_input, &at), &call.slides, (&at, &step)) else {
                    continue;
                };
                let x = input.numbers[place];
                match call.work {
                    PoolWork::Choose => {
                        let other = covered(chosen, (&of_input, &at), &call.slides, (&at, &step));
                        value += other.filter(|p| chosen.numbers[*p] == tap as f64).map_or(0.0, |_| x);
                    }
                    PoolWork::Fold(Monoid::Sum) => value += x,
                    PoolWork::Fold(monoid) if is_beyond(monoid, x, value) => value = x,
                    PoolWork::Tap(monoid) if !any || is_beyond(monoid, x, value) => (value, best) = (x, tap),
                    PoolWork::Fold(_) | PoolWork::Tap(_) => {}
                }
                any = true;
            }
            let place = out.place(&of_out, &at);
            out.numbers[place] = if let PoolWork::Tap(_) = call.work { best as f64 } else { value };
        }
        Ok(())
    }
}
