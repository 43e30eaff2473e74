//! Compiles steps with the real compiler and runs them on the real runtime.

use meshwright_comm::Timeouts;
use meshwright_core::layout::{Layout, Rule, RuleDim, Scope, ScopeClass};
use meshwright_core::partition::Instr;
use meshwright_core::{StepGraph, compile};
use meshwright_exec::{Cluster, ClusterOptions, DeviceKind, HostTensor, LocalInput, Provider};
use meshwright_plan::{Axis, Dim, Dims, Mesh, Plan, ProgramInputKind};
use meshwright_sorted::SortedMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Tensors by name.
pub(crate) type Tensors = SortedMap<String, HostTensor>;

/// Results by name, with their dims in the order of storage.
pub(crate) type Outputs = SortedMap<String, (HostTensor, Vec<Dim>)>;

/// A layout of rules written by hand.
pub(crate) fn layout(mesh: &Mesh, rules: Vec<Rule>) -> Layout {
    Layout { mesh: mesh.clone(), rules, ..Layout::default() }
}

/// `dim -> axes`, in a scope; `free` for `when free`.
pub(crate) fn rule(scope: Option<ScopeClass>, dim: RuleDim, axes: &[u8], free: bool) -> Rule {
    Rule {
        scope: Scope { kind: scope, path: None },
        dim,
        axes: axes.iter().map(|a| Axis(*a)).collect(),
        free,
        span: Default::default(),
        number: 1,
        text: String::new(),
    }
}

/// A rule in words.
pub(crate) fn say(rule: &Rule, mesh: &Mesh, names: &Dims) -> String {
    let kind = rule.scope.kind.map_or("", |k| k.word());
    let path = rule.scope.path.as_deref().unwrap_or("");
    let scope = if kind.is_empty() && path.is_empty() { String::new() } else { format!("{kind}{path}: ") };
    let dim = match rule.dim {
        RuleDim::Any => "*",
        RuleDim::Dim(d) => names.name(d),
    };
    let axes: Vec<&str> = rule.axes.iter().map(|a| mesh.name(*a)).collect();
    format!("{scope}{dim} -> {}{}", axes.join(", "), if rule.free { " when free" } else { "" })
}

/// `dim -> axes` everywhere.
pub(crate) fn to(dim: Dim, axes: &[u8]) -> Rule {
    rule(None, RuleDim::Dim(dim), axes, false)
}

/// `dim -> axes when free` everywhere.
pub(crate) fn free(dim: Dim, axes: &[u8]) -> Rule {
    rule(None, RuleDim::Dim(dim), axes, true)
}

/// Why a step was not compiled.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Rules want one axis for two dims of a value, or a gather was not granted: codes of the errors.
    Layout(Vec<String>),
    /// A bug: an assertion of the compiler.
    Bug(String),
}

/// A compiled step.
pub(crate) struct Planned {
    /// Its Plan.
    pub(crate) plan: Plan,
    /// Dims whose gathers had to be granted.
    pub(crate) granted: usize,
    /// Collectives, before they are bundled.
    pub(crate) collectives: usize,
}

/// The Plan of a step. Gathers that the compiler asks for are granted where `grant` says so.
pub(crate) fn plan(step: &StepGraph, layout: &Layout, grant: bool) -> Result<Planned, Refused> {
    let mut layout = layout.clone();
    for _ in 0..64 {
        let done = catch_unwind(AssertUnwindSafe(|| compile(step, &layout, &|_| 0, &mut |_, _| {})));
        let (compiled, diagnostics) = done.map_err(|panic| Refused::Bug(panic_text(&*panic)))?;
        if let Some(c) = compiled {
            let moves = c
                .spmd
                .instrs
                .iter()
                .filter(|i| matches!(i, Instr::Reshard { kind, .. } if kind.collective().is_some()));
            return Ok(Planned { granted: layout.gathers.len(), collectives: moves.count(), plan: c.plan });
        }
        let mut codes: Vec<String> = Vec::new();
        let mut asked: Vec<Dim> = Vec::new();
        for d in diagnostics.iter().filter(|d| d.is_error()) {
            codes.push(d.code.id.to_string());
            let names = d.helps.iter().filter_map(|h| h.split("`gather ").nth(1)?.split('`').next());
            asked.extend(names.filter_map(|n| step.graph.dims.find(n)));
        }
        asked.retain(|d| !layout.gathers.contains(d));
        if !grant || asked.is_empty() || codes.iter().any(|c| c != "E0310") {
            return Err(Refused::Layout(codes));
        }
        layout.gathers.extend(asked);
    }
    Err(Refused::Bug("the compiler asks for ever more gathers".into()))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_else(|| "a panic".into())
}

/// Gives each device its part of whole inputs.
pub(crate) fn provider(inputs: Tensors) -> Provider {
    Arc::new(move |_, needed: &[LocalInput]| {
        let part = |leaf: &LocalInput| {
            let whole = inputs.get(&leaf.name).ok_or_else(|| format!("no input `{}`", leaf.name))?;
            whole
                .slice(&leaf.ranges)
                .ok_or_else(|| format!("`{}`: {:?} is out of range", leaf.name, leaf.ranges))
        };
        needed.iter().map(part).collect()
    })
}

/// Devices of some kind for a mesh.
pub(crate) fn cluster_of(mesh: &Mesh, device: DeviceKind) -> Cluster {
    // What is compiled when it first runs takes longer.
    let timeouts = Timeouts::all(Duration::from_secs(120));
    Cluster::threads(mesh, &ClusterOptions { cores: Some(1), timeouts, ..ClusterOptions::on(device) })
        .unwrap()
}

/// Plans that a cluster has loaded before it is replaced: loaded plans stay, and so do their parameters.
const LOADS: usize = 200;

/// A cluster for each mesh, kept from one plan to the next.
pub(crate) struct Devices {
    clusters: SortedMap<String, (Cluster, usize)>,
    /// What the devices are.
    kind: DeviceKind,
    /// Plans run so far.
    pub(crate) runs: usize,
}

impl Default for Devices {
    fn default() -> Devices {
        Devices::of(meshwright_cpu::device())
    }
}

impl Devices {
    /// Devices of some kind.
    pub(crate) fn of(kind: DeviceKind) -> Devices {
        Devices { clusters: SortedMap::new(), kind, runs: 0 }
    }

    /// Runs a plan once and gives its outputs, whole. `states` are the values of its parameters.
    pub(crate) fn run(&mut self, plan: Plan, inputs: &Tensors, states: &Tensors) -> Result<Outputs, String> {
        self.runs += 1;
        let key = plan.mesh.describe();
        let (mut cluster, loads) = match self.clusters.remove(&key) {
            Some((c, n)) if n < LOADS => (c, n),
            _ => (cluster_of(&plan.mesh, self.kind.clone()), 0),
        };
        // On failure the cluster is dropped: its devices have ended.
        let dims: Vec<(String, Vec<Dim>)> =
            plan.outputs.iter().map(|o| (o.name.clone(), o.dims.clone())).collect();
        let mut out = once(&mut cluster, plan, self.runs, inputs, states)?;
        self.clusters.insert(key, (cluster, loads + 1));
        Ok(dims.into_iter().filter_map(|(n, d)| Some((n.clone(), (out.remove(&n)?, d)))).collect())
    }
}

/// Plans of one cluster share parameters by name, so each is given names of its own.
fn once(
    cluster: &mut Cluster,
    mut plan: Plan,
    run: usize,
    inputs: &Tensors,
    states: &Tensors,
) -> Result<Tensors, String> {
    for leaf in plan
        .program_inputs
        .iter_mut()
        .filter(|l| matches!(l.kind, ProgramInputKind::Param | ProgramInputKind::OptimizerState))
    {
        leaf.name = format!("{run}:{}", leaf.name);
    }
    let held: Vec<String> = plan.program_inputs.iter().map(|l| l.name.clone()).collect();
    let program = cluster.load(Arc::new(plan)).map_err(|e| e.to_string())?;
    for (name, value) in states {
        let name = format!("{run}:{name}");
        if held.contains(&name) {
            cluster.set_state(&name, value).map_err(|e| e.to_string())?;
        }
    }
    let report = cluster.run(program, 1, &provider(inputs.clone())).map_err(|e| e.to_string())?;
    Ok(report.outputs)
}
