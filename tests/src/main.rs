//! The command, built from `cli` for the tests.

fn main() -> std::process::ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    match args.get(1) {
        // A device of the suite of transports, where devices are processes.
        Some(first) if first == "transport-suite" => meshwright_tests::transports::main(&args[2..]),
        _ => meshwright_cli::main(args),
    }
}
