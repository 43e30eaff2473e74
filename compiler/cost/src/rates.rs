//! Seconds of kernels and collectives of a Plan on a machine.

use crate::collective::{CollectiveTime, collective};
use crate::engine::{EngineFacts, EngineKind};
use crate::machine::{DeviceKind, Machine};
use crate::step::{DeviceRates, Seconds};
use crate::timeline::Prices;
use crate::work::{KernelWork, Transfer};
use meshwright_plan::Mesh;
use std::borrow::Cow;

/// What the kernels and the collectives of a Plan cost on a machine.
pub struct Rates<'m> {
    /// The machine, without what the engine does not use.
    machine: Cow<'m, Machine>,
    device: DeviceRates,
    mesh: Mesh,
    foreign: bool,
}

/// Name of the lines of a machine file that reduce in the switches of a node.
const IN_SWITCH: &str = "nvls";

impl<'m> Rates<'m> {
    /// On this machine, with this engine, for devices of this mesh and any other stages of a pipeline beside them.
    pub fn new(machine: &'m Machine, engine: &EngineKind, mesh: &Mesh) -> Rates<'m> {
        let device = DeviceRates::new(machine, mesh.devices(), &engine.attention());
        let machine = match engine {
            EngineKind::Foreign(facts) => Cow::Owned(without(machine, facts)),
            _ => Cow::Borrowed(machine),
        };
        Rates { machine, device, mesh: mesh.clone(), foreign: matches!(engine, EngineKind::Foreign(_)) }
    }

    /// The same for a stage of a pipeline: devices of a CPU share its cores with those of the other stages.
    pub fn of_stage(mut self, engine: &EngineKind, stages: usize) -> Rates<'m> {
        self.device = DeviceRates::new(&self.machine, self.mesh.devices() * stages, &engine.attention());
        self
    }

    /// Time and algorithm of a collective. The group is that of rank 0: groups of equal shape have equal times.
    pub fn collective(&self, transfer: &Transfer) -> CollectiveTime {
        let ranks = self.mesh.group(0, &transfer.axes);
        collective(&self.machine, transfer.kind, transfer.bytes, &ranks)
    }

    /// Seconds of a message to the next stage of a pipeline, whose ranks follow those of this mesh.
    pub fn hop(&self, bytes: f64) -> f64 {
        self.link(bytes, [0, self.mesh.devices()])
    }

    /// Seconds in which the devices of some stages, one of each, sum what they hold.
    pub(crate) fn stages_sum(&self, bytes: f64, stages: usize) -> f64 {
        let ranks: Vec<usize> = (0..stages).map(|k| k * self.mesh.devices()).collect();
        collective(&self.machine, meshwright_plan::CollectiveKind::AllReduce, bytes, &ranks).seconds
    }

    /// Seconds of a message between two ranks.
    pub(crate) fn link(&self, bytes: f64, ranks: [usize; 2]) -> f64 {
        collective(&self.machine, meshwright_plan::CollectiveKind::Permute, bytes, &ranks).seconds
    }

    /// Rates of the device.
    pub fn device(&self) -> &DeviceRates {
        &self.device
    }

    /// The machine, as the engine uses it.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }
}

fn without(machine: &Machine, facts: &EngineFacts) -> Machine {
    let mut machine = machine.clone();
    if !facts.nvls {
        machine.tier.iter_mut().for_each(|t| t.line.retain(|l| l.name != IN_SWITCH));
    }
    machine
}

impl Prices for Rates<'_> {
    fn work(&self, work: &KernelWork) -> Seconds {
        self.device.seconds(work)
    }

    fn transfer(&self, transfer: &Transfer) -> (f64, f64) {
        let time = self.collective(transfer);
        (time.seconds, time.units / f64::from(self.machine.device.units))
    }

    fn two_streams(&self) -> bool {
        // Of a CPU, where a collective does not take all of a device.
        self.machine.device.kind == DeviceKind::Gpu || self.machine.tier.iter().any(|t| t.units > 0.0)
    }

    fn stream_for_axes(&self) -> bool {
        // PyTorch's process groups have a stream each; this project's engine starts all collectives in the Plan's order.
        self.foreign
    }
}
