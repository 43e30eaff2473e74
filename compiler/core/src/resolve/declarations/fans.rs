//! Initializers that follow from how many elements meet in one, and how many one goes to: `glorot_uniform(in, out)` and
//! `glorot_normal(in, out)` (Glorot & Bengio 2010), `he_uniform(in)` and `he_normal(in)` (He et al. 2015).

use crate::resolve::Resolver;
use crate::resolve::call::args::Slot;
use meshwright_diag::{Diagnostic, codes};
use meshwright_plan::{Dim, Init};
use meshwright_syntax::ast::{Call, Expr, Name};

/// Initializers by fan, with their parameters: dims, or lists of dims.
pub(crate) const BY_FAN: [(&str, &[&str]); 4] = [
    ("glorot_uniform", &["fan_in", "fan_out"]),
    ("glorot_normal", &["fan_in", "fan_out"]),
    ("he_uniform", &["fan_in"]),
    ("he_normal", &["fan_in"]),
];

impl<'a> Resolver<'a> {
    /// The first value that fans give: with `n` the size of the fan, or the mean size of both, uniform over
    /// `±sqrt(3 g / n)` or normal with the standard deviation `sqrt(g / n)`, where `g` is 1 for Glorot and 2 for He. `dims`
    /// are those of the parameter `of`; `None` where they are in error.
    pub(in crate::resolve) fn by_fan(
        &mut self,
        call: &'a Call,
        e: &'a Expr,
        slots: &[&str],
        of: &Name,
        dims: Option<&[Dim]>,
    ) -> Option<Init> {
        let name = call.name.text.as_str();
        let built_in: Vec<Slot<'_>> = slots.iter().map(|s| Slot::built_in(s, true)).collect();
        if let Some(d) = crate::resolve::call::args::misplaced_dim(name, &call.args) {
            self.error(d);
            return None;
        }
        let given = self.bound(name, e.span, None, &built_in, &call.args)?;
        let mut sizes = Some(Vec::new());
        for e in given.into_iter().flatten() {
            match (self.fan(name, e, of, dims), &mut sizes) {
                (Some(size), Some(all)) => all.push(size),
                _ => sizes = None,
            }
        }
        let sizes = sizes?;
        let n = sizes.iter().sum::<f64>() / sizes.len() as f64;
        let gain = if name.starts_with("he") { 2.0 } else { 1.0 };
        Some(if name.ends_with("uniform") {
            let bound = (3.0 * gain / n).sqrt();
            Init::Uniform { low: -bound, high: bound }
        } else {
            Init::Normal { mean: 0.0, std: (gain / n).sqrt() }
        })
    }

    /// The product of the sizes of the dims of one fan.
    fn fan(&mut self, name: &str, e: &'a Expr, of: &Name, dims: Option<&[Dim]>) -> Option<f64> {
        let fan = self.dim_argument(name, e)?;
        if let Some(d) = fan.iter().find(|d| dims.is_some_and(|dims| !dims.contains(d))) {
            let (dim, of) = (self.graph.dims.name(*d).to_string(), of.text.as_str());
            let has = self.graph.dims.list(dims.unwrap_or(&[]));
            let text = format!("`{name}` counts `{dim}`, but `{of}` has the dims {has}");
            let d = Diagnostic::error(codes::E0203, text).at(e.span, format!("no dim of `{of}`"));
            self.error(d.help(format!(
                "name the dims of `{of}` that are summed, and those that the result has; or write the numbers: `normal(0, 1 / sqrt(size({dim})))`"
            )));
            return None;
        }
        self.graph.captured.extend(&fan);
        Some(fan.iter().map(|d| self.graph.dims.size(*d).max(1) as f64).product())
    }
}
