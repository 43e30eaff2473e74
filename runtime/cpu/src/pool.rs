//! Storage for results, kept from step to step: memory that is hardly asked from the system and not cleared again.

use super::storage::{LARGE, Regions};
use super::tensor::zeros;
use burn_backend::DType as BurnType;
use burn_flex::{FlexTensor, Layout};
use meshwright_device::stored::{stored_as, stored_shape};
use meshwright_plan::DType;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The system cannot provide this number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory for {0} bytes more")]
pub struct NoMemory(pub usize);

/// Storage by size.
///
/// It takes back at most as many small tensors of a size as it gave out, so that storage from elsewhere (inputs, results of the
/// backend's own ops) does not pile up in it. Large ones share regions, of which it holds, in use or not, about as much as was in
/// use at once. So a device takes what its Plan says, and not the sum of what each size takes at its time.
#[derive(Default)]
pub struct Pool {
    small: HashMap<(BurnType, usize), Shelf>,
    large: Arc<Mutex<Regions>>,
}

/// Small tensors of one size.
#[derive(Default)]
struct Shelf {
    free: Vec<FlexTensor>,
    out: usize,
}

impl Pool {
    /// A tensor of unspecified contents that shares its storage with nobody.
    pub fn take(&mut self, dtype: DType, shape: &[usize]) -> Result<FlexTensor, NoMemory> {
        let layout = Layout::contiguous(stored_shape(dtype, shape).into());
        let (stored, bytes) = (stored_as(dtype), shape.iter().product::<usize>() * dtype.bytes());
        if bytes >= LARGE {
            let memory = Regions::take(&self.large, bytes).ok_or(NoMemory(bytes))?;
            return Ok(FlexTensor::new(memory, layout, stored));
        }
        let shelf = self.small.entry((stored, bytes)).or_default();
        shelf.out += 1;
        Ok(match shelf.free.pop() {
            Some(tensor) => tensor.with_layout(layout),
            None => zeros(dtype, shape),
        })
    }

    /// Takes back storage that is not needed any more, unless others share it. Large storage comes back by itself, with the last
    /// tensor that has it.
    pub fn give(&mut self, tensor: FlexTensor) {
        if let Some(shelf) = self.small.get_mut(&(tensor.dtype(), tensor.bytes().len()))
            && shelf.out > 0
            && tensor.is_unique()
        {
            shelf.out -= 1;
            shelf.free.push(tensor);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn taken(pool: &mut Pool, mib: usize) -> FlexTensor {
        pool.take(DType::F32, &[mib * MIB / 4]).unwrap()
    }

    fn sizes(pool: &Pool) -> (usize, usize) {
        pool.large.lock().unwrap().sizes()
    }

    #[test]
    fn no_more_is_held_than_was_in_use_at_once() {
        // The same in small pieces and in large ones, each after the other.
        for order in [[128, 64, 32, 64, 128], [16, 32, 64, 128, 16]] {
            let mut pool = Pool::default();
            for size in order {
                let all: Vec<FlexTensor> = (0..128 / size).map(|_| taken(&mut pool, size)).collect();
                assert_eq!(sizes(&pool).0, 128 * MIB);
                all.into_iter().for_each(|t| pool.give(t));
                let (used, held) = sizes(&pool);
                assert_eq!(used, 0);
                assert!((128 * MIB..136 * MIB).contains(&held), "{order:?}, {size}: {held}");
            }
        }
    }

    #[test]
    fn what_comes_back_in_pieces_is_whole_again() {
        let mut pool = Pool::default();
        let whole = taken(&mut pool, 12);
        let at = whole.bytes().as_ptr();
        pool.give(whole);
        let mut parts: Vec<FlexTensor> = (0..6).map(|_| taken(&mut pool, 2)).collect();
        assert!(parts.iter_mut().all(|t| t.bytes().as_ptr().align_offset(64) == 0));
        let mut places: Vec<usize> = parts.iter().map(|t| t.bytes().as_ptr() as usize).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|w| w[1] - w[0] == 2 * MIB), "they overlap: {places:?}");
        // In any order.
        for k in [3, 0, 1, 2, 0, 0] {
            pool.give(parts.remove(k));
        }
        assert_eq!(taken(&mut pool, 12).bytes().as_ptr(), at);
        assert_eq!(sizes(&pool), (0, 12 * MIB));
    }

    /// Half of the freed memory lies between tensors in use, and is too small for larger ones.
    #[test]
    fn what_lies_in_pieces_goes_back() {
        let mut pool = Pool::default();
        for _ in 0..3 {
            let whole = taken(&mut pool, 96);
            pool.give(whole);
            let parts: Vec<FlexTensor> = (0..12).map(|_| taken(&mut pool, 8)).collect();
            let (stays, goes): (Vec<_>, Vec<_>) =
                parts.into_iter().enumerate().partition(|(k, _)| k % 2 == 0);
            goes.into_iter().for_each(|(_, t)| pool.give(t));
            let mut large = taken(&mut pool, 48);
            crate::bytes_mut(&mut large).fill(7);
            let (used, held) = sizes(&pool);
            assert_eq!(used, 96 * MIB);
            assert!((96 * MIB..103 * MIB).contains(&held), "{held}");
            assert!(stays.iter().all(|(_, t)| t.bytes().iter().all(|b| *b == 0)), "it was written over");
            stays.into_iter().for_each(|(_, t)| pool.give(t));
            drop(large);
            assert_eq!(sizes(&pool).0, 0);
            // The next round finds zeros.
            let mut all = [taken(&mut pool, 48), taken(&mut pool, 48)];
            all.iter_mut().for_each(|t| crate::bytes_mut(t).fill(0));
        }
    }

    #[test]
    fn what_is_shared_stays() {
        let mut pool = Pool::default();
        for elements in [100, MIB] {
            let first = pool.take(DType::F32, &[elements]).unwrap();
            let at = first.bytes().as_ptr();
            let shared = first.clone();
            pool.give(first);
            let other = pool.take(DType::F32, &[elements]).unwrap();
            assert_ne!(other.bytes().as_ptr(), at, "it is shared");
            pool.give(shared);
            assert_eq!(pool.take(DType::F32, &[elements / 4, 4]).unwrap().bytes().as_ptr(), at);
        }
    }

    #[test]
    fn too_much_is_refused() {
        assert_eq!(Pool::default().take(DType::F32, &[1 << 60]).unwrap_err(), NoMemory(1 << 62));
    }
}
