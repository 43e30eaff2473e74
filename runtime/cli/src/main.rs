//! The command `meshwright`.

use std::process::ExitCode;

/// Buffers of a step come and go by the thousand on every device's thread; the system's allocator serializes them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    meshwright_cli::main(std::env::args_os())
}
