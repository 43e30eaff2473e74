//! Parameters and optimizer state, whole: read from the devices that hold their blocks, and set on all.

use super::{Cluster, Held};
use crate::cluster::processes::About;
use crate::cluster::share::{Blocks, bytes_of, from_bytes};
use crate::engine::{Engine, StateInfo};
use crate::error::ExecError;
use crate::tensor::HostTensor;
use meshwright_sorted::SortedMap;

impl Cluster {
    /// All parameters and optimizer states of the loaded programs, in order of names.
    pub fn states(&self) -> impl Iterator<Item = &StateInfo> {
        self.states.values().map(|h| &h.info)
    }

    /// The shards of each parameter and optimizer state, in order of names.
    pub(crate) fn blocks_of_states(&self) -> impl Iterator<Item = (&str, &Blocks)> {
        self.states.iter().map(|(name, held)| (name.as_str(), &held.blocks))
    }

    fn held(&self, name: &str) -> Result<&Held, ExecError> {
        let unknown =
            || self.state_failed(name, "no loaded program has such a parameter or optimizer state".into());
        self.states.get(name).ok_or_else(unknown)
    }

    /// A parameter or optimizer state, whole; with several processes, on the first one. If several devices hold copies, the copy
    /// of the lowest rank.
    pub fn state(&self, name: &str) -> Result<HostTensor, ExecError> {
        let whole = self.gathered_state(name)?;
        whole.ok_or_else(|| self.state_failed(name, "it is whole on the first process alone".into()))
    }

    /// A parameter or optimizer state, whole, on the first process; `None` on the others, which send their parts.
    pub fn gathered_state(&self, name: &str) -> Result<Option<HostTensor>, ExecError> {
        let held = self.held(name)?;
        let mut mine = SortedMap::new();
        for rank in held.blocks.holders(0..self.mesh.devices()) {
            if self.ranks().contains(&rank) {
                let name = name.to_string();
                mine.insert(rank, self.on_one(rank, move |engine| engine.state(&name))?);
            }
        }
        if self.processes.count() > 1 {
            mine = held.blocks.exchanged(&self.processes, name.into(), &mine, true)?;
            if !self.processes.is_first() {
                return Ok(None);
            }
        }
        let whole = held.blocks.assembled(&mine);
        whole
            .map(Some)
            .ok_or_else(|| self.state_failed(name, "the blocks of the devices do not make a whole".into()))
    }

    fn state_failed(&self, name: &str, problem: String) -> ExecError {
        let error = ExecError::State { rank: self.first, name: name.into(), problem };
        self.processes.abort(&error.to_string());
        error
    }

    /// Sets a parameter or optimizer state on the devices of this process that hold a part of it. Every process must pass the
    /// same value.
    pub fn set_state(&self, name: &str, whole: &HostTensor) -> Result<(), ExecError> {
        let held = self.held(name)?;
        if whole.shape != held.info.shape || whole.dtype() != held.info.dtype {
            let given = format!("{} of shape {:?} was given", whole.dtype(), whole.shape);
            let wanted = format!("{given}, not {} of {:?}", held.info.dtype, held.info.shape);
            return Err(self.state_failed(name, wanted));
        }
        let stored = (!held.blocks.orders.is_empty()).then(|| held.blocks.stored(whole)).flatten();
        let whole = stored.as_ref().unwrap_or(whole);
        let mut jobs = vec![];
        for ranges in &held.blocks.ranges[self.ranks()] {
            let Some(part) = whole.slice(ranges) else {
                return Err(self.state_failed(name, format!("{ranges:?} is not within {:?}", whole.shape)));
            };
            let name = name.to_string();
            jobs.push(move |engine: &mut Engine| engine.set_state(&name, part));
        }
        self.on_each(jobs).map(|_| ())
    }

    /// Sets a parameter or optimizer state on all devices of all processes to the value of the first process; the
    /// values of the others are ignored.
    pub fn spread_state(&self, name: &str, whole: Option<&HostTensor>) -> Result<(), ExecError> {
        if self.processes.count() == 1 {
            let Some(whole) = whole else { return Err(self.state_failed(name, "no value was given".into())) };
            return self.set_state(name, whole);
        }
        let info = self.held(name)?.info.clone();
        let given = whole.filter(|w| w.shape == info.shape && w.dtype() == info.dtype);
        let bytes = given.filter(|_| self.processes.is_first()).and_then(|w| bytes_of(&w.data));
        let bytes = self.processes.broadcast_bytes(About::from(name), bytes.unwrap_or_default().to_vec())?;
        match from_bytes(info.dtype, info.shape, &bytes) {
            Some(whole) => self.set_state(name, &whole),
            None => Err(self.state_failed(name, "the first process has no value that fits".into())),
        }
    }
}
