//! Copies of parameters and optimizer state that several devices hold.
//!
//! A replicated value is computed on every device along the mesh axis. The devices of a CPU run the same kernels, so
//! copies are equal to the last bit. Each GPU chooses kernels by timing them: two GPUs may sum in different orders,
//! their copies then differ in the last bits, and no collective makes them equal again. So copies are compared at
//! intervals.

use super::Cluster;
use crate::cluster::share::bytes_of;
use crate::error::ExecError;
use crate::tensor::HostTensor;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

fn digest(value: &HostTensor) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes_of(&value.data).unwrap_or_default());
    hasher.finish()
}

impl Cluster {
    /// Names of the parameters and optimizer states whose copies differ, in order; the same on all processes, each of
    /// which must call this.
    ///
    /// # Errors
    ///
    /// If a device cannot be read, or a process does not take part.
    pub fn differing_copies(&self) -> Result<Vec<String>, ExecError> {
        let devices = self.mesh().devices();
        let copied = self.blocks_of_states().filter(|(_, blocks)| blocks.holders(0..devices).len() < devices);
        let copied: Vec<_> = copied.collect();
        if copied.is_empty() {
            return Ok(vec![]);
        }
        let names: Arc<[String]> = copied.iter().map(|(name, _)| name.to_string()).collect();
        let digests: Vec<Vec<u64>> = self.on_all(move |engine| {
            names.iter().map(|name| engine.state(name).map(|t| digest(&t))).collect()
        })?;
        // By device, then by name.
        let all = self.processes().gather("copies of parameters".into(), &digests)?.concat();
        let digest = |device: usize, name: usize| all.get(device).and_then(|of: &Vec<u64>| of.get(name));
        let mut apart = Vec::new();
        for (at, (name, blocks)) in copied.iter().enumerate() {
            let mut known = HashMap::new();
            let same = |device| {
                let digest = digest(device, at);
                *known.entry(blocks.key(device)).or_insert(digest) == digest
            };
            if !(0..devices).all(same) {
                apart.push(name.to_string());
            }
        }
        Ok(apart)
    }
}
