//! The command, built from `cli` for the tests.

fn main() -> std::process::ExitCode {
    meshwright_cli::main(std::env::args_os())
}
