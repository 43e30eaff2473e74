//! Commands on a model and its layout, which start no run.

pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod estimate;
pub(super) mod estimate_comparison;
pub(crate) mod explain;
pub(super) mod fix;
pub(crate) mod fmt;
mod named_machine;
mod one_estimate;
pub(super) mod passes;
pub(super) mod plan_page;
mod scale;
pub(crate) mod search;
mod search_bench;

use crate::output::console::Console;
use meshwright_cost::dtype_rates::AssumedRate;
use meshwright_device::target::Target;
use meshwright_plan::Arithmetic;

/// Says of a program of `fp8` how its products run on a target that multiplies no FP8.
fn note_8_bits(float: Arithmetic, target: Target, console: &mut Console) {
    if float == Arithmetic::FP8 && !target.fp8 {
        console.note(
            "in `fp8` factors are rounded to 8 bits, but products run, and are priced, as those of `bf16`",
        );
    }
}

/// Says for which products the file of a machine has no rate, each once.
pub(in crate::commands) fn note_assumed_rates<'e>(
    machine: &str,
    rates: impl IntoIterator<Item = &'e AssumedRate>,
    console: &mut Console,
) {
    let mut said = vec![];
    for rate in rates {
        if !said.contains(&rate) {
            console.note(&rate.note(machine));
            said.push(rate);
        }
    }
}
