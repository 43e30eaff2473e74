//! Reasons not to fuse that no program of the language reaches: a Plan that is written by hand, in which a pass decides something,
//! and what changes where the text of the Plan gives the reason.

mod attention;
mod epilogues;
mod fp8;
mod matmul_groups;
mod orders;
mod residuals;
mod rounded;
mod row_groups;
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
    /// Number of what is decided.
    count: fn(&Plan, &Decisions) -> usize,
}

/// A reason, replacements of text that give it, and the number of what is still decided with it.
type Reason<'r> = (&'r str, &'r [(&'r str, &'r str)], usize);

impl Base {
    /// Number of what is decided with these replacements. The Plan compiles to launches in any case.
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

    /// Checks that the base has `expected` decisions, and with each reason as many as that says, which are others.
    fn check(&self, expected: usize, reasons: &[Reason<'_>]) {
        let mut wrong = vec![];
        let found = self.decided("the base", &[]);
        if found != expected {
            wrong.push(format!("the base: {found} in place of {expected}"));
        }
        for (name, changes, fewer) in reasons {
            assert_ne!(*fewer, expected, "{name}: a reason changes something");
            let found = self.decided(name, changes);
            if found != *fewer {
                wrong.push(format!("{name}: {found} in place of {fewer}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
