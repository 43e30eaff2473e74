//! Reasons not to fuse that no program of the language reaches. Each has a Plan that is written by hand, in which a pass decides
//! something, and a change of its text that gives the reason: then the pass decides otherwise.

mod added_matmuls;
mod attention;
mod epilogues;
mod fp8;
mod matmul_groups;
mod orders;
mod residuals;
mod rounded;
mod row_groups;
mod slices;
mod written;

use meshwright_device::compile;
use meshwright_device::decisions::Decisions;
use meshwright_device::decisions::decide::decisions;
use meshwright_device::target::Target;
use meshwright_plan::{Arithmetic, Plan};
use written::written;

/// A Plan in which a pass decides something.
struct Base {
    float: Arithmetic,
    sizes: &'static str,
    text: &'static str,
    /// Number of the pass's decisions.
    count: fn(&Plan, &Decisions) -> usize,
}

/// A reason, the replacements of text that give it, and the number of decisions with it.
type Reason<'r> = (&'r str, &'r [(&'r str, &'r str)], usize);

impl Base {
    /// Number of decisions with these replacements. The Plan must compile, and pass the verifier.
    fn decided(&self, name: &str, changes: &[(&str, &str)]) -> usize {
        let mut text = self.text.to_string();
        for (from, to) in changes {
            assert_eq!(text.matches(from).count(), 1, "{name}: `{from}` in\n{text}");
            text = text.replace(from, to);
        }
        let plan = written(self.float, self.sizes, &text);
        let target = Target::h100();
        let decided = decisions(&plan, 0, target).unwrap_or_else(|e| panic!("{name}: {e}"));
        compile(&plan, 0, target).unwrap_or_else(|e| panic!("{name}: {e}"));
        (self.count)(&plan, &decided)
    }

    /// Checks the number of decisions of the base, and with each reason.
    fn check(&self, expected: usize, reasons: &[Reason<'_>]) {
        let mut wrong = vec![];
        let found = self.decided("the base", &[]);
        if found != expected {
            wrong.push(format!("the base: {found} in place of {expected}"));
        }
        for (name, changes, with) in reasons {
            assert_ne!(*with, expected, "{name}: a reason changes something");
            let found = self.decided(name, changes);
            if found != *with {
                wrong.push(format!("{name}: {found} in place of {with}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
