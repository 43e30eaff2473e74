//! Tensors that are others under a second name, as `tie_word_embeddings` says.

use super::config::HfConfig;
use super::map::HfMap;
use crate::init::{alternatives, matched};
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_runs::checkpoint::TensorSource;

/// Lets tensors that are not there be those that they are tied to, and compares those that are there.
///
/// # Errors
///
/// E0513 where a tensor is not the one that it is tied to, E0512 where one cannot be read.
pub(super) fn tie(config: &HfConfig, map: &HfMap, source: &mut TensorSource, place: &str) -> Checked<()> {
    if !config.ties(map) {
        return Ok(());
    }
    let names = source.names();
    for (copy, of) in &map.tied {
        let there = |pattern: &str| {
            let all = alternatives(pattern).unwrap_or_default();
            names.iter().find(|n| all.iter().any(|p| matched(p, n).is_some())).cloned()
        };
        let Some(of) = there(of) else { continue };
        match there(copy) {
            None => {
                let copy = alternatives(copy).unwrap_or_default().into_iter().next().unwrap_or_default();
                source.tie(&copy, &of);
            }
            Some(copy) => {
                if let Some(why) = differs(source, (&copy, &of), place)? {
                    return Err(Box::new(other_tensor((&copy, &of), &why, (config, map), place)));
                }
            }
        }
    }
    Ok(())
}

/// What tells a tensor from another; none where they are equal, bit for bit.
fn differs(source: &TensorSource, (copy, of): (&str, &str), place: &str) -> Checked<Option<String>> {
    let (Some(a), Some(b)) = (source.info(copy), source.info(of)) else { return Ok(None) };
    if a != b {
        return Ok(Some(format!("`{copy}` is {:?} {:?}, `{of}` is {:?} {:?}", a.0, a.1, b.0, b.1)));
    }
    let read = |name: &str| {
        let failed = |e: std::io::Error| {
            Box::new(Diagnostic::error(codes::E0512, format!("`{name}` of {place} cannot be read: {e}")))
        };
        source.bytes(name).map_err(failed).map(Option::unwrap_or_default)
    };
    let (x, y) = (read(copy)?, read(of)?);
    let elements = a.1.iter().product::<usize>().max(1);
    let width = (x.len() / elements).max(1);
    let odd = |i: &usize| x[i * width..(i + 1) * width] != y[i * width..(i + 1) * width];
    let all: usize = (0..elements).filter(odd).count();
    let first = (0..elements).find(odd);
    Ok(first.map(|i| format!("{all} of {elements} elements differ, the first is element {i}")))
}

fn other_tensor(
    (copy, of): (&str, &str),
    why: &str,
    (config, map): (&HfConfig, &HfMap),
    place: &str,
) -> Diagnostic {
    let says = config.tie_text();
    let message = format!("{place} has a `{copy}` that is not `{of}`, to which {says} ties it: {why}");
    let d = Diagnostic::error(codes::E0513, message);
    let d = match map.choices.contains_key(super::config::TIE) {
        true => d.help(format!(
            "to import both as they are, write `\"{}\": false` in `config.json`",
            super::config::TIE
        )),
        false => d.note(format!("the model `{}` has one parameter for both", map.model)),
    };
    d.help(format!("to import `{of}` alone, take `{copy}` out of the file"))
}
