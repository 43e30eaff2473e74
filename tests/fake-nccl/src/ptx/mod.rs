//! An interpreter of PTX, the code of NVIDIA's GPUs, as LLVM emits it: runs kernels on the host, on memory that it checks.
//!
//! Text is parsed (`lexer`, `parser`, `operands`) and each instruction decoded once (`program`, `decode` and the families of
//! instructions) into a step, which does it for all lanes of a warp under a mask (`flow`, `run`). Blocks run one after the
//! other, and the warps of a block in turns from barrier to barrier (`launch`).
//!
//! Sums, products and conversions are rounded as PTX says. What GPUs approximate is precise.
//! What the interpreter does not know it refuses when it parses; what a kernel must not do it reports.

#![allow(unsafe_code, reason = "kernels access memory by its address")]

mod atomics;
mod bits;
mod carry;
mod compare;
mod convert;
mod copies;
mod decode;
mod float;
mod flow;
mod groups;
mod half;
mod integer;
mod launch;
mod lexer;
mod machine;
mod matmuls;
mod memory;
mod operands;
mod parser;
mod program;
mod rounding;
mod run;
mod scope;
mod special;
mod steps;
mod tiles;
mod transfers;
mod types;
mod variables;
mod warps;

pub(crate) use launch::{Kernel, Launch};
pub(crate) use memory::Memory;

use parser::{Space, parse};
use program::aligned;
use scope::Place;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A text with kernels.
pub(crate) struct Module {
    kernels: BTreeMap<String, Arc<Kernel>>,
}

impl Module {
    /// All kernels of a text; the first thing that isn't known, with its line.
    pub(crate) fn parse(text: &str) -> Result<Module, String> {
        let source = parse(text)?;
        let outside = |space| matches!(space, Space::Global | Space::Const);
        let variables: Vec<_> = source.variables.iter().filter(|v| outside(v.space)).collect();
        let (mut at, mut offsets) = (0, Vec::new());
        for variable in &variables {
            at = aligned(at, variable.align);
            offsets.push(at);
            at += variable.bytes;
        }
        let mut bytes = vec![0u8; at];
        for (variable, at) in variables.iter().zip(&offsets) {
            bytes[*at..at + variable.start.len()].copy_from_slice(&variable.start);
        }
        let words = bytes.chunks(16).map(|chunk| {
            let mut word = [0; 16];
            word[..chunk.len()].copy_from_slice(chunk);
            u128::from_le_bytes(word)
        });
        let data: Arc<[u128]> = words.collect();
        let place =
            |at: &usize| Place { space: Space::Global, address: (data.as_ptr() as usize + at) as u64 };
        let places: HashMap<String, Place> =
            variables.iter().zip(&offsets).map(|(v, at)| (v.name.clone(), place(at))).collect();
        let entries = source.functions.iter().filter(|f| f.is_entry);
        let made = entries.map(|entry| {
            let kernel = Kernel::new(&source, entry, &places, data.clone())?;
            Ok((entry.name.clone(), Arc::new(kernel)))
        });
        Ok(Module { kernels: made.collect::<Result<_, String>>()? })
    }

    /// The kernel of a name.
    pub(crate) fn kernel(&self, name: &str) -> Option<Arc<Kernel>> {
        self.kernels.get(name).cloned()
    }
}
