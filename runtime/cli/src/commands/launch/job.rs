//! What the files of both kinds of cluster are made from.

use crate::args::LaunchCommon;
use crate::stop::Stop;

/// What both kinds of file are made from.
pub(super) struct Job<'a> {
    pub(super) common: &'a LaunchCommon,
    pub(super) name: String,
    /// The command that every rank runs.
    pub(super) train: Vec<String>,
    /// Lines that say what the job is.
    pub(super) about: Vec<String>,
    /// Whether the same command continues the run, so that the job may be started again.
    pub(super) continues: bool,
}

impl Job<'_> {
    pub(super) fn processes_per_node(&self) -> u32 {
        self.common.per_node / self.common.devices_per_process
    }

    /// Settings of NCCL and of the launcher, with the reason for each.
    pub(super) fn variables(&self) -> Vec<(&str, &str, &'static str)> {
        let common = self.common;
        let mut all = vec![("NCCL_DEBUG", "WARN", "errors of NCCL with their cause, and nothing else")];
        if let Some(interface) = &common.interface {
            all.push(("NCCL_SOCKET_IFNAME", interface, "the network over which ranks find each other"));
        }
        if let Some(hca) = &common.hca {
            all.push(("NCCL_IB_HCA", hca, "the RDMA adapters that carry the data"));
        }
        // What was asked for takes the place of what is usual.
        all.retain(|(name, ..)| common.variables.iter().all(|asked| asked.0 != *name));
        all.extend(common.variables.iter().map(|(name, value)| (&**name, &**value, "set by --env")));
        all
    }
}

/// Words as a shell reads them.
pub(crate) fn joined(words: &[String]) -> Result<String, Stop> {
    shlex::try_join(words.iter().map(String::as_str))
        .map_err(|_| Stop::Usage("an argument contains a NUL byte, which a shell cannot pass on".into()))
}
