//! The command `meshwright`.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshwright_cli::main(std::env::args_os())
}
