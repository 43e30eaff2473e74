//! Operands of a step on one device.

use crate::access::{Access, dense_strides};
use meshwright_plan::{BufId, Coords, DType, Dim, Dims, Mesh, Operand, Plan};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The device for which a Plan is made concrete.
pub struct DeviceContext<'a> {
    /// The Plan of all devices.
    pub plan: &'a Plan,
    /// Rank of the device.
    pub rank: usize,
    /// Coordinate of the device on each axis of the mesh.
    pub coords: Coords,
}

/// An operand with this device's block of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Local {
    /// Buffer of the Plan.
    pub buf: BufId,
    /// Dtype of the elements.
    pub dtype: DType,
    /// Dims, outermost first.
    pub dims: Vec<Dim>,
    /// Interval of each dim that the device holds, in positions of the global tensor.
    pub ranges: Vec<Range<usize>>,
    /// Length of each of `ranges`.
    pub shape: Vec<usize>,
}

impl<'a> DeviceContext<'a> {
    /// Context of the device with this rank.
    pub fn new(plan: &'a Plan, rank: usize) -> DeviceContext<'a> {
        DeviceContext { plan, rank, coords: plan.mesh.coords(rank) }
    }

    /// Index of the dim of an operand that counts examples; none if it has none.
    pub fn examples_of(&self, operand: &Local) -> Option<usize> {
        let example = self.plan.inputs.first().and_then(|i| i.dims.first())?;
        let part = self.plan.microbatches.and_then(|m| operand.at(m.dim));
        operand.at(*example).or(part)
    }

    /// Index of the dim of an operand that counts the examples of a microbatch, and the number of microbatches; none if it has no
    /// such dim.
    pub fn parts_of(&self, operand: &Local) -> Option<(usize, usize)> {
        let parts = self.plan.microbatches?;
        Some((operand.at(parts.dim)?, self.plan.dims.size(parts.over)))
    }

    /// The mesh of the Plan.
    pub fn mesh(&self) -> &'a Mesh {
        &self.plan.mesh
    }

    /// The block of an operand on this device.
    ///
    /// # Errors
    /// If the operand contradicts its buffer or the mesh.
    pub fn local(&self, operand: &Operand) -> Result<Local, String> {
        self.local_at(operand, &self.coords)
    }

    /// The block of an operand on the device of that rank.
    ///
    /// # Errors
    /// See [`DeviceContext::local`].
    pub fn local_on(&self, operand: &Operand, rank: usize) -> Result<Local, String> {
        self.local_at(operand, &self.mesh().coords(rank))
    }

    fn local_at(&self, operand: &Operand, coords: &[usize]) -> Result<Local, String> {
        let id = operand.buf.0;
        let Some(buffer) = self.plan.buffers.get(id as usize) else {
            return Err(format!("there is no buffer {id}"));
        };
        if buffer.extents.len() != operand.dims.len() {
            return Err(format!("buffer {id} has {} dims, not {}", buffer.extents.len(), operand.dims.len()));
        }
        for (i, (dim, extent)) in operand.dims.iter().zip(&buffer.extents).enumerate() {
            let name = self.plan.dims.name(*dim);
            let size = self.plan.dims.get(*dim).ok_or_else(|| format!("the plan has no dim {}", dim.0))?;
            if size != extent.size {
                return Err(format!("`{name}` has {size} elements, but {} in buffer {id}", extent.size));
            }
            if operand.dims[..i].contains(dim) {
                return Err(format!("`{name}` occurs twice on buffer {id}"));
            }
            if let Some(a) = extent.axes.iter().find(|a| usize::from(a.0) >= self.mesh().axes.len()) {
                return Err(format!("there is no mesh axis {}", a.0));
            }
        }
        let ranges = buffer.ranges(self.mesh(), coords);
        let shape = ranges.iter().map(ExactSizeIterator::len).collect();
        Ok(Local { buf: operand.buf, dtype: buffer.dtype, dims: operand.dims.clone(), ranges, shape })
    }

    /// Fails unless all operands hold the same range of each dim that they share, but for the dims in `except`.
    pub fn check_aligned(&self, operands: &[&Local], except: &[Dim]) -> Result<(), String> {
        let mut seen: Vec<(Dim, &Range<usize>)> = vec![];
        for local in operands {
            for (dim, range) in local.dims.iter().zip(&local.ranges) {
                match seen.iter().find(|s| s.0 == *dim) {
                    Some((_, other)) if *other != range && !except.contains(dim) => {
                        let name = self.plan.dims.name(*dim);
                        return Err(format!("`{name}` is {other:?} of one operand and {range:?} of another"));
                    }
                    Some(_) => {}
                    None => seen.push((*dim, range)),
                }
            }
        }
        Ok(())
    }
}

impl Local {
    /// Number of elements that the device holds.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Index of a dim; none if the operand lacks it.
    pub fn at(&self, dim: Dim) -> Option<usize> {
        self.dims.iter().position(|d| *d == dim)
    }

    /// Index of a dim.
    ///
    /// # Errors
    /// If the operand lacks the dim.
    pub fn position(&self, dim: Dim) -> Result<usize, String> {
        self.at(dim).ok_or_else(|| format!("an operand lacks the dim {}", dim.0))
    }

    /// Merges adjacent dims to one dim with the name of the first, and gives the number of elements at each position of the
    /// first.
    ///
    /// # Errors
    /// If the dims are not adjacent, or if the device does not hold all of each dim but the first.
    pub fn joined(&self, dims: &[Dim], table: &Dims) -> Result<(Local, usize), String> {
        let Some((outer, rest)) = dims.split_first() else { return Err("no dims are joined".into()) };
        let at = self.position(*outer)?;
        let (shape, inner) = (table.shape(rest), table.elements(rest));
        let end = at + dims.len();
        if self.dims.get(at..end) != Some(dims) || self.shape[at + 1..end] != shape {
            return Err("dims that are joined do not lie next to each other, whole".into());
        }
        let mut all = self.clone();
        all.dims.drain(at + 1..end);
        all.shape.drain(at + 1..end);
        all.ranges.drain(at + 1..end);
        all.shape[at] *= inner;
        let range = &self.ranges[at];
        all.ranges[at] = range.start * inner..range.end * inner;
        Ok((all, inner))
    }

    /// Interval of a dim that the device holds.
    ///
    /// # Errors
    /// If the operand lacks the dim.
    pub fn range(&self, dim: Dim) -> Result<&Range<usize>, String> {
        Ok(&self.ranges[self.position(dim)?])
    }

    /// Stride of a dim; 0 where it is lacking.
    pub fn stride(&self, dim: Dim) -> usize {
        self.at(dim).map_or(0, |i| dense_strides(&self.shape)[i])
    }

    /// Access of an iteration over `dims`.
    pub fn access(&self, dims: &[Dim]) -> Access {
        Access::by_dims(self.dtype, dims, &self.dims, &self.shape)
    }
}
