//! Choices for what a source does not state of a run.

use meshwright_cost::engine::EngineFacts;
use meshwright_cost::machine::Machine;
use meshwright_plan::actions::PipelineSchedule;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Value;

/// Most choices of a run: each is an estimate.
const MOST: usize = 4096;
/// Greatest number of microbatches, as a power of two.
const MOST_PARTS: u32 = 10;
/// Greatest number of chunks.
const MOST_CHUNKS: i64 = 12;

/// A choice: rules that are added, and keys of the engine and of the pipeline with their values.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenChoice {
    rules: Vec<String>,
    facts: Vec<(String, Value)>,
    pipe: Vec<(String, Value)>,
}

/// The values of a name in `open`.
enum Leaves {
    Rules(Vec<String>),
    Fact(Vec<Value>),
    Pipe(Vec<Value>),
}

impl OpenChoice {
    /// All choices for a run with an engine, and perhaps a pipeline: that of the file first.
    ///
    /// # Errors
    /// Where a name stands for nothing that can be left open, or there are too many choices.
    pub(super) fn all(
        names: &[String],
        (engine, piped): (&str, bool),
        machine: &Machine,
    ) -> Result<Vec<OpenChoice>, String> {
        let mut all = vec![OpenChoice::default()];
        for open in names {
            let leaves = leaves(open, machine)?;
            let own = ["threads", "mpi", "cuda"].contains(&engine);
            match &leaves {
                Leaves::Pipe(_) if !piped => {
                    return Err(format!("`open` names `{open}` of a pipeline, but the run has no `pipe`"));
                }
                Leaves::Fact(_) if own => {
                    return Err(format!(
                        "`open` names the fact `{open}`, but the engine `{engine}` has no facts"
                    ));
                }
                _ => {}
            }
            let more = all.iter().flat_map(|chosen| chosen.with(open, &leaves)).collect::<Vec<_>>();
            all.extend(more);
            if all.len() > MOST {
                return Err(format!("`open` leaves more than {MOST} choices: name less"));
            }
        }
        Ok(all)
    }

    /// This choice with each of what a name stands for.
    fn with(&self, open: &str, leaves: &Leaves) -> Vec<OpenChoice> {
        let mut out = vec![];
        match leaves {
            Leaves::Rules(rules) => {
                out.extend(rules.iter().map(|rule| OpenChoice {
                    rules: [&self.rules[..], std::slice::from_ref(rule)].concat(),
                    ..self.clone()
                }));
            }
            Leaves::Fact(values) | Leaves::Pipe(values) => {
                for value in values {
                    let mut next = self.clone();
                    let to = if matches!(leaves, Leaves::Fact(_)) { &mut next.facts } else { &mut next.pipe };
                    to.push((open.to_string(), value.clone()));
                    out.push(next);
                }
            }
        }
        out
    }

    /// Rules that are added.
    pub(super) fn rules(&self) -> &[String] {
        &self.rules
    }

    /// What it says beyond the file.
    pub(super) fn said(&self) -> Vec<String> {
        let keys = self.facts.iter().chain(&self.pipe).map(|(key, value)| format!("{key} = {value}"));
        self.rules.iter().cloned().chain(keys).collect()
    }

    /// The facts of an engine with what was chosen.
    pub(super) fn facts(&self, of: &EngineFacts) -> Result<EngineFacts, String> {
        changed(of, &self.facts)
    }

    /// A pipeline, as runs files have it, with what was chosen.
    pub(super) fn pipe<T: Clone + Serialize + DeserializeOwned>(&self, of: &T) -> Result<T, String> {
        changed(of, &self.pipe)
    }
}

/// A value with other keys.
fn changed<T: Clone + Serialize + DeserializeOwned>(of: &T, keys: &[(String, Value)]) -> Result<T, String> {
    if keys.is_empty() {
        return Ok(of.clone());
    }
    let mut table = toml::Table::try_from(of).map_err(|e| e.to_string())?;
    table.extend(keys.iter().cloned());
    table.try_into().map_err(|e: toml::de::Error| e.to_string())
}

/// The values of a name, apart from what the file says.
fn leaves(open: &str, machine: &Machine) -> Result<Leaves, String> {
    let words = |all: &[&str]| Leaves::Fact(all.iter().map(|w| Value::from(*w)).collect());
    let either = || Leaves::Fact(vec![Value::from(false), Value::from(true)]);
    Ok(match open {
        "microbatches" => {
            Leaves::Rules((1..=MOST_PARTS).map(|k| format!("microbatches {}", 1u64 << k)).collect())
        }
        "recompute" => Leaves::Rules(vec!["recompute layers.*".into()]),
        "schedule" => Leaves::Pipe(PipelineSchedule::ALL.map(|s| Value::from(s.name())).to_vec()),
        "chunks" => Leaves::Pipe((1..=MOST_CHUNKS).map(Value::from).collect()),
        "ends" => Leaves::Pipe(vec![Value::from(0), Value::from(1)]),
        "attention" => {
            let kernels = machine.device.attention.keys().map(String::as_str);
            words(&kernels.chain(["unfused"]).collect::<Vec<_>>())
        }
        "fusion" => words(&["fused", "eager"]),
        "dtype" => words(&["bf16", "fp8"]),
        "tp_overlap" => words(&["none", "wgrad", "pipe"]),
        "loss" => words(&["fused", "torch", "vocab"]),
        "recompute_every" => Leaves::Fact(vec![Value::from(0), Value::from(2)]),
        "grad_bytes" | "param_bytes" => Leaves::Fact(vec![Value::from(2.0), Value::from(4.0)]),
        "fused_projections"
        | "recompute_attention"
        | "recompute_all"
        | "master"
        | "dp_overlap"
        | "ring"
        | "p2p_overlap"
        | "nvls" => either(),
        other => {
            return Err(format!(
                "`open` names `{other}`; it may name microbatches, recompute, schedule, chunks, ends, or a fact of the engine that estimates read"
            ));
        }
    })
}
