//! Copies that no operation asks for. A view of Burn gives a tensor other strides; what cannot read these copies it first: a
//! reshape of permuted dims, and a factor of a matmul whose matrices do not lie one after the other.

use crate::kernels::Kernel;
use crate::launch::{DevicePlan, Launch, LaunchKind};
use crate::slot::LaunchId;
use burn_ir::{BaseOperationIr as Base, OperationIr, TensorId, TensorIr, TensorStatus};
use meshwright_sorted::SortedMap;

/// Copies of a launch, which are kernels of their own, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchCopies {
    /// Kernels.
    pub kernels: u64,
    /// Bytes that they read, and as many that they write.
    pub bytes: u64,
}

/// The copies of each launch that makes some. Where Burn does not run on the device, there are none.
pub fn copies(plan: &DevicePlan) -> SortedMap<LaunchId, LaunchCopies> {
    let mut walk = StridedTensors::default();
    if plan.target.has_arena() {
        walk.launches(plan, &plan.body);
    }
    walk.found
}

/// Strides of the tensors that do not lie as their shapes say, launch after launch.
#[derive(Default)]
struct StridedTensors {
    strides: SortedMap<TensorId, Vec<usize>>,
    found: SortedMap<LaunchId, LaunchCopies>,
}

impl StridedTensors {
    fn launches(&mut self, plan: &DevicePlan, ids: &[LaunchId]) {
        for id in ids {
            let launch = &plan.launches[*id];
            let made = self.launch(launch);
            if made.kernels > 0 {
                self.found.insert(*id, made);
            }
            self.launches(plan, &plan.inner(launch).collect::<Vec<_>>());
        }
    }

    fn launch(&mut self, launch: &Launch) -> LaunchCopies {
        let mut made = LaunchCopies::default();
        match &launch.kind {
            LaunchKind::Burn(burn) => {
                burn.graph.operations.iter().for_each(|operation| self.operation(operation, &mut made));
            }
            LaunchKind::Kernel(Kernel::Matmul(_) | Kernel::MatmulEpilogue(_)) => {
                let factors = launch.reads.iter().take(2);
                let scattered =
                    factors.filter(|t| self.strides.get(&t.id).is_some_and(|s| !is_matrices(&t.shape, s)));
                scattered.for_each(|t| made.add(t));
            }
            LaunchKind::Kernel(Kernel::MatmulGroup(_)) => {
                let shared = launch.reads.iter().take(1);
                shared.filter(|t| self.strides.contains_key(&t.id)).for_each(|t| made.add(t));
            }
            _ => {}
        }
        made
    }

    fn operation(&mut self, operation: &OperationIr, made: &mut LaunchCopies) {
        let base = match operation {
            OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => Some(op),
            _ => None,
        };
        match base {
            Some(Base::Permute(op)) => {
                let strides = self.of(&op.input);
                self.record(&op.out, op.axes.iter().filter_map(|axis| strides.get(*axis).copied()).collect());
            }
            Some(Base::Expand(op)) => {
                let (shape, strides) = (&op.input.shape, self.of(&op.input));
                let before = op.out.shape.len().saturating_sub(shape.len());
                let expanded = |at: usize, size: usize| match at.checked_sub(before) {
                    Some(at) if shape[at] == size => strides[at],
                    _ => 0,
                };
                let strides = op.out.shape.iter().enumerate().map(|(at, size)| expanded(at, *size)).collect();
                self.record(&op.out, strides);
            }
            Some(Base::Slice(op)) => {
                let strides = self.of(&op.tensor);
                self.record(&op.out, strides);
            }
            Some(Base::Reshape(op)) => match reshaped(&op.input.shape, &self.of(&op.input), &op.out.shape) {
                Some(strides) => self.record(&op.out, strides),
                None => made.add(&op.input),
            },
            _ => self.in_place(operation),
        }
    }

    /// A result in the storage of a donated operand has the operand's strides.
    fn in_place(&mut self, operation: &OperationIr) {
        if !matches!(
            operation,
            OperationIr::NumericFloat(..) | OperationIr::Float(..) | OperationIr::BaseFloat(_)
        ) {
            return;
        }
        let outputs: Vec<&TensorIr> = operation.outputs().collect();
        let [out] = outputs[..] else { return };
        let over = operation
            .inputs()
            .find(|t| t.status == TensorStatus::ReadWrite && t.shape == out.shape && t.dtype == out.dtype);
        if let Some(strides) = over.and_then(|t| self.strides.get(&t.id)).cloned() {
            self.record(out, strides);
        }
    }

    fn of(&self, tensor: &TensorIr) -> Vec<usize> {
        self.strides.get(&tensor.id).cloned().unwrap_or_else(|| contiguous(&tensor.shape))
    }

    fn record(&mut self, tensor: &TensorIr, strides: Vec<usize>) {
        if lies_as(&tensor.shape, &strides, &contiguous(&tensor.shape)) {
            self.strides.remove(&tensor.id);
        } else {
            self.strides.insert(tensor.id, strides);
        }
    }
}

impl LaunchCopies {
    fn add(&mut self, tensor: &TensorIr) {
        self.kernels += 1;
        self.bytes += (tensor.shape.num_elements() * tensor.dtype.size()) as u64;
    }
}

fn contiguous(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * shape[at];
    }
    strides
}

/// Whether a tensor lies the same with these strides and those.
fn lies_as(shape: &[usize], a: &[usize], b: &[usize]) -> bool {
    shape.iter().zip(a.iter().zip(b)).all(|(size, (a, b))| *size == 1 || a == b)
}

/// The strides of a tensor in another shape; none where it is copied for that, as Burn decides it: dims may be cut, not joined.
fn reshaped(shape: &[usize], strides: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    if lies_as(shape, strides, &contiguous(shape)) {
        return Some(contiguous(to));
    }
    let mut out = Vec::new();
    let mut rest = to;
    for (size, stride) in shape.iter().zip(strides).filter(|(size, _)| **size > 1) {
        let mut parts = Vec::new();
        let mut product = 1;
        while product < *size {
            let (first, after) = rest.split_first()?;
            product *= first;
            parts.push(*first);
            rest = after;
        }
        if product != *size {
            return None;
        }
        out.extend(contiguous(&parts).iter().map(|s| s * stride));
    }
    out.extend(rest.iter().map(|_| 1));
    rest.iter().all(|size| *size == 1).then_some(out)
}

/// Whether a library multiplies matrices that lie so: each by rows or by columns, and all of them the same distance apart.
fn is_matrices(shape: &[usize], strides: &[usize]) -> bool {
    let ([outer @ .., rows, columns], [apart @ .., down, right]) = (shape, strides) else { return false };
    let by_rows = (*columns == 1 || *right == 1) && (*rows == 1 || down >= columns);
    let by_columns = (*rows == 1 || *down == 1) && (*columns == 1 || right >= rows);
    let (mut count, mut between) = (1, None);
    let even = outer.iter().zip(apart).rev().filter(|(size, _)| **size != 1).all(|(size, stride)| {
        let next = between.map_or(*stride, |first: usize| first * count);
        between = between.or(Some(*stride));
        count *= size;
        *stride == next
    });
    (by_rows || by_columns) && even
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dims_are_cut_where_they_lie_and_joined_by_a_copy() {
        // [4, 6] as it lies, and its transpose.
        assert_eq!(reshaped(&[4, 6], &[6, 1], &[24]), Some(vec![1]));
        assert_eq!(reshaped(&[6, 4], &[1, 6], &[24]), None);
        assert_eq!(reshaped(&[6, 4], &[1, 6], &[2, 3, 4]), Some(vec![3, 1, 6]));
        assert_eq!(reshaped(&[6, 4], &[1, 6], &[6, 4, 1]), Some(vec![1, 6, 1]));
        assert_eq!(reshaped(&[6, 4], &[1, 6], &[3, 8]), None);
    }

    #[test]
    fn matrices_lie_by_rows_or_columns_and_evenly_apart() {
        assert!(is_matrices(&[2, 3, 4, 5], &[60, 20, 5, 1]) && is_matrices(&[2, 3, 4, 5], &[60, 20, 1, 4]));
        // Heads beside the elements of a key: of one example they are evenly apart, of two they are not.
        assert!(is_matrices(&[1, 3, 4, 5], &[60, 5, 15, 1]) && !is_matrices(&[2, 3, 4, 5], &[60, 5, 15, 1]));
        assert!(!is_matrices(&[4, 5], &[10, 2]));
    }
}
