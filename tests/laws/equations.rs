//! Graphs by hand whose inputs a half type holds, and their results beside the oracle's.

use crate::devices::Devices;
use crate::oracle::{Bound, walk};
use crate::rng::Rng;
use crate::split::{Way, Within, same_step};
use crate::subject::{step, tensors};
use meshwright_core::StepGraph;
use meshwright_exec::HostData;
use meshwright_ops::{Contract, F64Tensor, Graph, Id, InputOp, InputOpKind, Type};
use meshwright_plan::{DType, Dim, Dims};

/// A graph with inputs that a half type holds.
pub(crate) struct Equations {
    pub(crate) g: Graph,
    pub(crate) bound: Bound,
    rng: Rng,
    half: Option<DType>,
    one: Id,
    pub(crate) outputs: Vec<(&'static str, Id)>,
}

impl Equations {
    pub(crate) fn new(half: Option<DType>) -> Equations {
        let mut g = Graph::new(Dims::default());
        let one = g.dims.add("one", 1);
        let leaf = InputOpKind::Input { name: "one".into() };
        let factor = g.op(InputOp { input: leaf, ty: Type::new(DType::F32, vec![one]) }, &[]);
        let bound = Bound::from([(factor, F64Tensor::new(&g.dims, [one], vec![1.0]))]);
        Equations { g, bound, rng: Rng::new(7), half, one: factor, outputs: vec![] }
    }

    pub(crate) fn input(&mut self, name: &str, dims: &[Dim]) -> Id {
        let leaf = InputOpKind::Input { name: name.into() };
        let id = self.g.op(InputOp { input: leaf, ty: Type::new(DType::F32, dims.to_vec()) }, &[]);
        let numbers = F64Tensor::build(&self.g.dims, dims, |_| f64::from(self.rng.float(-2.0, 2.0) as f32));
        let data = match self.half {
            Some(half) => HostData::from_f64(half, numbers.data.clone()).to_f64(),
            None => numbers.data.clone(),
        };
        self.bound.insert(id, F64Tensor { data, ..numbers });
        // Of a product, so that it is an activation, which a program of a half type stores so.
        self.g.op(Contract { out: dims.to_vec() }, &[id, self.one])
    }

    /// Compares the results of all ways, and gives how many there were.
    pub(crate) fn are_the_same(mut self, name: &str, ways: &[Way], devices: &mut Devices) -> usize {
        // What is compared is stored in `f32`: a product of what was computed.
        if self.half.is_some() {
            for (_, id) in &mut self.outputs {
                if !self.g.ty(*id).dtype.is_float() {
                    continue;
                }
                let out = self.g.ty(*id).dims.clone();
                *id = self.g.op(Contract { out }, &[*id, self.one]);
            }
        }
        let values = walk(&self.g, &self.bound);
        let wanted: Vec<_> =
            self.outputs.iter().map(|(name, id)| (*name, *id, values[id.0 as usize].clone())).collect();
        let step = step(&self.g, &self.outputs);
        let (step, within) = match self.half {
            Some(float) => (
                StepGraph { float: float.into(), ..step },
                Within { least: 2.0, narrow: 0.03, ..Within::default() },
            ),
            None => (step, Within { least: 1.0, narrow: 3e-5, ..Within::default() }),
        };
        same_step(name, &step, &tensors(&self.g, &self.bound), &wanted, within, ways, devices)
            .unwrap_or_else(|e| panic!("{e}"))
    }
}
