//! The line `precision` of a `train` block.

use super::super::Resolver;
use super::super::call::args::Slot;
use super::super::report::{Report, listed, nearest};
use crate::program::Settings;
use crate::step::loss_scaling::LossScaling;
use crate::step::scale_history::{DEFAULT_STEPS, MOST_STEPS};
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_plan::Arithmetic;
use meshwright_syntax::ast::{Call, Train, TrainKind};

/// The settings that a precision may have.
#[derive(Default)]
pub(super) struct PrecisionSettings {
    /// In `f16`.
    pub(super) scaling: LossScaling,
    /// In `fp8`: steps of the history of maxima, if there is one.
    pub(super) scale_history: Option<usize>,
}

/// The arithmetic: of the command line, else of the `train` block, else `f32`.
pub(in crate::resolve) fn precision(
    train: Option<&Train>,
    settings: &Settings,
    report: &mut Report,
) -> Arithmetic {
    let written = train.into_iter().flat_map(|t| &t.settings).find_map(|s| match &s.kind {
        TrainKind::Precision(call) => Some(&call.name),
        _ => None,
    });
    if let Some(float) = settings.float {
        return float;
    }
    let Some(name) = written else { return Arithmetic::F32 };
    let found = Arithmetic::named(&name.text);
    found.unwrap_or_else(|| {
        let known = Arithmetic::ALL.map(Arithmetic::name);
        let d = Diagnostic::error(codes::E0201, format!("there is no precision `{}`", name.text))
            .at(name.span, "not known")
            .note(format!("precisions: {}", listed(known)));
        report.push(match nearest(&name.text, known) {
            Some(near) => d.fix(format!("write `{near}`"), name.span, near, near.sure),
            None => d,
        });
        Arithmetic::F32
    })
}

impl<'a> Resolver<'a> {
    /// The settings of `precision f16(scale = …, growth = …)` or `precision fp8(history = …)`; those of others are errors.
    pub(super) fn precision_settings(&mut self, call: &'a Call, span: Span) -> PrecisionSettings {
        let mut settings = PrecisionSettings::default();
        let Some(first) = call.args.first() else { return settings };
        match (call.name.text.as_str(), Arithmetic::named(&call.name.text)) {
            (_, Some(Arithmetic::F16)) => {
                if let Some(scaling) = self.scaling(call, span) {
                    settings.scaling = scaling;
                }
            }
            (_, Some(Arithmetic::FP8)) => settings.scale_history = self.scale_history(call, span),
            (name, Some(_)) => {
                let text = format!(
                    "`precision {name}` has no settings: `f16` has a scale of the loss, `fp8` a history of scales"
                );
                let d = Diagnostic::error(codes::E0217, text).at(first.value.span, "has no effect");
                self.error(d.help(format!("write `precision {name}`")));
            }
            // Reported already.
            (_, None) => {}
        }
        settings
    }

    /// The steps of the history in `precision fp8(history = …)`.
    fn scale_history(&mut self, call: &'a Call, span: Span) -> Option<usize> {
        let args = self.bound("precision fp8", span, None, &[Slot::built_in("history", true)], &call.args)?;
        let e = args[0]?;
        let steps = self.konst(e, "the steps whose maxima scale factors")?.num().f64();
        if steps.fract() == 0.0 && (1.0..=MOST_STEPS as f64).contains(&steps) {
            return Some(steps as usize);
        }
        let text = format!("the history of scales has {steps} steps");
        let d = Diagnostic::error(codes::E0214, text)
            .at(e.span, format!("must be a whole number from 1 to {MOST_STEPS}"))
            .note("without a history, the maximum of the step itself scales a factor: `precision fp8`");
        self.error(d.fix(format!("write `{DEFAULT_STEPS}`"), e.span, DEFAULT_STEPS.to_string(), false));
        None
    }

    /// The settings of `precision f16(scale = …, growth = …)`.
    fn scaling(&mut self, call: &'a Call, span: Span) -> Option<LossScaling> {
        let mut scaling = LossScaling::default();
        let slots = [Slot::built_in("scale", false), Slot::built_in("growth", false)];
        let args = self.bound("precision f16", span, None, &slots, &call.args)?;
        if let Some(e) = args[0] {
            scaling.scale = self.konst(e, "the first loss scale")?.num().f64();
            let power = scaling.scale.fract() == 0.0 && (scaling.scale as u64).is_power_of_two();
            if !power || !(1.0..=LossScaling::MOST).contains(&scaling.scale) {
                let text = format!("the first loss scale is {}", scaling.scale);
                let d = Diagnostic::error(codes::E0214, text)
                    .at(e.span, format!("must be a power of two from 1 to {}", LossScaling::MOST))
                    .note("multiplying by another number would round gradients");
                self.error(d.help("leave it out: the scale finds itself from 65536 on"));
                return None;
            }
        }
        if let Some(e) = args[1] {
            scaling.growth = self.konst(e, "the steps after which the loss scale doubles")?.num().f64();
            if scaling.growth < 1.0 || scaling.growth.fract() != 0.0 || scaling.growth > LossScaling::MOST {
                let text = format!("the loss scale doubles after {} steps", scaling.growth);
                let d = Diagnostic::error(codes::E0214, text)
                    .at(e.span, format!("must be a whole number from 1 to {}", LossScaling::MOST));
                self.error(d.help("leave it out: it then doubles after 2000 steps without an overflow"));
                return None;
            }
        }
        Some(scaling)
    }
}
