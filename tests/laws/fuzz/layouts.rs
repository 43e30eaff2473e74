//! Random meshes and rules.

use super::program::Random;
use crate::devices::{layout, rule};
use crate::rng::Rng;
use meshwright_core::layout::{Layout, PipelineOrder, PipelineRule, RuleDim, ScopeClass};
use meshwright_diag::Span;
use meshwright_ops::{Graph, Repeat};
use meshwright_plan::actions::PipelineSchedule;
use meshwright_plan::{Axis, Dim, Mesh, MeshAxis};
use meshwright_sorted::SortedSet;
use meshwright_syntax::ast::ReduceWhen;

/// A layout, and whether gathers that it asks for are granted.
pub(crate) struct Placing {
    pub(crate) layout: Layout,
    pub(crate) grant: bool,
}

/// The most devices of a mesh.
const DEVICES: usize = 12;

/// One to three axes of one to five devices, and two to seven rules: dims over one axis or two, in every scope, strict or
/// not.
pub(crate) fn random(seed: u64, program: &Random) -> Placing {
    let mut rng = Rng::new(seed ^ 0x1A_7007);
    let mut sizes: Vec<usize> = Vec::new();
    for _ in 0..1 + rng.below(3) {
        let room = DEVICES / sizes.iter().product::<usize>();
        // One device along an axis is legal and dull.
        let dull = room < 2 || rng.one_in(10);
        sizes.push(if dull { 1 } else { 2 + rng.below(room.min(5) - 1) });
    }
    let mesh = Mesh::new(sizes.iter().zip(["r", "s", "t"]).map(|(k, n)| (n, *k)));
    let graph = &program.program.graph;
    let loops: SortedSet<Dim> = graph.repeats.iter().map(|r| r.dim).collect();
    let dims: Vec<Dim> = graph.dims.iter().map(|d| d.0).filter(|d| !loops.contains(d)).collect();
    let axes: Vec<u8> = (0..sizes.len() as u8).collect();
    let mut rules = Vec::new();
    for _ in 0..2 + rng.below(6) {
        let scope = match rng.below(10) {
            0 => Some(ScopeClass::Params),
            1 => Some(ScopeClass::Grads),
            2 => Some(ScopeClass::Moments),
            _ => None,
        };
        let any = scope.is_some() && rng.one_in(3);
        let dim = if any { RuleDim::Any } else { RuleDim::Dim(rng.pick(&dims)) };
        let mut over = rng.shuffled(&axes);
        over.truncate(1 + usize::from(rng.one_in(4)));
        if rng.one_in(12) {
            over.clear();
        }
        let mut r = rule(scope, dim, &over, rng.one_in(3));
        if rng.one_in(8) {
            r.scope.path = Some(rng.pick(&["l1*", "*.w", "l2.w", "l*"]).to_string().into());
        }
        r.number = rules.len() + 1;
        if rules.iter().all(|s: &meshwright_core::layout::Rule| s.scope != r.scope || s.dim != r.dim) {
            rules.push(r);
        }
    }
    let grant = rng.one_in(2);
    let again: &[&str] =
        if rng.one_in(2) { &[] } else { rng.pick(&[&["*"][..], &["l1*"], &["l0", "l2*"], &["l*"]]) };
    let recompute = again.iter().map(|p| (*p).into()).collect();
    let size = program.program.inputs.first().map_or(1, |i| graph.dims.size(i.0.dims[0]));
    let divisors: Vec<usize> = (2..=size).filter(|n| size.is_multiple_of(*n)).collect();
    let parts = !divisors.is_empty() && rng.one_in(2);
    let microbatches = parts.then(|| (rng.pick(&divisors), Span::default()));
    let copies: &[Option<&str>] = rng.pick(&[&[][..], &[None], &[Some("l1*"), Some("*.w")]]);
    let keep = copies.iter().map(|path| (path.map(Into::into), Span::default())).collect();
    let whens = [None, Some(ReduceWhen::Once), Some(ReduceWhen::ByPart)];
    let reduce_when = rng.pick(&whens).map(|when| (when, Span::default()));
    let chosen = Layout { loops, recompute, keep, microbatches, reduce_when, ..layout(&mesh, rules) };
    Placing { layout: chosen, grant }
}

/// The dim of a loop whose iterations could be stages: the only loop over its dim, in no other, from the first position on, with
/// carries.
pub(crate) fn stages_of(g: &Graph) -> Option<Dim> {
    let only = |dim: Dim| g.repeats.iter().filter(|r| r.dim == dim).count() == 1;
    let fit = |r: &&Repeat| r.parent.is_none() && !r.reverse && !r.carries.is_empty() && only(r.dim);
    g.repeats.iter().find(fit).map(|r| r.dim)
}

/// A random layout with two to four stages beside the other rules, in any order, and of any lengths.
pub(crate) fn staged(seed: u64, program: &Random) -> Placing {
    let mut placing = random(seed, program);
    let mut rng = Rng::new(seed ^ 0x57_A6E5);
    let graph = &program.program.graph;
    let Some(dim) = stages_of(graph) else { return placing };
    let layout = &mut placing.layout;
    let stages = 2 + rng.below(3);
    // As few other devices as leave a few for them.
    let mut axes = std::mem::take(&mut layout.mesh.axes);
    axes.iter_mut().for_each(|a| a.size = a.size.min(if rng.one_in(2) { 1 } else { 2 }));
    let axis = Axis(axes.len() as u8);
    axes.push(MeshAxis { name: "p".into(), size: stages });
    layout.mesh = Mesh { axes };
    // Two strict rules that want one axis would be an error.
    layout.rules.iter_mut().for_each(|r| r.free = true);
    layout.rules.push(rule(None, RuleDim::Dim(dim), &[axis.0], false));
    let schedule = rng.pick(&PipelineSchedule::ALL);
    let chunks = if schedule == PipelineSchedule::Gpipe { 1 } else { 1 + rng.below(3) };
    let lengths = (chunks > 1 || rng.one_in(2)).then(|| {
        let mut lengths = vec![0; stages * chunks];
        let stages = lengths.len();
        (0..graph.dims.size(dim)).for_each(|_| lengths[rng.below(stages)] += 1);
        lengths
    });
    let span = layout.rules[layout.rules.len() - 1].span;
    layout.pipeline = Some(PipelineRule { dim, axes: vec![axis], span, lengths });
    layout.order = PipelineOrder {
        schedule: Some((schedule, span)),
        chunks: (chunks > 1).then_some((chunks, span)),
        ..PipelineOrder::default()
    };
    placing
}
