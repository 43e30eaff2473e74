//! What long sequences cost: processor time of keys that go around beside gathered ones, and memory.

use crate::support::{options, run};
use meshwright_core::training_step;
use meshwright_plan::{Arithmetic, Plan};
use meshwright_train::{Project, ProjectOptions};

/// Milliseconds of processor time that a step takes under each layout: the least of some turns, one layout after the other.
fn cpu_times<const N: usize>(layouts: [&str; N]) -> [f64; N] {
    let mut least = [f64::INFINITY; N];
    for _ in 0..3 {
        for (layout, least) in layouts.iter().zip(&mut least) {
            let sizes =
                ["batch=1", "seq=1024", "places=1024", "layers=2"].map(|size| ["--dim", size]).concat();
            let model = ["bench", "model", "gpt", "--preset", "tiny", "--format", "json", "--mesh", "ctx=4"];
            let steps = ["--layout", layout, "--warmup", "1", "--steps", "3"];
            let said = run(&[&model[..], &sizes, &steps].concat());
            assert_eq!(said.code, Some(0), "{}", said.err);
            let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
            *least = least.min(json["cpu_ms_per_step"].as_f64().unwrap());
        }
    }
    least
}

/// See `docs/results/long_sequences.md` for figures.
#[test]
fn rings_take_little_more_processor_time_than_gathers() {
    let [gathered, ring, zigzag] = cpu_times([
        "seq -> ctx; gather key",
        "seq -> ctx; ring key",
        "seq -> ctx; ring key; order seq zigzag ctx",
    ]);
    assert!(gathered > 1.0, "{gathered} ms");
    assert!(ring < 1.3 * gathered, "{ring} ms around a ring, {gathered} gathered");
    assert!(zigzag < 1.3 * ring, "{zigzag} ms in zigzag order, {ring} in that of positions");
}

fn plan(layout: &str) -> Plan {
    let sizes = [("batch", 1), ("seq", 32_768)];
    let o = ProjectOptions {
        preset: Some("8b".into()),
        precision: Some(Arithmetic::BF16),
        ..options("llama", "data=1,ctx=8", layout, &sizes)
    };
    let loaded = Project::load(&o);
    let project = loaded.project.unwrap_or_else(|| panic!("{layout}: {:?}", loaded.diagnostics));
    let step = training_step(&project.program).unwrap();
    project.compile(&step, &loaded.sources).0.unwrap().plan
}

/// The page of long sequences has the peaks.
#[test]
fn no_device_holds_all_keys_of_a_long_sequence() {
    let [gathers, ring, zigzag] = ["context", "ring", "ring_zigzag"].map(plan);
    // Keys and values have groups of queries and a width beside positions.
    let whole = |p: &Plan| {
        let key = p.dims.find("key").unwrap();
        let all = |o: &meshwright_plan::Operand| {
            let along = o.dims.iter().position(|d| *d == key);
            along.is_some_and(|k| p.buffer(o.buf).extents[k].axes.is_empty() && o.dims.len() > 2)
        };
        p.steps.iter().flat_map(|s| s.all()).filter(|o| all(o)).count()
    };
    assert!(whole(&gathers) > 0);
    assert_eq!([&ring, &zigzag].map(whole), [0, 0]);
    let [gathers, ring, zigzag] = [gathers, ring, zigzag].map(|p| p.summary.peak_bytes);
    assert!(ring < gathers && zigzag < gathers, "{gathers}, {ring}, {zigzag}");
}
