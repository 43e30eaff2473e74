//! The graphs of a device as text: what `explain --emit burn` prints.

use super::builder::build;
use super::context::place;
use super::graph::{Segment, TensorSlot};
use super::pieces::{CollectivePiece, Piece};
use crate::backend::native::Native;
use crate::backend::{Backend, burn};
use crate::cluster::devices::CpuBackend;
use crate::collective::calls::TransportCall;
use crate::error::ExecError;
use burn_ir::{OperationIr, TensorIr, TensorStatus};
use meshwright_plan::Plan;
use std::fmt::Write;

/// The graphs that the device of that rank runs, on a backend of CPUs: for each segment its operations, by step of the Plan, with the
/// tensors that they read and write; the collectives between them; and what they are packed and unpacked by.
///
/// # Errors
/// Where the Plan contradicts itself.
pub fn burn_graphs(plan: &Plan, rank: usize, backend: CpuBackend) -> Result<String, ExecError> {
    let (pieces, kernels) = match backend {
        CpuBackend::Native => parts(&Native::default(), plan, rank)?,
        CpuBackend::Burn => parts(&burn::flex(&meshwright_gpu::load::Paths::default()), plan, rank)?,
    };
    let mut out = String::new();
    let mut printer = Printer { plan, rank, out: &mut out };
    printer.head(&pieces, kernels);
    printer.pieces(&pieces);
    Ok(out)
}

/// What a device runs, and how many kernels that has.
fn parts<B: Backend>(backend: &B, plan: &Plan, rank: usize) -> Result<(Vec<Piece>, usize), ExecError> {
    let built = build(backend, plan, rank)?;
    Ok((built.pieces, built.kernels.len()))
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

struct Printer<'a> {
    plan: &'a Plan,
    rank: usize,
    out: &'a mut String,
}

impl Printer<'_> {
    fn line(&mut self, indent: usize, text: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.out, "{:indent$}{text}", "");
    }

    fn head(&mut self, pieces: &[Piece], kernels: usize) {
        let mut operations = 0;
        let (mut segments, mut collectives) = (0, 0);
        let mut todo: Vec<&Piece> = pieces.iter().collect();
        while let Some(piece) = todo.pop() {
            match piece {
                Piece::Repeat(repeat) => todo.extend(&repeat.body),
                Piece::Segment(segment) => {
                    segments += 1;
                    operations += segment.graph.operations.len();
                }
                Piece::Collective(c) => {
                    collectives += 1;
                    operations += c.pack.graph.operations.len() + c.unpack.graph.operations.len();
                }
                Piece::Wait { unpack, .. } => operations += unpack.graph.operations.len(),
            }
        }
        let devices = self.plan.mesh.devices();
        let [segments, operations] = [count(segments, "segment"), count(operations, "operation")];
        let [kernels, collectives] = [count(kernels, "kernel"), count(collectives, "collective")];
        let rank = self.rank;
        self.line(
            0,
            format_args!("rank {rank} of {devices}: {segments} with {operations} ({kernels}), {collectives}"),
        );
        self.line(0, format_args!("b: buffer of the plan, t: temporary, *: ends here"));
        self.line(0, format_args!(""));
        for input in &self.plan.program_inputs {
            let buffer = self.plan.buffer(input.buf);
            let shape = buffer.shape(&self.plan.mesh, &self.plan.mesh.coords(self.rank));
            let (slot, dtype, name) = (TensorSlot::Buffer(input.buf), buffer.dtype, &input.name);
            self.line(0, format_args!("{slot} {dtype}{shape:?} = {name}"));
        }
    }

    fn pieces(&mut self, pieces: &[Piece]) {
        for (number, piece) in pieces.iter().enumerate() {
            self.piece(number, piece, pieces);
        }
    }

    fn piece(&mut self, number: usize, piece: &Piece, around: &[Piece]) {
        self.line(0, format_args!(""));
        match piece {
            Piece::Segment(segment) => {
                let operations = count(segment.graph.operations.len(), "operation");
                self.line(0, format_args!("segment {number}: {operations}"));
                self.segment(segment);
            }
            Piece::Collective(collective) => self.collective(number, collective),
            Piece::Repeat(repeat) => {
                let (dim, times) = (self.plan.dims.name(repeat.dim), self.plan.dims.size(repeat.dim));
                let from = if repeat.reverse { ", from the last" } else { "" };
                self.line(
                    0,
                    format_args!(
                        "loop {number} (step {}): over the {times} positions of {dim}{from}",
                        repeat.step
                    ),
                );
                for c in &repeat.carries {
                    let [start, current, next, last] =
                        [c.start, c.current, c.next, c.last].map(TensorSlot::Buffer);
                    let ends = if c.ends { "*" } else { "" };
                    self.line(2, format_args!("{current} = {start}{ends}, then {next}; in the end {last}"));
                }
                self.pieces(&repeat.body);
                self.line(0, format_args!(""));
                self.line(0, format_args!("end of loop {number}"));
            }
            Piece::Wait { start, step, unpack } => {
                let name = match around.get(*start) {
                    Some(Piece::Collective(c)) => self.plan.steps[c.step].name(),
                    _ => "",
                };
                self.line(
                    0,
                    format_args!("wait {number}: for the {name} that {start} started (step {step})"),
                );
                self.operations("unpack", unpack);
            }
        }
    }

    fn segment(&mut self, segment: &Segment) {
        let mut last = None;
        for (operation, step) in segment.graph.operations.iter().zip(&segment.steps) {
            if last.replace(*step) != Some(*step) {
                self.step(*step);
            }
            self.operation(6, operation);
        }
    }

    fn step(&mut self, step: usize) {
        let place = place(self.plan, self.rank, None, Some(step));
        let line = if place.line > 0 { format!(", line {}", place.line) } else { String::new() };
        let name = self.plan.steps[step].name();
        self.line(2, format_args!("step {step}: {name} of {}{line}", place.value));
    }

    fn collective(&mut self, number: usize, collective: &CollectivePiece) {
        let name = self.plan.steps[collective.step].name();
        let starts = if collective.async_id.is_some() { " (start)" } else { "" };
        let ranks = collective.prepared.group.ranks();
        self.line(0, format_args!("collective {number}: {name}{starts} of ranks {ranks:?}"));
        self.step(collective.step);
        self.operations("pack", &collective.pack);
        for call in &collective.calls {
            self.call(call);
        }
        self.operations("unpack", &collective.unpack);
    }

    fn call(&mut self, call: &TransportCall) {
        let monoid = call.monoid.map(|m| format!(" {m:?}").to_lowercase()).unwrap_or_default();
        let name = format!("{}{monoid}", call.kind);
        for (send, receive) in call.send.iter().zip(&call.receive) {
            let text = |piece: &crate::collective::calls::CallPiece| match piece.slot {
                Some(slot) => {
                    let ends = if piece.ends { "*" } else { "" };
                    format!("{slot}{ends} {}{:?}", piece.dtype, piece.shape)
                }
                None => "nothing".into(),
            };
            let (from, mut to) = (text(send), receive.clone());
            to.ends = false;
            self.line(6, format_args!("{name}({from}) -> {}", text(&to)));
        }
    }

    fn operations(&mut self, what: &str, segment: &Segment) {
        if !segment.graph.operations.is_empty() {
            self.line(4, format_args!("{what}:"));
        }
        for operation in &segment.graph.operations {
            self.operation(6, operation);
        }
    }

    fn operation(&mut self, indent: usize, operation: &OperationIr) {
        if let OperationIr::Drop(tensor) = operation {
            return self.line(indent, format_args!("drop({})", TensorSlot::of(tensor.id)));
        }
        let list = |tensors: Vec<&TensorIr>| tensors.into_iter().map(tensor).collect::<Vec<_>>().join(", ");
        let (name, from) = (name(operation), list(operation.inputs().collect()));
        let to = list(operation.outputs().collect());
        self.line(indent, format_args!("{name}({from}) -> {to}"));
    }
}

fn tensor(t: &TensorIr) -> String {
    let ends = if t.status == TensorStatus::ReadWrite { "*" } else { "" };
    format!("{}{ends} {}{:?}", TensorSlot::of(t.id), t.dtype.name(), t.shape.to_vec())
}

/// A kernel's name, or that of Burn's operation.
fn name(operation: &OperationIr) -> String {
    if let OperationIr::Custom(kernel) = operation {
        return kernel.id.clone();
    }
    // Burn has no names but those of its variants: `BaseFloat(Reshape(ShapeOpIr { …`.
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
