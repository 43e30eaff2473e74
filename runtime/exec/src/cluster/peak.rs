//! The peak of the devices: operations a second of a matrix product, which a training step is compared with.

use super::{Cluster, available};
use crate::engine::MatmulTime;
use crate::error::ExecError;
use meshwright_plan::Arithmetic;
use std::time::Duration;

/// The first product has this many rows and columns.
const FIRST: usize = 256;
/// The last: its three matrices of `f32` take 768 MiB.
const LAST: usize = 8192;
/// A product that takes as long is large enough for its time to be that of multiplying.
const LONG: Duration = Duration::from_millis(6);
/// Products of the largest size; the fastest counts.
const REPEATS: usize = 3;

/// The size of the next product: twice as large takes eight times as long, which at the end would be much more than long enough.
fn larger(size: usize, took: Duration) -> usize {
    if took * 8 <= LONG { size * 2 } else { size + size / 2 }
}

/// Time of concurrent matmuls on the devices if this process had the cores to itself.
fn alone(products: &[MatmulTime], cores: usize) -> Duration {
    let wall = products.iter().map(|p| p.wall).max().unwrap_or_default();
    let on_cores: Option<Vec<(Duration, Duration)>> = products.iter().map(|p| p.processor).collect();
    let Some(on_cores) = on_cores else { return wall };
    let longest = on_cores.iter().map(|p| p.0).max().unwrap_or_default();
    let all: Duration = on_cores.iter().map(|p| p.1).sum();
    // More threads than cores take turns.
    wall.min(longest.max(all / cores as u32))
}

impl Cluster {
    /// Floating-point operations a second of all devices of the mesh together in a product of two square matrices:
    /// those of this process's devices, which multiply at once and may share cores, times the number of processes.
    /// Threads are timed in processor time, so that other work of the machine lowers it little. Takes some hundredths
    /// of a second.
    ///
    /// # Errors
    /// Where a device fails.
    pub fn measured_peak(&self, arithmetic: Arithmetic) -> Result<f64, ExecError> {
        let cores = (available() / self.processes().neighbors()).max(1);
        let slowest = |n: usize| -> Result<Duration, ExecError> {
            Ok(alone(&self.on_all(move |engine| engine.time_product(n, arithmetic))?, cores))
        };
        let mut size = FIRST;
        // The first product of all makes threads and kernels ready.
        slowest(size)?;
        let mut best = slowest(size)?;
        while best < LONG && size < LAST {
            size = larger(size, best).min(LAST);
            best = slowest(size)?;
        }
        for _ in 1..REPEATS {
            best = best.min(slowest(size)?);
        }
        let operations = 2.0 * (size as f64).powi(3) * self.mesh.devices() as f64;
        Ok(operations / best.as_secs_f64().max(1e-9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_grow_until_one_is_long() {
        let sizes = |rate: f64| {
            let took = |n: usize| Duration::from_secs_f64(2.0 * (n as f64).powi(3) / rate);
            let mut sizes = vec![FIRST];
            while let Some(n) = sizes.last().filter(|n| took(**n) < LONG) {
                sizes.push(larger(*n, took(*n)));
            }
            sizes
        };
        assert_eq!(sizes(1e9), [256]);
        assert_eq!(sizes(25e9), [256, 384, 576]);
        assert_eq!(sizes(100e9), [256, 512, 768]);
    }

    #[test]
    fn what_else_a_machine_does_is_not_part_of_a_product() {
        let ms = Duration::from_millis;
        let product =
            |wall, longest, all| MatmulTime { wall: ms(wall), processor: Some((ms(longest), ms(all))) };
        // Two threads of one device with two cores of their own, and with half of each.
        assert_eq!(alone(&[product(10, 10, 20)], 2), ms(10));
        assert_eq!(alone(&[product(20, 10, 20)], 2), ms(10));
        // Four devices that share two cores, and half of them.
        assert_eq!(alone(&[product(20, 10, 10); 4], 2), ms(20));
        assert_eq!(alone(&[product(40, 10, 10); 4], 2), ms(20));
        // GPUs have wall time only.
        assert_eq!(alone(&[MatmulTime { wall: ms(7), processor: None }, product(9, 5, 5)], 2), ms(9));
    }
}
