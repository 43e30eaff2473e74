//! Lookups and their transposes by kernels of our own, where the backend has them.

use super::Positions;
use crate::burn::lower::Lower;
use crate::kernels::dims::WalkDim;
use crate::kernels::index::{IndexCall, IndexDims, IndexedDim};
use crate::lowering::local::Local;
use meshwright_plan::Dim;

impl Lower<'_> {
    /// The call of a lookup or of its transpose, if there is a kernel for it. `dims` are indexed.
    pub(crate) fn index_call(
        &self,
        p: &Positions,
        dims: &[Dim],
        [table, entries]: [&Local; 2],
    ) -> Option<IndexCall> {
        let known = |d: &Dim| p.shared.contains(d) || p.rest.contains(d) || p.columns.contains(d);
        if !self.graph.target.blocks || !entries.dims.iter().all(known) {
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
        // Vectors go along the dim that is contiguous in the entries.
        columns.sort_by_key(|dim| (Self::sizes(&[*dim], &tensors)[0] > 1, entries.at(*dim)));
        let dims = IndexDims {
            outer: walked(&p.shared),
            entries: walked(&p.rest),
            columns: walked(&columns),
            indexed: indexed.collect::<Option<Vec<_>>>()?,
        };
        IndexCall::new(dims, [table, entries].map(|local| local.dtype))
    }
}
