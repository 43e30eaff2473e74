//! Which dims may share an axis, for a search over layouts: what [`super::check_conflicts`] would say of every pair, without a
//! layout.

use super::second_names::second_names;
use crate::passes::normalize;
use crate::step::step_graph::StepGraph;
use meshwright_plan::Dim;
use meshwright_sorted::SortedSet;

/// Pairs of dims that some value has together, the smaller one first: two rules for all values cannot split both over one axis
/// (E0304). A second name counts as the first, whose rules it follows. It does not depend on sizes. Dims of which no pair is here
/// may share an axis.
pub fn dims_together(step: &StepGraph) -> SortedSet<(Dim, Dim)> {
    let live = normalize::dead_code(step).graph;
    let names = second_names(&live);
    let first = |d: &Dim| names.get(d).copied().unwrap_or(*d);
    let types: SortedSet<Vec<Dim>> =
        live.ids().map(|id| live.ty(id).dims.iter().map(first).collect()).collect();
    let pairs = types.into_iter().flat_map(|dims| {
        let pairs =
            |(i, a): (usize, &Dim)| dims[i + 1..].iter().map(|b| (*a.min(b), *a.max(b))).collect::<Vec<_>>();
        dims.iter().enumerate().flat_map(pairs).collect::<Vec<_>>()
    });
    pairs.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::compile::{CompileOptions, compile_with};
    use crate::layout::layout;
    use crate::resolve::resolve;
    use crate::step::training::training_step;
    use crate::{Program, Settings};
    use meshwright_diag::{FileId, codes};
    use meshwright_syntax::{parse_layout, parse_mesh, parse_model};

    const MODEL: &str = "
        dim batch = 4, rows = 4, hidden = 4, classes = 4
        model m {
            input x[batch, rows]: float
            input label[batch]: i32 in classes
            param a[rows, hidden] = uniform(-1, 1)
            param b[hidden, classes] = uniform(-1, 1)
            let h = sum[rows](x * a)
            let logits = sum[hidden](h * b)
            loss xent = mean[batch](cross_entropy[classes](logits, label))
        }
        train m { minimize xent optimizer sgd(lr = 0.1) }";

    fn program() -> Program {
        let (file, found) = parse_model(FileId(0), MODEL);
        assert!(found.is_empty(), "{found:?}");
        let (program, found) =
            resolve(&file.unwrap(), None, &Settings::default(), &mut |_, _| unreachable!("uses nothing"));
        program.unwrap_or_else(|| panic!("{found:?}"))
    }

    #[test]
    fn a_pair_is_here_where_a_layout_that_splits_both_is_refused() {
        let program = program();
        let step = training_step(&program).unwrap();
        let together = dims_together(&step);
        let names = ["batch", "rows", "hidden", "classes"];
        let mut pairs = 0;
        for (i, a) in names.iter().enumerate() {
            for b in &names[i + 1..] {
                let text = format!("{a} -> r; {b} -> r");
                let (file, _) = parse_layout(FileId(1), &text);
                let (mesh, _) = parse_mesh(FileId(2), "r=2");
                let (layout, found) = layout(&file.unwrap(), mesh.as_ref(), &program, false);
                let layout = layout.unwrap_or_else(|| panic!("{found:?}"));
                let (_, found) =
                    compile_with(&step, &layout, &|_| 0, CompileOptions::default(), &mut |_, _| {});
                let refused = found.iter().any(|d| d.code == codes::E0304);
                let dim = |name: &str| program.graph.dims.iter().find(|(_, n)| *n == name).unwrap().0;
                let (a, b) = (dim(a), dim(b));
                assert_eq!(together.contains(&(a.min(b), a.max(b))), refused, "{text}: {found:?}");
                pairs += usize::from(refused);
            }
        }
        assert_eq!(pairs, 5, "all but `rows` with `classes`");
    }
}
