//! The interpreter of PTX that stands in for GPUs, on kernels written by hand: what it computes is what PTX says, and what a
//! kernel must not do it tells.

#[path = "../../../fake-nccl/src/ptx/mod.rs"]
mod interpreter;

mod faults;
mod groups;
mod matrices;
mod numbers;
mod threads;

use interpreter::{Launch, Memory, Module};

/// Memory of the host as that of a GPU: pieces, as where each starts and ends.
struct Pieces(Vec<(usize, usize)>);

impl Memory for Pieces {
    fn piece(&self, address: usize) -> Option<(usize, usize)> {
        self.0.iter().copied().find(|(start, end)| (*start..*end).contains(&address))
    }
}

/// A launch of one block.
fn block(threads: u32) -> Launch {
    Launch { grid: [1; 3], block: [threads, 1, 1], shared: 0, watches: false, limit: 100_000 }
}

/// A kernel with some registers of each kind, 4 KiB of shared memory `s`, and functions and variables before it. Parameters are
/// in `%rd1` and `%rd2`, the thread is in `%r1`, and the addresses of its words of both in `%rd4` and `%rd5`.
fn text(before: &str, body: &str) -> String {
    format!(
        "//\n.version 9.0\n.target sm_90a\n.address_size 64\n{before}
        .visible .entry k(.param .u64 .ptr .global .align 1 k_param_0, .param .u64 k_param_1)
        {{
            .reg .pred %p<20>;
            .reg .b16 %rs<40>;
            .reg .b32 %r<100>;
            .reg .b64 %rd<40>;
            .shared .align 16 .b8 s[4096];
            .local .align 8 .b8 depot[64];
            ld.param.b64 %rd1, [k_param_0];
            ld.param.b64 %rd2, [k_param_1];
            mov.u32 %r1, %tid.x;
            mul.wide.u32 %rd3, %r1, 4;
            add.s64 %rd4, %rd1, %rd3;
            add.s64 %rd5, %rd2, %rd3;
            {body}
            ret;
        }}"
    )
}

/// Runs a kernel that reads `input` and writes `outputs` words; an error is its number and what is said of it.
fn launched(
    how: &Launch,
    (before, body): (&str, &str),
    input: &[u32],
    outputs: usize,
) -> Result<Vec<u32>, (i32, String)> {
    let module = Module::parse(&text(before, body)).map_err(|problem| (218, problem))?;
    let kernel = module.kernel("k").unwrap();
    assert_eq!(kernel.parameters(), [(0, 8), (8, 8)]);
    let mut output = vec![0u32; outputs];
    let (from, to) = (input.as_ptr() as usize, output.as_mut_ptr() as usize);
    let memory = Pieces(vec![(from, from + 4 * input.len()), (to, to + 4 * outputs)]);
    let arguments = [(from as u64).to_le_bytes(), (to as u64).to_le_bytes()].concat();
    match kernel.launch(how, &arguments, &memory) {
        Ok(_) => Ok(output),
        Err(fault) => Err((fault.code, fault.text)),
    }
}

/// The same for what goes well.
fn run(body: &str, input: &[u32], threads: u32, outputs: usize) -> Vec<u32> {
    launched(&block(threads), ("", body), input, outputs).unwrap()
}

/// What an instruction on `%r2`, `%r3` and `%r4` leaves in `%r5`, for each group of three inputs.
fn each(instructions: &str, inputs: &[[u32; 3]]) -> Vec<u32> {
    let many = inputs.len();
    let flat: Vec<u32> = (0..3).flat_map(|i| inputs.iter().map(move |group| group[i])).collect();
    let body = format!(
        "ld.global.b32 %r2, [%rd4];
        ld.global.b32 %r3, [%rd4+{}];
        ld.global.b32 %r4, [%rd4+{}];
        {instructions}
        st.global.b32 [%rd5], %r5;",
        4 * many,
        8 * many
    );
    run(&body, &flat, many as u32, many)
}

/// The same for one group.
fn one(instructions: &str, input: [u32; 3]) -> u32 {
    each(instructions, &[input])[0]
}
