//! The machine of `--machine`, for every command that estimates.

use crate::args::MachineArgs;
use crate::output::console::Console;
use crate::stop::Stop;
use meshwright_cost::machine::Machine;
use meshwright_diag::Sources;
use meshwright_train::Failure;
use meshwright_train::estimates::machine;

/// The machine that was named, if one was.
pub(crate) fn of_machine_if_named(
    args: &MachineArgs,
    console: &mut Console,
) -> Result<Option<Machine>, Stop> {
    match args.name() {
        Some(_) => of_machine(args, console).map(|(_, machine)| Some(machine)),
        None if !args.with.is_empty() => Err(Stop::Usage("`--with` goes with `--machine`".into())),
        None => Ok(None),
    }
}

/// The machine that was asked for, with its name.
pub(crate) fn of_machine(args: &MachineArgs, console: &mut Console) -> Result<(String, Machine), Stop> {
    let Some(name) = args.name() else {
        return Err(Stop::Usage(
            "give `--machine NAME|FILE`, or set MESHWRIGHT_MACHINE; `meshwright machines` lists those that ship".into(),
        ));
    };
    match machine(&name, &args.with) {
        Ok(machine) => Ok((name, machine)),
        Err(found) => Err(console.failed(Failure::Diagnostics(vec![*found]), &Sources::new())),
    }
}
