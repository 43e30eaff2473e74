//! Lookups and their transposes by kernels of our own, where the backend has them.

use super::Positions;
use crate::backend::burn::cube::index::{IndexCall, IndexDims, IndexedDim};
use crate::backend::burn::cube::own::OwnKernel;
use crate::backend::burn::cube::space::WalkDim;
use crate::backend::burn::emit::INDEX;
use crate::backend::burn::lower::{BurnKernel, Lower};
use crate::engine::context::Local;
use crate::engine::graph::TensorSlot;
use crate::engine::lowering::{extents, stored_as};
use meshwright_plan::Dim;

impl Lower<'_> {
    /// What is known of a step that leads from a table to entries or back, if there is a kernel for it. `dims` are indexed.
    pub(super) fn index_call(
        &self,
        p: &Positions,
        dims: &[Dim],
        [table, entries]: [&Local; 2],
    ) -> Option<IndexCall> {
        let known = |d: &Dim| p.shared.contains(d) || p.rest.contains(d) || p.columns.contains(d);
        if !self.graph.capabilities.own_kernels || !entries.dims.iter().all(known) {
            return None;
        }
        let tensors: Vec<&Local> = [table, entries].into_iter().chain(&p.indices).collect();
        let walked = |dims: &[Dim]| -> Vec<WalkDim> {
            let sizes = Self::sizes(dims, &tensors);
            let dim = |(dim, size): (&Dim, usize)| WalkDim {
                size,
                axes: tensors.iter().map(|tensor| tensor.at(*dim)).collect(),
            };
            dims.iter().zip(sizes).map(dim).collect()
        };
        let indexed = dims
            .iter()
            .zip(&p.held)
            .map(|(dim, held)| table.at(*dim).map(|axis| IndexedDim { axis, held: held.clone() }));
        let mut columns = p.columns.clone();
        // Vectors go along what lies side by side in the entries.
        columns.sort_by_key(|dim| (Self::sizes(&[*dim], &tensors)[0] > 1, entries.at(*dim)));
        let dims = IndexDims {
            outer: walked(&p.shared),
            entries: walked(&p.rest),
            columns: walked(&columns),
            indexed: indexed.collect::<Option<Vec<_>>>()?,
        };
        IndexCall::new(dims, [table, entries].map(|local| local.dtype))
    }

    pub(super) fn own_index(&mut self, kernel: OwnKernel, (first, indices): (&Local, &[Local]), out: &Local) {
        let reads = [first].into_iter().chain(indices).map(|local| self.read(local).val).collect();
        self.kernels.push(BurnKernel::Own(kernel));
        let shape = (extents(&out.shape), stored_as(out.dtype));
        let made = self.graph.kernel((INDEX, self.kernels.len() - 1), reads, [shape]);
        self.graph.store(made[0], TensorSlot::Buffer(out.buf));
    }
}
