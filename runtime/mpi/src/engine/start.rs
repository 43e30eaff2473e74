//! Starting collectives that are ready, and the communicators for the first ones of groups.
//!
//! **Communicators** are made by a call that returns when all members have made it; until then this process answers
//! nobody, and looks dead to all others. So nobody calls before all are about to: a member whose next communicator is that of
//! a group says so to the group's first member, which lets all of them begin when it has heard of each. What devices do
//! meanwhile does not matter, since the progress thread makes communicators too.
//!
//! They are made in the order in which this rank first used its groups, which must be an order that all ranks share; so no
//! two ranks wait for each other in different groups.

use super::{Engine, Making, Phase, Serial};
use crate::message::Message;
use crate::moves::RunningCollective;
use crate::sys::Comm;
use meshwright_comm::CommError;
use std::sync::Arc;

impl Engine {
    pub(super) fn start_ready(&mut self, making: Option<&dyn Making>) -> Result<(), CommError> {
        let waiting: Vec<Arc<[usize]>> = {
            let groups = self.groups.iter().filter(|(_, g)| !g.queue.is_empty());
            groups.map(|(members, _)| members.clone()).collect()
        };
        // Those that need a communicator come in the order of `unmade`, all others in any.
        let mut order = waiting;
        order.sort_by_key(|members| self.unmade.iter().position(|u| u == members));
        for members in order {
            while let Some(serial) = self.groups.get(&members).and_then(|g| g.queue.front().copied()) {
                match self.ops.get(&serial) {
                    Some(op) if matches!(op.phase, Phase::Ready) => {}
                    Some(op) if op.is_gathering() => break,
                    _ => {
                        // Failed while gathering, on all members.
                        self.unqueue(&members);
                        continue;
                    }
                }
                let Some(comm) = self.comm_for(serial, &members, making)? else { break };
                self.start(serial, comm)?;
                self.unqueue(&members);
            }
        }
        Ok(())
    }

    fn unqueue(&mut self, members: &Arc<[usize]>) {
        if let Some(group) = self.groups.get_mut(members) {
            group.queue.pop_front();
        }
    }

    /// Starts a collective that is ready.
    fn start(&mut self, serial: Serial, comm: Comm) -> Result<(), CommError> {
        let Some(op) = self.ops.get_mut(&serial) else { return Ok(()) };
        let place = op.member(comm);
        // It runs before anything is handed over: of one that fails half-way the library has memory too.
        op.phase = Phase::Running(RunningCollective::new());
        let Phase::Running(run) = &mut op.phase else { return Ok(()) };
        #[expect(unsafe_code, reason = "hands the memory of a call to the library")]
        // SAFETY: as in `Engine::advance`.
        let started = unsafe { run.start(&op.call, &self.kit, &place, op.agreed) };
        started.or_else(|e| self.broken(serial, e))
    }

    /// The communicator of a group, made now if it can be, for that collective.
    fn comm_for(
        &mut self,
        serial: Serial,
        members: &Arc<[usize]>,
        making: Option<&dyn Making>,
    ) -> Result<Option<Comm>, CommError> {
        if let Some(comm) = self.groups.get(members).and_then(|g| g.comm) {
            return Ok(Some(comm));
        }
        let Some(name) = self.ops.get(&serial).map(|op| op.name.clone()) else { return Ok(None) };
        if self.unmade.front() != Some(members) {
            return Ok(None);
        }
        let told = self.tell_ready(members);
        self.answered(told, Some(&name))?;
        let Some(making) = making.filter(|_| self.groups.get(members).is_some_and(|g| g.readiness.all))
        else {
            return Ok(None);
        };
        making.begins(&name, members);
        let made = self.world.of_ranks(members);
        making.ends();
        let comm = self.answered(made, Some(&name))?;
        self.unmade.pop_front();
        if let Some(group) = self.groups.get_mut(members) {
            group.comm = Some(comm);
        }
        Ok(Some(comm))
    }

    /// Says once that this rank's next communicator is that of this group.
    fn tell_ready(&mut self, members: &Arc<[usize]>) -> Result<(), String> {
        let readiness = self.groups.get_mut(members).map(|g| &mut g.readiness);
        let Some(readiness) = readiness.filter(|readiness| !readiness.told) else { return Ok(()) };
        readiness.told = true;
        match members[0] {
            first if first == self.rank => self.member_is_ready(first, members),
            first => self.channel.send(first, &Message::Ready(members.clone())),
        }
    }

    /// A member is ready, and this is the first one of its group, which has come itself.
    pub(super) fn member_is_ready(&mut self, from: usize, members: &Arc<[usize]>) -> Result<(), String> {
        let Some(group) = self.groups.get_mut(members).filter(|_| members.contains(&from)) else {
            return Ok(());
        };
        group.readiness.ready.insert(from);
        if group.readiness.ready.len() == members.len() {
            for member in members.iter().filter(|r| **r != self.rank) {
                self.channel.send(*member, &Message::Make(members.clone()))?;
            }
            self.all_are_ready(members);
        }
        Ok(())
    }

    /// All members are about to make their communicator.
    pub(super) fn all_are_ready(&mut self, members: &Arc<[usize]>) {
        if let Some(group) = self.groups.get_mut(members) {
            group.readiness.all = true;
        }
    }
}
