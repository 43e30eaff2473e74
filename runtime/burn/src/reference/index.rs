//! Lookups and their transposes.

use super::values::{RefTensor, positions};
use super::{Reference, other_operands};
use meshwright_device::KernelError;
use meshwright_device::kernels::call::Computes;
use meshwright_device::kernels::dims::WalkDim;
use meshwright_device::kernels::index::{IndexCall, ScatterCall};

/// A position along outer dims, entries and columns, and the axes of a tensor.
struct IndexPlaces<'a> {
    call: &'a IndexCall,
    dims: Vec<&'a WalkDim>,
}

impl IndexPlaces<'_> {
    fn new(call: &IndexCall) -> IndexPlaces<'_> {
        let dims = call.dims.outer.iter().chain(&call.dims.entries).chain(&call.dims.columns).collect();
        IndexPlaces { call, dims }
    }

    fn axes(&self, tensor: usize) -> Vec<Option<usize>> {
        self.dims.iter().map(|dim| dim.axes[tensor]).collect()
    }

    /// For each entry and column its place among the entries and in the table; none there where the device does not hold the row.
    fn each(&self, [table, entries]: [&RefTensor; 2], indices: &[RefTensor]) -> Vec<(usize, Option<usize>)> {
        let sizes: Vec<usize> = self.dims.iter().map(|dim| dim.size).collect();
        let (of_table, of_entries) = (self.axes(0), self.axes(1));
        let indexed = &self.call.dims.indexed;
        let of_indices: Vec<Vec<Option<usize>>> = (0..indexed.len()).map(|k| self.axes(2 + k)).collect();
        let axes: Vec<Option<usize>> =
            of_table.iter().copied().chain(indexed.iter().map(|dim| Some(dim.axis))).collect();
        let place = |position: Vec<usize>| {
            let entry = entries.place(&of_entries, &position);
            let rows = indexed.iter().enumerate().map(|(k, dim)| {
                let row = indices[k].at(&of_indices[k], &position) as i64;
                let held = dim.held.start as i64..dim.held.end as i64;
                held.contains(&row).then(|| row as usize - dim.held.start)
            });
            let rows: Option<Vec<usize>> = rows.collect();
            (entry, rows.map(|rows| table.place(&axes, &[position, rows].concat())))
        };
        positions(&sizes).map(place).collect()
    }
}

impl Computes<IndexCall> for Reference<'_> {
    /// The entries that a table has; 0 where the device does not hold a row.
    fn compute(self, call: &IndexCall) -> Result<(), KernelError> {
        let Reference { inputs, outputs: [out], .. } = self else { return Err(other_operands()) };
        let places = IndexPlaces::new(call).each([&inputs[0], out], &inputs[1..]);
        for (entry, row) in places {
            out.numbers[entry] = row.map_or(0.0, |row| inputs[0].numbers[row]);
        }
        Ok(())
    }
}

impl Computes<ScatterCall> for Reference<'_> {
    /// The sums of the entries of each row.
    fn compute(self, call: &ScatterCall) -> Result<(), KernelError> {
        let Reference { inputs, outputs: [out], .. } = self else { return Err(other_operands()) };
        let places = IndexPlaces::new(&call.index).each([out, &inputs[0]], &inputs[1..]);
        for (entry, row) in places {
            if let Some(row) = row {
                out.numbers[row] += inputs[0].numbers[entry];
            }
        }
        Ok(())
    }
}
