//! Where the devices that are measured are: on how many hosts, and on how many cores of these.

use crate::devices::Devices;
use meshwright_diag::{Diagnostic, codes};
use meshwright_exec::ProcessHome;
use meshwright_plan::Mesh;
use meshwright_sorted::SortedSet;

/// Devices, host by host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ranks {
    /// Devices of a host, in consecutive ranks.
    pub(super) in_host: usize,
    /// Number of hosts.
    pub(super) hosts: usize,
    /// Cores of a host that its devices may use together.
    pub(super) cores: usize,
}

impl Ranks {
    /// Those of a mesh: threads of this process, or the processes that there are.
    ///
    /// # Errors
    /// E0525 where a machine file has no levels for the places of ranks.
    pub(super) fn of(devices: &Devices, mesh: &Mesh) -> Result<Ranks, Box<Diagnostic>> {
        let homes = devices.processes.homes();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        match homes {
            [] => Ok(Ranks { in_host: mesh.devices(), hosts: 1, cores }),
            _ => Ranks::at(homes, cores),
        }
    }

    /// Those of processes with a device each; of cores that the system does not list there are `otherwise`.
    fn at(homes: &[ProcessHome], otherwise: usize) -> Result<Ranks, Box<Diagnostic>> {
        let by_host: Vec<&[ProcessHome]> = homes.chunk_by(|a, b| a.host == b.host).collect();
        let names: SortedSet<&str> = homes.iter().map(|home| home.host.as_str()).collect();
        let in_host = by_host.first().map_or(1, |first| first.len());
        if names.len() != by_host.len() || by_host.iter().any(|ranks| ranks.len() != in_host) {
            let counts: Vec<String> =
                by_host.iter().map(|ranks| format!("{} on {}", ranks.len(), ranks[0].host)).collect();
            let message = format!("ranks are not host by host, as many on each: {}", counts.join(", "));
            return Err(Box::new(
                Diagnostic::error(codes::E0525, message)
                    .help("start them so: `mpirun --map-by slot`, with as many slots on each host; with Slurm `--distribution=block`"),
            ));
        }
        let first = by_host.first().into_iter().copied().flatten();
        let cores: SortedSet<usize> = first.flat_map(|home| listed(&home.cores)).collect();
        let cores = if cores.is_empty() { otherwise } else { cores.len() };
        Ok(Ranks { in_host, hosts: by_host.len(), cores })
    }

    /// Numbers of members of the groups that are measured: those that a mesh has, and the devices of a host.
    pub(super) fn groups(&self, mesh: &Mesh) -> SortedSet<usize> {
        let mut all: SortedSet<usize> = [1].into();
        for axis in &mesh.axes {
            let with: Vec<usize> = all.iter().map(|n| n * axis.size).collect();
            all.extend(with);
        }
        if self.hosts > 1 {
            all.insert(self.in_host);
        }
        all.remove(&1);
        all
    }
}

/// The numbers of a list as the system writes it: `0-3,8`.
fn listed(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn homes(of: &[(&str, &str)]) -> Vec<ProcessHome> {
        of.iter().map(|(host, cores)| ProcessHome { host: (*host).into(), cores: (*cores).into() }).collect()
    }

    #[test]
    fn cores_of_a_host_are_those_of_all_its_ranks() {
        assert_eq!(listed("0-3,8"), [0, 1, 2, 3, 8]);
        let two = homes(&[("a", "0"), ("a", "1-2"), ("b", "0"), ("b", "1")]);
        assert_eq!(Ranks::at(&two, 9).unwrap(), Ranks { in_host: 2, hosts: 2, cores: 3 });
        let unbound = homes(&[("a", "0-1"), ("a", "0-1"), ("a", "0-1")]);
        assert_eq!(Ranks::at(&unbound, 9).unwrap(), Ranks { in_host: 3, hosts: 1, cores: 2 });
        assert_eq!(Ranks::at(&homes(&[("a", "")]), 9).unwrap().cores, 9);
    }

    #[test]
    fn ranks_that_no_levels_describe_are_refused() {
        for of in [&[("a", "0"), ("b", "0"), ("a", "1")][..], &[("a", "0"), ("a", "1"), ("b", "0")]] {
            let said = Ranks::at(&homes(of), 1).unwrap_err();
            assert!(said.code.id == "E0525" && said.message.contains("1 on b"), "{}", said.message);
        }
    }

    #[test]
    fn groups_are_those_of_all_sets_of_axes_and_those_of_hosts() {
        let of = |axes: &[(&str, usize)], hosts| {
            let mesh = Mesh::new(axes.iter().copied());
            let ranks = Ranks { in_host: mesh.devices() / hosts, hosts, cores: 1 };
            ranks.groups(&mesh).into_iter().collect::<Vec<usize>>()
        };
        assert_eq!(of(&[("a", 2), ("b", 3), ("c", 2)], 1), [2, 3, 4, 6, 12]);
        assert_eq!(of(&[("a", 1)], 1), [0; 0]);
        assert_eq!((of(&[("all", 8)], 2), of(&[("all", 2)], 2)), (vec![4, 8], vec![2]));
    }
}
