//! A device plan as text: what `explain --emit device` prints, and with all operations of Burn `--emit burn`.

use crate::arena::Spot;
use crate::collective::calls::{CallPiece, TransportCall};
use crate::costs::{CostTable, LaunchCosts};
use crate::launch::{DevicePlan, Launch, LaunchKind, LoopLaunch};
use crate::slot::{LaunchId, TensorSlot};
use burn_ir::{OperationIr, TensorIr, TensorStatus};
use meshwright_plan::Plan;
use meshwright_sorted::SortedMap;
use std::fmt::Write;

/// The text of a device plan: one line for each launch with its steps, the value of the model that it computes, the tensors that
/// it reads and writes with their places in the arena, and its costs. With `graphs` the operations of Burn have lines of their
/// own.
pub fn text(plan: &Plan, device: &DevicePlan, graphs: bool) -> String {
    let mut spots: SortedMap<LaunchId, Vec<Spot>> = SortedMap::new();
    for (launch, spot) in device.arena.of.iter().zip(&device.arena.spots) {
        spots.entry(*launch).or_default().push(*spot);
    }
    let costs = device.costs(plan);
    let mut printer = Printer { plan, device, graphs, spots, costs, out: String::new() };
    printer.head();
    printer.launches(&device.body, 0);
    printer.out
}

/// The value of the model that the last step of a launch computes, with the line where it has one: `layers.norm1, line 46`.
pub fn origin(plan: &Plan, launch: &Launch) -> Option<String> {
    let step = launch.steps.last().unwrap_or(&launch.step);
    plan.steps.get(*step)?.origin.first().map(|o| match o.line {
        0 => o.path.to_string(),
        line => format!("{}, line {line}", o.path),
    })
}

fn count(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

struct Printer<'a> {
    plan: &'a Plan,
    device: &'a DevicePlan,
    graphs: bool,
    /// Places of the results of each launch, run after run.
    spots: SortedMap<LaunchId, Vec<Spot>>,
    costs: CostTable<'a>,
    out: String,
}

impl Printer<'_> {
    fn line(&mut self, indent: usize, text: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.out, "{:indent$}{text}", "");
    }

    fn head(&mut self) {
        let totals = self.device.totals(self.plan);
        let (rank, devices, target) = (self.device.rank, self.plan.mesh.devices(), self.device.target);
        let kernels = count(totals.kernels, "kernel");
        let [of_burn, collectives] =
            [count(totals.burn, "operation"), count(totals.collectives, "collective")];
        let LaunchCosts { read, written, flops } = totals.traffic;
        self.line(
            0,
            format_args!(
                "rank {rank} of {devices} on {target}: {kernels} ({of_burn} of Burn), {collectives}"
            ),
        );
        self.line(
            0,
            format_args!(
                "{read} bytes read, {written} written, {flops} flops; arena {} bytes, peak {}",
                totals.arena_bytes, totals.peak_bytes
            ),
        );
        self.line(
            0,
            format_args!(
                "b: buffer of the plan, i: indices, k: constant, t: temporary, *: ends, @: place in the arena"
            ),
        );
        self.line(0, format_args!(""));
        for input in &self.plan.program_inputs {
            let buffer = self.plan.buffer(input.buf);
            let shape = buffer.shape(&self.plan.mesh, &self.plan.mesh.coords(rank));
            let (slot, dtype, name) = (TensorSlot::Buffer(input.buf), buffer.dtype, &input.name);
            self.line(0, format_args!("{slot} {dtype}{shape:?} = {name}"));
        }
        self.line(0, format_args!(""));
    }

    fn launches(&mut self, ids: &[LaunchId], indent: usize) {
        ids.iter().for_each(|id| self.launch(*id, indent));
    }

    fn launch(&mut self, id: LaunchId, indent: usize) {
        let device = self.device;
        let launch = &device.launches[id];
        let (name, of, frees) = (launch.kind.name(), self.of(launch), self.frees(launch));
        let head = format!("{} {name}", id.0);
        match &launch.kind {
            LaunchKind::Kernel(_) => {
                let tensors = self.tensors(id, launch);
                let in_place = device.arena.in_place.contains(&id);
                let costs = if in_place { " | in place".into() } else { self.costs(id) };
                self.line(indent, format_args!("{head} [{of}] {tensors}{costs}{frees}"));
            }
            LaunchKind::Burn(burn) => {
                let (costs, operations) = (self.costs(id), &burn.graph.operations);
                let names: Vec<String> = operations.iter().map(operation_name).collect();
                let names = if self.graphs { String::new() } else { names.join(", ") };
                self.line(indent, format_args!("{head} [{of}] {names}{costs}{frees}"));
                if self.graphs {
                    operations.iter().for_each(|operation| self.operation(indent + 4, operation));
                }
            }
            LaunchKind::Free => self.line(indent, format_args!("{head}{frees}")),
            LaunchKind::Collective(collective) => {
                let starts = if collective.async_id.is_some() { " start" } else { "" };
                let ranks = collective.prepared.group.ranks();
                self.line(indent, format_args!("{head}{starts} [{of}] of ranks {ranks:?}{frees}"));
                self.launches(&collective.pack, indent + 4);
                for call in &collective.calls {
                    self.call(indent + 4, call);
                }
                self.launches(&collective.unpack, indent + 4);
            }
            LaunchKind::Wait { start, unpack } => {
                self.line(indent, format_args!("{head} for {}{frees}", start.0));
                self.launches(unpack, indent + 4);
            }
            LaunchKind::Loop(of) => self.iterations(&head, of, indent),
        }
    }

    fn iterations(&mut self, head: &str, of: &LoopLaunch, indent: usize) {
        let (dim, times) = (self.plan.dims.name(of.dim), of.times());
        let lowest = if of.from > 0 { format!(" from {} on", of.from) } else { String::new() };
        let from = if of.reverse { ", from the last" } else { "" };
        self.line(indent, format_args!("{head} over the {times} positions of {dim}{lowest}{from}"));
        for c in &of.carries {
            let [start, current, next, last] = [c.start, c.current, c.next, c.last].map(TensorSlot::Buffer);
            let ends = if c.ends { "*" } else { "" };
            self.line(indent + 4, format_args!("{current} = {start}{ends}, then {next}; in the end {last}"));
        }
        self.launches(&of.body, indent + 4);
    }

    /// The steps of a launch, and the value of the model that the last of them computes.
    fn of(&self, launch: &Launch) -> String {
        let name = |s: &usize| format!("{s} {}", self.plan.steps[*s].name());
        let steps: Vec<String> = match launch.steps.is_empty() {
            true => return format!("for {}", name(&launch.step)),
            false => launch.steps.iter().map(name).collect(),
        };
        let origin = origin(self.plan, launch).map_or_else(String::new, |origin| format!(" of {origin}"));
        format!("{}{origin}", steps.join(", "))
    }

    fn tensors(&self, id: LaunchId, launch: &Launch) -> String {
        let reads: Vec<String> = launch.reads.iter().map(|t| self.tensor(t)).collect();
        let spots = self.spots.get(&id).map_or(&[][..], Vec::as_slice);
        let many = launch.writes.len();
        let written = launch.writes.iter().enumerate().map(|(k, t)| {
            let mut places: Vec<String> = spots.iter().skip(k).step_by(many).filter_map(place).collect();
            places.dedup();
            format!("{}{}", self.tensor(t), places.join(""))
        });
        format!("{} -> {}", reads.join(", "), written.collect::<Vec<_>>().join(", "))
    }

    fn costs(&self, id: LaunchId) -> String {
        let LaunchCosts { read, written, flops } = self.costs.of(id);
        let flops = if flops > 0 { format!(", {flops} flops") } else { String::new() };
        if read + written == 0 { flops } else { format!(" | {read} + {written} bytes{flops}") }
    }

    fn call(&mut self, indent: usize, call: &TransportCall) {
        let monoid = call.monoid.map(|m| format!(" {m:?}").to_lowercase()).unwrap_or_default();
        let root = call.root.map(|r| format!(" from {r}")).unwrap_or_default();
        let name = format!("{}{monoid}{root}", call.kind);
        for (send, receive) in call.send.iter().zip(&call.receive) {
            self.line(indent, format_args!("{name} {} -> {}", self.piece(send), self.piece(receive)));
        }
    }

    fn operation(&mut self, indent: usize, operation: &OperationIr) {
        if let OperationIr::Drop(tensor) = operation {
            return self.line(indent, format_args!("drop {}", self.device.slots.name(tensor.id)));
        }
        let list = |tensors: Vec<&TensorIr>| {
            tensors.into_iter().map(|t| self.tensor(t)).collect::<Vec<_>>().join(", ")
        };
        let (name, from) = (operation_name(operation), list(operation.inputs().collect()));
        let to = list(operation.outputs().collect());
        self.line(indent, format_args!("{name} {from} -> {to}"));
    }

    /// The memory that a transport sends or receives.
    fn piece(&self, of: &CallPiece) -> String {
        let ends = if of.ends { "*" } else { "" };
        let told = |id| format!("{}{ends} {}{:?}", self.device.slots.name(id), of.dtype, of.shape);
        of.tensor.map_or_else(|| "nothing".into(), told)
    }

    fn frees(&self, launch: &Launch) -> String {
        let slots: Vec<String> = launch.frees.iter().map(|id| self.device.slots.name(*id)).collect();
        if slots.is_empty() { String::new() } else { format!("; frees {}", slots.join(", ")) }
    }

    fn tensor(&self, t: &TensorIr) -> String {
        let ends = if t.status == TensorStatus::ReadWrite { "*" } else { "" };
        format!("{}{ends} {}{:?}", self.device.slots.name(t.id), t.dtype.name(), t.shape.to_vec())
    }
}

fn place(spot: &Spot) -> Option<String> {
    match spot {
        Spot::At { start, .. } => Some(format!(" @{start}")),
        Spot::Operand => Some(" @operand".into()),
        Spot::Own => None,
    }
}

/// The name of an operation of Burn.
pub(crate) fn operation_name(operation: &OperationIr) -> String {
    // Burn's operations have no names except those of their variants: `BaseFloat(Reshape(ShapeOpIr { …`.
    let text = format!("{operation:?}");
    let variants = text.split("OpIr").next().unwrap_or_default();
    let variant = variants.rsplit('(').nth(1).unwrap_or(variants);
    let mut name = String::new();
    for c in variant.rsplit(' ').next().unwrap_or(variant).chars() {
        if c.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(c.to_lowercase());
    }
    name
}
