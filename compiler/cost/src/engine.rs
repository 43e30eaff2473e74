//! What executes a Plan: an engine of this project, or a foreign one by the facts that its authors document.

use crate::machine::{DeviceKind, Machine};
use meshwright_device::target::Target;
use serde::{Deserialize, Serialize};

/// An engine.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineKind {
    /// Devices as threads of a process.
    Threads,
    /// Devices as processes.
    Mpi,
    /// Devices as GPUs.
    Cuda,
    /// Another system.
    Foreign(Box<EngineFacts>),
}

/// Facts about another system, as its authors document them. None is fitted. The facts that [`EngineFacts::unread`] names
/// describe a run for readers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineFacts {
    /// Kernel of attention: `unfused`, or a name in the machine file such as `flash2`.
    pub attention: String,
    /// `fused`: chains of element-wise operations are one kernel; `eager`: a kernel for each.
    pub fusion: String,
    /// Queries, keys and values are one product.
    pub fused_projections: bool,
    /// Dropout is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropout: Option<bool>,
    /// The attention is computed again in the backward pass.
    pub recompute_attention: bool,
    /// Where a layer is computed again, all of it is, its last product included.
    pub recompute_all: bool,
    /// One in this number of matmuls of a layer is computed again in the backward pass, with all that streams memory; 0 where
    /// layouts say what is.
    pub recompute_every: usize,
    /// Dtype of products in layers: `bf16`, `fp8`.
    pub dtype: String,
    /// Bytes of a gradient on the wire and in memory.
    pub grad_bytes: f64,
    /// Bytes of a parameter on the wire and in memory.
    pub param_bytes: f64,
    /// Parameters are also kept in `f32`.
    pub master: bool,
    /// Collectives within layers: `none` wait, `wgrad` run during the matmul for the gradient of a weight, `pipe` are cut into
    /// pieces with the matmul that runs at the same time.
    pub tp_overlap: String,
    /// Collectives of gradients and parameters run during layers.
    pub dp_overlap: bool,
    /// Keys and values pass from device to device during attention, instead of a gather of all.
    pub ring: bool,
    /// Transfers of a pipeline run during layers.
    pub p2p_overlap: bool,
    /// Collectives are reduced in the switches of a node.
    pub nvls: bool,
    /// A gathered activation is gathered again in the backward pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regather: Option<bool>,
    /// Bytes that stream for each logit: `fused`, `torch`, `vocab`.
    pub loss: String,
    /// Bytes that stream for each gathered parameter, besides the collective.
    pub copies: f64,
    /// Parameters that are gathered stay until the backward pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fsdp: Option<bool>,
    /// Most parameters that are gathered at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<f64>,
    /// Bytes that are kept for each logit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logit_bytes: Option<f64>,
}

impl Default for EngineFacts {
    fn default() -> EngineFacts {
        EngineFacts {
            attention: "unfused".into(),
            fusion: "fused".into(),
            fused_projections: true,
            dropout: None,
            recompute_attention: false,
            recompute_all: false,
            recompute_every: 0,
            dtype: "bf16".into(),
            grad_bytes: 4.0,
            param_bytes: 2.0,
            master: true,
            tp_overlap: "none".into(),
            dp_overlap: true,
            ring: false,
            p2p_overlap: true,
            nvls: true,
            regather: None,
            loss: "fused".into(),
            copies: 0.0,
            fsdp: None,
            live: None,
            logit_bytes: None,
        }
    }
}

impl EngineFacts {
    /// The facts that are stated and that no estimate reads: the layout, the mesh and the consts of a run say the same.
    pub fn unread(&self) -> Vec<&'static str> {
        let stated = [
            ("dropout", self.dropout.is_some()),
            ("regather", self.regather.is_some()),
            ("fsdp", self.fsdp.is_some()),
            ("live", self.live.is_some()),
            ("logit_bytes", self.logit_bytes.is_some()),
        ];
        stated.into_iter().filter(|(_, stated)| *stated).map(|(name, _)| name).collect()
    }
}

/// Compute capability whose kernels are counted on a GPU of a machine file.
const CAPABILITY: (u32, u32) = (9, 0);

/// The name in machine files of this project's kernel of attention on GPUs.
pub(crate) const OWN_ATTENTION: &str = "cuda";

impl EngineKind {
    /// The engine that a machine was measured with, or that of its kind of device.
    pub fn of(machine: &Machine) -> EngineKind {
        let measured = machine.calibration.as_ref().and_then(|c| c.engine.as_deref());
        match machine.device.kind {
            DeviceKind::Cpu if measured == Some(EngineKind::Mpi.name()) => EngineKind::Mpi,
            DeviceKind::Cpu => EngineKind::Threads,
            DeviceKind::Gpu => EngineKind::Cuda,
        }
    }

    /// The target of its device plans.
    pub fn target(&self) -> Target {
        match self {
            EngineKind::Threads | EngineKind::Mpi => Target::cpu(),
            EngineKind::Cuda => Target::cuda(CAPABILITY, true),
            // Its facts say which products are one, and which are in FP8.
            EngineKind::Foreign(_) => {
                Target { joined_products: false, fp8: false, ..Target::cuda(CAPABILITY, true) }
            }
        }
    }

    /// The target of its device plans on a machine: products are in FP8 only if the machine has a rate for them.
    pub fn target_on(&self, machine: &Machine) -> Target {
        let target = self.target();
        Target { fp8: target.fp8 && machine.device.matrix.contains_key("fp8"), ..target }
    }

    /// Names of its kernel of attention in machine files, the best first.
    pub fn attention(&self) -> Vec<&str> {
        match self {
            EngineKind::Threads | EngineKind::Mpi => vec!["native"],
            EngineKind::Cuda => vec![OWN_ATTENTION, "flash2"],
            EngineKind::Foreign(facts) => vec![&facts.attention],
        }
    }

    /// Its name in options.
    pub fn name(&self) -> &str {
        match self {
            EngineKind::Threads => "threads",
            EngineKind::Mpi => "mpi",
            EngineKind::Cuda => "cuda",
            EngineKind::Foreign(_) => "foreign",
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::machine::Calibration;
    use crate::shipped_machines::find;

    #[test]
    fn a_machine_has_the_engine_that_was_measured() {
        let mut cpu = Machine::read(find("cpu").unwrap()).unwrap();
        assert_eq!(EngineKind::of(&cpu), EngineKind::Threads);
        let measured = |engine: Option<&str>| Calibration {
            date: String::new(),
            on: String::new(),
            engine: engine.map(String::from),
            plans: 1,
            mean_error: 0.0,
            max_error: 0.0,
        };
        for (engine, of) in [(None, EngineKind::Threads), (Some("mpi"), EngineKind::Mpi)] {
            cpu.calibration = Some(measured(engine));
            assert_eq!(EngineKind::of(&cpu), of);
        }
    }
}
