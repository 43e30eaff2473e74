//! Faults in attention whose keys go around the devices: turns, rotations, and the sums of what they give.

use super::plans::{Fault, P, R, faults, seeded, steps};
use super::subjects::{ATTENTION, planned_from};
use super::{Row, judge};
use meshwright_plan::{AttentionPart, BufId, Collective, Plan, Prim, Step};

/// Where a step has what it goes on with, if it is a turn that does.
fn turn(p: &mut Plan, i: usize) -> Option<[usize; 3]> {
    let Prim::Attention { spec, parts } = &p.steps[i].prim else { return None };
    spec.state(parts)
}

/// The result of a rotation, if a step is one.
fn rotated(p: &Plan, i: usize) -> Option<BufId> {
    let rotates = matches!(p.steps[i].collective(), Some(Collective::Rotate { .. }));
    rotates.then(|| p.steps[i].writes[0].buf)
}

const FAULTS: &[Fault] = faults![
    "a rotation brings the shard of the device after the next", P, |p, k| {
        steps(p, k, |p, i| {
            let to = rotated(p, i)?;
            let own = p.buffers[to.0 as usize].extents.iter_mut().find(|e| !e.axes.is_empty())?;
            own.rotated += 1;
            Some(())
        })
    };
    "a turn takes the shard that it rotates", P, |p, k| {
        steps(p, k, |p, i| {
            let (from, to) = (p.steps[i].reads[0].buf, rotated(p, i)?);
            let turns = p.steps[i..].iter_mut().filter(|s| matches!(s.prim, Prim::Attention { .. }));
            let mut reads = turns.flat_map(|s| &mut s.reads).filter(|o| o.buf == to);
            reads.next()?.buf = from;
            Some(())
        })
    };
    "a turn begins anew", P, |p, k| {
        steps(p, k, |p, i| {
            let state = turn(p, i)?;
            let step = &mut p.steps[i];
            step.reads.truncate(state[0]);
            if let Prim::Attention { spec, .. } = &mut step.prim {
                spec.continues = false;
            }
            Some(())
        })
    };
    "what earlier turns gave is not scaled to the new maximum", P, |p, k| {
        steps(p, k, |p, i| {
            let [max, ..] = turn(p, i)?;
            // The step once more before itself, for the maximum that it will find: what was scaled to that already stays as it
            // is.
            let Prim::Attention { parts, .. } = &p.steps[i].prim else { return None };
            let found = parts.iter().position(|part| *part == AttentionPart::Max)?;
            let mut first = p.steps[i].clone();
            (first.free, first.aliases) = (Vec::new(), Vec::new());
            for o in &mut first.writes {
                p.buffers.push(p.buffers[o.buf.0 as usize].clone());
                o.buf = BufId(p.buffers.len() as u32 - 1);
                p.steps[i].free.push(o.buf);
            }
            p.steps[i].reads[max].buf = first.writes[found].buf;
            p.steps.insert(i, first);
            Some(())
        })
    };
    "a turn that is not the last gives the result", P, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Attention { parts, .. } = &mut p.steps[i].prim else { return None };
            let values = parts.iter_mut().find(|p| **p == AttentionPart::Values)?;
            *values = AttentionPart::Result;
            Some(())
        })
    };
    "the maximum and the sum so far change places", R, |p, k| {
        steps(p, k, |p, i| {
            let [max, sum, _] = turn(p, i)?;
            p.steps[i].reads.swap(max, sum);
            Some(())
        })
    };
    "a sum of gradients leaves out the terms so far", P, |p, k| {
        let gradients = |s: &&Step| {
            matches!(&s.prim, Prim::Attention { parts, .. } if parts.iter().any(|p| p.is_gradient()))
        };
        let of_turns: Vec<BufId> =
            p.steps.iter().filter(gradients).flat_map(|s| &s.writes).map(|o| o.buf).collect();
        steps(p, k, |p, i| {
            let adds = p.steps[i].reads.len() == 2 && of_turns.contains(&p.steps[i].reads[1].buf);
            let Prim::Map { expr, regs } = &mut p.steps[i].prim else { return None };
            let second = expr.nodes.iter().position(|n| n.scalar == meshwright_plan::expr::Scalar::Load(1))?;
            regs[0] = second as u16;
            adds.then_some(())
        })
    };
];

#[test]
fn every_wrong_ring_is_caught() {
    let shared = ATTENTION.replace("let v = (x * wv)[seq -> key]", "let v = k");
    let shared = shared.replace("    param wv[heads, d] = normal(0, 1)\n", "");
    let stored = ATTENTION
        .replace("param wk[heads, d]", "param wk[key, heads, d]")
        .replace("tanh(x * wk)[seq -> key]", "wk");
    assert!(stored.contains("let k = wk"));
    let parts = "seq -> a; key -> a when free; params: heads -> b; ring key";
    let subjects = [
        planned_from("ring", ATTENTION, "a=3", "seq -> a; ring key"),
        planned_from("ring and examples", ATTENTION, "b=2,a=2", "batch -> b; seq -> a; ring key"),
        planned_from("ring over two axes", ATTENTION, "b=2,a=2", "seq -> a, b; ring key"),
        planned_from("keys that are values", &shared, "a=3", "seq -> a; ring key"),
        planned_from("keys that are stored in more parts", &stored, "a=3,b=2", parts),
    ];
    let rows: Vec<Row> = FAULTS.iter().map(|fault| seeded(fault, &subjects)).collect();
    judge("rings", &rows);
}
