//! The stages of a program as text, for `--emit` and the cases: one line a value, stable and diffable.

use crate::partition::{Instr, Reshard, Spmd};
use crate::step::step_graph::StepGraph;
use meshwright_ops::{Graph, InputOpKind, Kind, Node, RepeatId};
use meshwright_plan::expr::Scalar;
use meshwright_plan::{Axis, Dim, Dims, Expr, Init, Mesh, Operand, Plan, Prim, Step};
use std::fmt::Write;

/// A step graph.
pub fn graph(step: &StepGraph) -> String {
    let mut out = String::new();
    let g = &step.graph;
    let mut before = None;
    for id in g.ids() {
        let n = g.node(id);
        if n.scope != before {
            head(&mut out, g, before, n.scope);
            before = n.scope;
        }
        out.push_str(&"  ".repeat(depth(g, n.scope)));
        let args: Vec<String> = n.inputs.iter().map(|i| format!("%{}", i.0)).collect();
        let range = n.ty.range.map_or(String::new(), |r| format!(" in {}", g.dims.name(r)));
        let name = if n.origin.name.is_empty() { String::new() } else { format!("  // {}", n.origin.name) };
        let _ = writeln!(
            out,
            "%{} = {}({}){}: {}{}{range}{name}",
            id.0,
            n.op.name(),
            args.join(", "),
            attribute(g, n),
            n.ty.dtype,
            g.dims.list(&n.ty.dims)
        );
    }
    for goal in &step.outputs {
        let _ = writeln!(out, "{} = %{}", goal.name, goal.id.0);
    }
    out
}

/// How many loops a scope is in.
fn depth(g: &Graph, mut scope: Option<RepeatId>) -> usize {
    let mut depth = 0;
    while let Some(of) = scope {
        depth += 1;
        scope = g.repeats[of].parent;
    }
    depth
}

/// The heads of the loops that begin where a list of values goes from one scope to another.
fn head(out: &mut String, g: &Graph, before: Option<RepeatId>, scope: Option<RepeatId>) {
    let mut begin = Vec::new();
    let mut inner = scope;
    while let Some(of) = inner.filter(|_| !g.within(before, inner)) {
        begin.push(of);
        inner = g.repeats[of].parent;
    }
    for of in begin.into_iter().rev() {
        let r = &g.repeats[of];
        let carries: Vec<String> = r.carries.iter().map(|(c, n)| format!("%{} <- %{}", c.0, n.0)).collect();
        let _ = writeln!(
            out,
            "{}repeat {}{}{}  {} times{}{}",
            "  ".repeat(depth(g, r.parent)),
            g.dims.name(r.dim),
            if r.reverse { " reversed" } else { "" },
            if r.from > 0 { format!(" from {}", r.from) } else { String::new() },
            g.iterations(of),
            if carries.is_empty() { "" } else { "; " },
            carries.join(", ")
        );
    }
}

/// What tells ops of one name apart and does not show in their types.
fn attribute(g: &Graph, n: &Node) -> String {
    match n.op.kind() {
        Kind::Input(
            InputOpKind::Param { init, .. }
            | InputOpKind::OptimizerState { init, .. }
            | InputOpKind::State { init, .. },
        ) => match init {
            Init::Constant(v) => format!(" = {v}"),
            Init::Normal { mean, std } => format!(" = normal({mean}, {std})"),
            Init::TruncatedNormal { mean, std } => format!(" = truncated_normal({mean}, {std})"),
            Init::Uniform { low, high } => format!(" = uniform({low}, {high})"),
        },
        Kind::Rename { from, to } => format!(" {} -> {}", g.dims.name(from), g.dims.name(to)),
        Kind::Rematerializable(_) => {
            let mut e = Expr::default();
            let made = n.op.scalar(&mut e, &[], &[], &n.ty, &g.dims).and_then(|r| e.nodes.get(r as usize));
            match made.map(|n| n.scalar) {
                Some(Scalar::Const(v)) => format!(" {v}"),
                _ => n.op.detail(),
            }
        }
        _ => String::new(),
    }
}

/// An SPMD program: every copy with its placement, and for ops what was decided.
pub fn spmd(s: &Spmd) -> String {
    let mut out = String::new();
    let g = &s.step.graph;
    for (i, instr) in s.instrs.iter().enumerate() {
        for l in s.loops.iter().filter(|l| l.body.start == i) {
            let depth = s.loops.iter().filter(|o| o.body.contains(&i)).count() - 1;
            let carries: Vec<String> =
                l.carries.iter().map(|c| format!("@{} <- @{}", c.current.0, c.next.0)).collect();
            let dim = g.dims.name(g.repeats[l.of].dim);
            let _ = writeln!(out, "{}repeat {dim}  {}", "  ".repeat(depth), carries.join(", "));
        }
        out.push_str(&"  ".repeat(s.loops.iter().filter(|l| l.body.contains(&i)).count()));
        let v = s.copy(instr.out());
        let place = v.placement.describe(&g.dims, &s.mesh);
        let what = match instr {
            Instr::Input { .. } => g.node(v.value).op.name().to_string(),
            Instr::Op { inputs, .. } => {
                let args: Vec<String> = inputs.iter().map(|i| format!("@{}", i.0)).collect();
                format!("{}({})", g.node(v.value).op.name(), args.join(", "))
            }
            Instr::Reshard { kind, from, .. } => format!("{} @{}", describe_move(kind, s), from.0),
        };
        let because = match instr {
            Instr::Reshard { cause, .. } if !cause.because.is_empty() => {
                format!("  because {}", cause.because)
            }
            Instr::Op { .. } => match s.decisions.get(&v.value).filter(|d| !d.loops.is_empty()) {
                Some(d) => format!("  // {}", d.describe(&g.dims, &s.mesh)),
                None => String::new(),
            },
            _ => String::new(),
        };
        let stored = if v.in_bf16 { " in bf16" } else { "" };
        let _ =
            writeln!(out, "@{} = {what}: {} {place}{stored}{because}", instr.out().0, g.describe(v.value));
    }
    for (goal, v) in s.step.outputs.iter().zip(&s.outputs) {
        let _ = writeln!(out, "{} = @{}", goal.name, v.0);
    }
    out
}

/// A move with its axes and dims.
pub(crate) fn describe_move(m: &Reshard, s: &Spmd) -> String {
    let names = &s.step.graph.dims;
    let over = |axes: &[Axis]| axis_names(axes, &s.mesh);
    match m {
        Reshard::Collective(c) => {
            let c = c.spec();
            let root = c.root.map_or_else(String::new, |root| format!("[from {root}]"));
            let monoid = c.monoid.map_or(root, |m| format!("[{m}]"));
            let [join, split] = [c.join, c.split].map(|dims| dim_names(dims, names));
            let dims = match (c.join, c.split) {
                ([], []) => c.moves_ranges().map_or_else(String::new, |d| format!(" {}", names.name(d))),
                ([], _) => format!(" -> {split}"),
                (_, []) => format!(" <- {join}"),
                _ => format!(" {join} -> {split}"),
            };
            format!("{}{monoid} {}{dims}", c.kind, over(c.axes))
        }
        Reshard::SliceWindow { dim, axes, .. } => {
            format!("slice_window {} -> {}", over(axes), names.name(*dim))
        }
        Reshard::Slice { axis, dim } => format!("slice {} -> {}", over(&[*axis]), names.name(*dim)),
    }
}

fn dim_names(dims: &[Dim], names: &Dims) -> String {
    dims.iter().map(|d| names.name(*d)).collect::<Vec<_>>().join(" ")
}

fn axis_names(axes: &[Axis], mesh: &Mesh) -> String {
    axes.iter().map(|a| mesh.name(*a)).collect::<Vec<_>>().join(",")
}

/// A Plan: every step with its buffers, reuse and releases.
pub fn plan(p: &Plan) -> String {
    let mut out = String::new();
    let operand = |o: &Operand| {
        let b = p.buffer(o.buf);
        let dims: Vec<String> = o
            .dims
            .iter()
            .zip(&b.extents)
            .map(|(d, e)| {
                let axes = axis_names(&e.axes, &p.mesh);
                let split = if axes.is_empty() { String::new() } else { format!(":{axes}") };
                let window = if e.window.is_some() { "+" } else { "" };
                let rotated = if e.rotated > 0 { format!("+{}", e.rotated) } else { String::new() };
                format!("{}{split}{window}{rotated}", p.dims.name(*d))
            })
            .collect();
        format!("b{}[{}]", o.buf.0, dims.join(" "))
    };
    for l in &p.program_inputs {
        let o = Operand { buf: l.buf, dims: l.dims.clone() };
        let next = l.next.map_or(String::new(), |n| format!(" -> b{}", n.0));
        let _ = writeln!(out, "leaf {} = {}{next}", l.name, operand(&o));
    }
    let mut depth = 0;
    for s in &p.steps {
        depth -= usize::from(matches!(s.prim, Prim::EndRepeat) && depth > 0);
        out.push_str(&"  ".repeat(depth));
        depth += usize::from(matches!(s.prim, Prim::Repeat { .. }));
        if s.lag > 0 {
            let _ = write!(out, "{} behind: ", s.lag);
        }
        let list = |x: &[Operand]| x.iter().map(&operand).collect::<Vec<_>>().join(", ");
        let _ = match &s.prim {
            Prim::Wait => write!(out, "wait {}", list(&s.reads)),
            _ => write!(out, "{} = {} ({})", list(&s.writes), describe_step(p, s), list(&s.reads)),
        };
        for (a, b) in &s.aliases {
            let _ = write!(out, " b{}=>b{}", a.0, b.0);
        }
        if !s.free.is_empty() {
            let free: Vec<String> = s.free.iter().map(|b| format!("b{}", b.0)).collect();
            let _ = write!(out, " free {}", free.join(" "));
        }
        let mut paths: Vec<&str> = s.origin.iter().map(|w| &*w.path).collect();
        paths.dedup();
        if !paths.is_empty() {
            let _ = write!(out, "  // {}", paths.join(", "));
        }
        let _ = writeln!(out);
    }
    for o in &p.outputs {
        let _ = writeln!(out, "output {} = b{}", o.name, o.buf.0);
    }
    out
}

/// The primitive with what tells it apart.
fn describe_step(p: &Plan, s: &Step) -> String {
    match &s.prim {
        Prim::Map { expr, regs } => {
            let roots: Vec<String> = regs.iter().map(|r| expression(expr, *r)).collect();
            format!("map {{ {} }}", roots.join("; "))
        }
        Prim::Reduce { monoid } => format!("reduce[{monoid}]"),
        Prim::Collective(c) => {
            let spec = c.spec();
            let window = spec.moves_ranges();
            let moved =
                [spec.join, spec.split, window.as_slice()].into_iter().filter(|dims| !dims.is_empty());
            let moved: Vec<String> = moved.map(|dims| dim_names(dims, &p.dims)).collect();
            let root = spec.root.map(|root| format!("from {root}"));
            let attributes = spec.monoid.map(|m| m.name().to_string()).or(root).into_iter();
            let attributes = attributes.chain((!moved.is_empty()).then(|| moved.join(" -> ")));
            let attributes = attributes.collect::<Vec<_>>().join(" ");
            let start = if s.async_id.is_some() { "start " } else { "" };
            format!("{start}{}[{attributes}] {}", spec.kind, axis_names(spec.axes, &p.mesh))
        }
        Prim::Attention { spec, parts } => {
            let parts: Vec<&str> = parts.iter().map(|p| p.name()).collect();
            let of = if spec.rounds { " of tf32" } else { "" };
            format!("{}[{}]{of}", s.name(), parts.join(" "))
        }
        Prim::Random { stream, distribution } => {
            format!("random {{ {} of `{stream}` }}", meshwright_ops::describe_random(distribution))
        }
        Prim::Repeat { dim, reverse, from, axes } => {
            let from = if *from > 0 { format!(" from {from}") } else { String::new() };
            let reversed = if *reverse { " reversed" } else { "" };
            let over =
                if axes.is_empty() { String::new() } else { format!(" over {}", axis_names(axes, &p.mesh)) };
            format!("repeat {}{reversed}{from}{over}", p.dims.name(*dim))
        }
        Prim::IterationSlice { dim } | Prim::IterationUpdate { dim } => {
            format!("{} {}", s.name(), p.dims.name(*dim))
        }
        Prim::DynamicUpdateSlice { dim, iteration, .. } => {
            let dims: Vec<&str> = iteration.iter().chain([dim]).map(|d| p.dims.name(*d)).collect();
            format!("{} {}", s.name(), dims.join(" "))
        }
        Prim::Receive { axes, .. } | Prim::Send { axes, .. } => {
            format!("{} {}", s.name(), axis_names(axes, &p.mesh))
        }
        Prim::Blank { zero: true } => "blank zeros".to_string(),
        _ => s.name().to_string(),
    }
}

fn expression(e: &Expr, r: u16) -> String {
    let n = &e.nodes[r as usize];
    let sub = |r: u16| expression(e, r);
    match n.scalar {
        Scalar::Load(i) => format!("${i}"),
        Scalar::Const(v) => format!("{v}"),
        Scalar::Index(k) => format!("index{k}"),
        Scalar::PairIndex(a) => format!("index_of({})", sub(a)),
        Scalar::Unary(f, a) => format!("{}({})", f.name(), sub(a)),
        Scalar::Binary(f, a, b) => format!("{}({}, {})", format!("{f:?}").to_lowercase(), sub(a), sub(b)),
        Scalar::Select(c, a, b) => format!("select({}, {}, {})", sub(c), sub(a), sub(b)),
        Scalar::Cast(a) => format!("{}({})", n.dtype, sub(a)),
    }
}
