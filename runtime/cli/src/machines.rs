//! The machine files that ship, as the command lists and completes them.

use meshwright_cost::shipped_machines::ShippedMachine;
use meshwright_runs::catalog::Shipped;
use std::sync::LazyLock;

/// Every machine file that ships.
pub(crate) static MACHINES: LazyLock<Vec<Shipped>> = LazyLock::new(|| {
    let of = |m: &ShippedMachine| Shipped { name: m.name, path: m.path, text: m.text };
    meshwright_cost::shipped_machines::MACHINES.iter().map(of).collect()
});
