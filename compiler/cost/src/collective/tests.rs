//! Published all-reduces, the numbers of a reference, and laws.

use super::*;
use crate::shipped_machines::find;
use meshwright_plan::{Axis, Mesh};

const KINDS: [CollectiveKind; 5] = [
    CollectiveKind::AllReduce,
    CollectiveKind::AllGather,
    CollectiveKind::ReduceScatter,
    CollectiveKind::AllToAll,
    CollectiveKind::Permute,
];

fn machine(name: &str) -> Machine {
    Machine::read(find(name).unwrap()).unwrap()
}

fn strided(machine: &Machine, members: usize, stride: usize) -> TierGroup {
    TierGroup::new(machine, &(0..members).map(|i| i * stride).collect::<Vec<_>>())
}

fn seconds(machine: &Machine, kind: CollectiveKind, bytes: f64, members: usize, stride: usize) -> f64 {
    over(machine, kind, bytes, &strided(machine, members, stride)).seconds
}

/// Seconds of all-reduces of 8 devices in a node, from 4 MiB on in powers of two (stas00/ml-engineering, network).
const A100: [f64; 13] = [
    101.5e-6, 133.5e-6, 276.6e-6, 424e-6, 684.6e-6, 1327.6e-6, 2420.6e-6, 4218.4e-6, 8203.9e-6, 16.24e-3,
    32.136e-3, 64.074e-3, 127.997e-3,
];
/// Their bus bandwidth, in GB/s.
const H200: [f64; 13] =
    [107.16, 155.53, 219.89, 275.84, 346.51, 401.93, 436.15, 450.29, 463.58, 469.17, 473.10, 477.45, 482.26];

#[test]
fn published_all_reduces_are_met() {
    let bytes = |i: usize| f64::from(1u32 << 22) * f64::from(1u32 << i);
    let a100 = A100.iter().enumerate().map(|(i, s)| ("dgx-a100-80g", bytes(i), *s));
    let h200 = H200.iter().enumerate().map(|(i, b)| ("dgx-h200", bytes(i), 1.75 * bytes(i) / (b * 1e9)));
    let errors: Vec<f64> = a100
        .chain(h200)
        .map(|(name, bytes, published)| {
            let estimated = seconds(&machine(name), CollectiveKind::AllReduce, bytes, 8, 1);
            (estimated / published - 1.0).abs()
        })
        .collect();
    let (mean, most) =
        (errors.iter().sum::<f64>() / errors.len() as f64, errors.iter().copied().fold(0.0, f64::max));
    assert!(mean <= 0.10 && most <= 0.25, "mean {mean}, most {most}: {errors:?}");
}

/// What a prototype with formulas in place of lines gave.
#[test]
fn lines_are_the_formulas_that_they_replace() {
    use CollectiveKind::{AllGather, AllReduce, ReduceScatter};
    for (name, kind, bytes, members, stride, expected) in [
        ("dgx-h100", AllReduce, 1e9, 8, 1, 0.003_725_705_394),
        ("dgx-h100", AllReduce, 1e6, 8, 1, 3.648_148_1e-5),
        ("dgx-h100", AllReduce, 3e7, 4, 2, 1.863_809_524e-4),
        ("dgx-h100", AllGather, 1e8, 8, 1, 3.197_127_072e-4),
        ("dgx-h100", ReduceScatter, 2e5, 2, 4, 9.113_227_5e-6),
        ("dgx-h100", AllReduce, 4e9, 64, 1, 0.026_886_8),
        ("dgx-h100", AllReduce, 1e6, 64, 8, 2.783_516_624e-4),
        ("dgx-h100", AllReduce, 1e9, 16, 8, 0.041_240_869_565),
        ("dgx-h100", AllGather, 5e8, 128, 1, 0.002_304_445_833),
        ("dgx-h100", ReduceScatter, 5e8, 32, 4, 0.005_589_345_652),
        ("dgx-h100", AllReduce, 2e9, 512, 2, 0.025_801_895_524),
        ("dgx-a100-80g", AllReduce, 1e9, 8, 1, 0.007_636_808_511),
        ("dgx-a100-80g", AllReduce, 1e6, 64, 8, 3.309_411_765e-4),
        ("dgx-a100-80g", AllGather, 5e8, 128, 1, 0.003_406_876_389),
        ("dgx-a100-80g", ReduceScatter, 5e8, 32, 4, 0.011_088_288_889),
        ("dgx-a100-80g", AllReduce, 2e9, 512, 2, 0.050_584_838_889),
        ("dgx-h100", CollectiveKind::Permute, 1e7, 8, 1, 3.657_142_857e-5),
        ("dgx-h100", CollectiveKind::Permute, 1e7, 2, 8, 2.500_952_381e-4),
    ] {
        let found = seconds(&machine(name), kind, bytes, members, stride);
        assert!(
            (found - expected).abs() < 1e-9,
            "{name} {kind} {bytes} {members} x {stride}: {found} {expected}"
        );
    }
}

#[test]
fn the_line_is_named_and_members_are_counted() {
    let m = machine("dgx-h100");
    let of = |bytes, members, stride| {
        let c = over(&m, CollectiveKind::AllReduce, bytes, &strided(&m, members, stride));
        (c.algorithm, c.members, c.nodes, c.units)
    };
    assert_eq!(of(1e9, 8, 1), ("nvlink nvls".into(), 8, 1, 16.0));
    assert_eq!(of(1e9, 4, 1), ("nvlink ring".into(), 4, 1, 16.0));
    assert_eq!(of(1e5, 4, 1), ("nvlink ring_small".into(), 4, 1, 16.0));
    assert_eq!(of(1e5, 512, 8), ("rail tree".into(), 512, 512, 4.0));
    assert_eq!(of(1e9, 32, 4), ("rail ring".into(), 32, 16, 16.0));
    assert_eq!(of(1e9, 1, 1), (String::new(), 1, 1, 0.0));
    // A group of a mesh: two of four nodes, every second device.
    let mesh = Mesh::new([("a", 2), ("b", 2), ("c", 4), ("d", 2)]);
    let group = TierGroup::new(&m, &mesh.group(3, &[Axis(0), Axis(2)]));
    assert_eq!((group.members, group.nodes(), group.in_node()), (8, 2, 4));
}

/// Two levels above a node: a leaf of 4 nodes, and a spine.
fn three_levels() -> Machine {
    let rail = "\n[[tier]]\nname = \"spine\"\nsize = 512\nhop = 20e-6\np2p = 8e9\nunits = 4\n\n[[tier.line]]\nname = \"ring\"\n\
         ops = [\"all_reduce\", \"all_gather\", \"reduce_scatter\", \"all_to_all\"]\nlatency = 50e-6\nrate = 5e9\n\n[failures]";
    let text = include_str!("../machine/small.machine.toml");
    Machine::read(&text.replace("members = 4\n\n[failures]", &format!("members = 4\n{rail}"))).unwrap()
}

#[test]
fn a_ring_takes_a_step_on_each_level() {
    let m = three_levels();
    // 128 devices: 2 leaves of 8 nodes of 8. The leaf connects 64 devices.
    let gather = over(&m, CollectiveKind::AllGather, 1e6, &strided(&m, 128, 1));
    let hops = 1.0 * 20e-6 + 14.0 * 10e-6 + 112.0 * 1e-6;
    let rate = (8.0 * 5e9f64).min(60e9);
    let expected = 50e-6 + hops + 127.0 / 128.0 * 1e6 / rate;
    assert!((gather.seconds - expected).abs() < 1e-12, "{} {expected}", gather.seconds);
    assert_eq!(gather.nodes, 16);
    // Every second node: a leaf's cap counts for all members in a node.
    let gather = over(&m, CollectiveKind::AllGather, 1e6, &strided(&m, 32, 2));
    let expected = 50e-6 + 7.0 * 10e-6 + 24.0 * 1e-6 + 31.0 / 32.0 * 1e6 / 40e9;
    assert!((gather.seconds - expected).abs() < 1e-12, "{} {expected}", gather.seconds);
}

#[test]
fn the_slowest_level_of_an_all_to_all_counts() {
    let m = three_levels();
    // Of 16 devices in two nodes, half of the bytes leave the node, by a link of each device that the cap narrows.
    let across = 50e-6 + 10e-6 + 0.5e9 / (60e9 / 8.0);
    assert!((seconds(&m, CollectiveKind::AllToAll, 1e9, 16, 1) - across).abs() < 1e-12);
    // Few bytes: the node's ring with its many steps is slower than the network.
    let slow = m.with("tier.link.line.ring.per_member=1e-3").unwrap();
    let inside = 10e-6 + 15e-3 + 1e6 * 7.0 / 16.0 / 100e9;
    assert!((seconds(&slow, CollectiveKind::AllToAll, 1e6, 16, 1) - inside).abs() < 1e-12);
}

#[test]
fn more_is_never_faster() {
    for name in crate::shipped_machines::MACHINES.iter().map(|m| m.name) {
        let m = machine(name);
        for kind in KINDS {
            for stride in [1, 2, 8] {
                let fits = |members: &usize| members * stride <= m.devices();
                for members in [2, 3, 4, 8, 16, 64].into_iter().filter(fits) {
                    let mut last = 0.0;
                    for power in 10..32 {
                        let now = seconds(&m, kind, f64::from(1u32 << power), members, stride);
                        assert!(now >= last, "{name}: {kind} of 2^{power} bytes, {members} members");
                        last = now;
                    }
                    // With as many members in a node. What an NVSwitch adds for more than four devices is the exception.
                    let (few, many) = (strided(&m, members, stride), strided(&m, 2 * members, stride));
                    let nvls =
                        kind == CollectiveKind::AllReduce && m.tier[0].line.iter().any(|l| l.name == "nvls");
                    let node = many.nodes() == 1 && !nvls;
                    if fits(&(2 * members)) && (node || few.in_node() == many.in_node()) {
                        let most = seconds(&m, kind, 1e8, 2 * members, stride);
                        assert!(
                            most >= seconds(&m, kind, 1e8, members, stride),
                            "{name}: {kind} {members} x {stride}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_better_network_is_never_slower() {
    for name in ["dgx-h100", "abci-v100", "cpu"] {
        let m = machine(name);
        for tier in m.tier.iter().map(|t| t.name.clone()) {
            for (key, factor) in [
                ("rate", 2.0),
                ("p2p", 2.0),
                ("cap", 2.0),
                ("latency", 0.5),
                ("hop", 0.5),
                ("per_member", 0.5),
            ] {
                let mut better = m.clone();
                for t in better.tier.iter_mut().filter(|t| t.name == tier) {
                    match key {
                        "rate" => t.line.iter_mut().for_each(|l| l.rate *= factor),
                        "p2p" => t.p2p = t.p2p.map(|p| p * factor),
                        "cap" => t.cap = t.cap.map(|c| c * factor),
                        "latency" => t.line.iter_mut().for_each(|l| l.latency *= factor),
                        "hop" => t.hop *= factor,
                        _ => t.line.iter_mut().for_each(|l| l.per_member *= factor),
                    }
                }
                for kind in KINDS {
                    for (members, stride) in [(4, 1), (8, 1), (16, 8), (64, 1), (24, 2)] {
                        for bytes in [1e4, 1e6, 1e9] {
                            let (old, new) = (
                                seconds(&m, kind, bytes, members, stride),
                                seconds(&better, kind, bytes, members, stride),
                            );
                            assert!(new <= old, "{name}: {tier}.{key}, {kind} of {bytes}: {new} {old}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn switches_add_at_the_rate_of_the_wire() {
    let cut = InNetwork {
        mode: ReduceMode::CutThrough,
        levels: 1,
        rate: 1.25e9,
        link: 0.5e-6,
        frame: 1500.0,
        buffer: None,
        smallest: 0.0,
        members: 2,
        source: None,
    };
    let wire = 65_536.0 / 1.25e9;
    // Many calls of 64 KiB back to back, and the first with the way through the switch.
    let many = cut.seconds(65_536.0) + 99.0 * cut.stream(65_536.0);
    assert!(many <= 1.05 * 100.0 * wire, "{many}");
    assert!((cut.seconds(1e6) - (2.0 * (0.5e-6 + 1500.0 / 1.25e9) + 1e6 / 1.25e9)).abs() < 1e-15);
    // A level costs a frame.
    let three = InNetwork { levels: 3, ..cut.clone() };
    assert!((three.seconds(1e6) - cut.seconds(1e6) - 4.0 * (0.5e-6 + 1500.0 / 1.25e9)).abs() < 1e-15);
    let store = InNetwork { mode: ReduceMode::StoreAndForward, buffer: Some(65_536.0), ..cut };
    let twice = store.seconds(64.0 * 65_536.0) / (64.0 * wire);
    assert!((twice - 2.0).abs() < 0.01, "{twice}");
    assert_eq!(store.stream(1e6), 2.0 * 1e6 / 1.25e9);
}

#[test]
fn an_all_reduce_in_the_network_is_chosen_where_it_is_faster() {
    let cut = |smallest: &str| {
        let reduce = format!(
            "mode = \"cut-through\"\nlevels = 3\nrate = 46e9\nlink = 1e-6\nframe = 4096\nsmallest = {smallest}\nmembers = 16\n"
        );
        let text = find("dgx-h100").unwrap();
        Machine::read(&format!("{text}\n[tier.reduce]\n{reduce}")).unwrap()
    };
    let m = cut("65536.0");
    let of = |m: &Machine, bytes, members, stride| {
        over(m, CollectiveKind::AllReduce, bytes, &strided(m, members, stride))
    };
    // One member a node.
    assert_eq!(of(&m, 1e9, 512, 8).algorithm, "rail in-network");
    assert!(of(&machine("dgx-h100"), 1e9, 512, 8).seconds > 1.9 * of(&m, 1e9, 512, 8).seconds);
    // Between the two halves of an all-reduce in the node.
    let whole = of(&m, 4e9, 64, 2);
    let node = seconds(&m, CollectiveKind::AllReduce, 4e9, 4, 2);
    assert!((whole.seconds - node - (6.0 * (1e-6 + 4096.0 / 46e9) + 1e9 / 46e9)).abs() < 1e-9, "{whole:?}");
    // Below the least size and the least group.
    assert_ne!(of(&cut("2e9"), 1e9, 512, 8).algorithm, "rail in-network");
    assert_ne!(of(&m, 1e9, 8, 8).algorithm, "rail in-network");
}

/// Gathers that double what they have each step, as NCCL's for one member a node (2.23 and later).
#[test]
fn a_logarithmic_gather_takes_a_step_for_each_doubling_of_the_nodes() {
    let line = "[[tier.line]]\nname = \"doubling\"\nops = [\"all_gather\", \"reduce_scatter\"]\nlatency = 50e-6\nrate = 8e9\nlog = true\n";
    let text = include_str!("../machine/small.machine.toml");
    let plain = Machine::read(text).unwrap();
    let m = Machine::read(&text.replace("[tier.reduce]", &format!("{line}\n[tier.reduce]"))).unwrap();
    for kind in [CollectiveKind::AllGather, CollectiveKind::ReduceScatter] {
        // Members, and how far apart: nodes of 8, the steps between nodes and inside, and links of a node.
        for (members, stride, between, inside, links) in [
            (2, 8, 1.0, 0.0, 1.0),
            (5, 8, 3.0, 0.0, 1.0),
            (8, 8, 3.0, 0.0, 1.0),
            (16, 4, 3.0, 1.0, 2.0),
            (32, 2, 3.0, 3.0, 4.0),
        ] {
            let found = over(&m, kind, 1e5, &strided(&m, members, stride));
            let factor = (members - 1) as f64 / members as f64;
            let expected = 50e-6 + between * 10e-6 + inside * 1e-6 + factor * 1e5 / (links * 8e9);
            let ring = seconds(&plain, kind, 1e5, members, stride);
            if members > 2 {
                assert_eq!(found.algorithm, "rail doubling", "{kind} of {members}");
                assert!(
                    (found.seconds - expected).abs() < 1e-12,
                    "{kind} of {members}: {found:?} {expected}"
                );
                assert!(found.seconds < ring, "{kind} of {members}: {found:?} {ring}");
            } else {
                // A step either way, and the ring has the better rate.
                assert_eq!((found.algorithm.as_str(), found.seconds), ("rail ring", ring));
            }
        }
        // Many bytes take the better rate.
        assert_eq!(over(&m, kind, 1e9, &strided(&m, 8, 8)).algorithm, "rail ring");
    }
    // An all-reduce has lines of its own.
    let reduced = |m: &Machine| seconds(m, CollectiveKind::AllReduce, 1e5, 8, 8);
    assert_eq!(reduced(&m), reduced(&plain));
}
