//! Products of matrices by warps, against those by their definition.

use super::{block, launched, run};
use half::{bf16, f16};

/// Small whole numbers: all sums are exact.
pub(super) fn matrix(rows: usize, columns: usize, seed: usize) -> Vec<f32> {
    (0..rows * columns).map(|i| ((i * 7 + seed * 13 + i / 5) % 9) as f32 - 4.0).collect()
}

pub(super) fn product((m, n, k): (usize, usize, usize), a: &[f32], b: &[f32], c: &[f32]) -> Vec<f32> {
    let sum = |row: usize, column: usize| (0..k).map(|i| a[row * k + i] * b[i * n + column]).sum::<f32>();
    (0..m * n).map(|at| sum(at / n, at % n) + c[at]).collect()
}

pub(super) fn packed(ty: &str, low: f32, high: f32) -> u32 {
    match ty {
        "bf16" => u32::from(bf16::from_f32(low).to_bits()) | u32::from(bf16::from_f32(high).to_bits()) << 16,
        _ => u32::from(f16::from_f32(low).to_bits()) | u32::from(f16::from_f32(high).to_bits()) << 16,
    }
}

/// The registers of a lane for a and b, by the figures of PTX's description.
fn factors(ty: &str, k: usize, (a, b): (&[f32], &[f32]), lane: usize) -> (Vec<u32>, Vec<u32>) {
    let (group, thread) = (lane / 4, lane % 4);
    let (a, b) =
        (|row: usize, column: usize| a[row * k + column], |row: usize, column: usize| b[row * 8 + column]);
    if ty == "tf32" {
        let first = [a(group, thread), a(group + 8, thread), a(group, thread + 4), a(group + 8, thread + 4)];
        let second = [b(thread, group), b(thread + 4, group)];
        return (first.map(f32::to_bits).to_vec(), second.map(f32::to_bits).to_vec());
    }
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for half in (0..k).step_by(8) {
        let column = half + 2 * thread;
        first.push(packed(ty, a(group, column), a(group, column + 1)));
        first.push(packed(ty, a(group + 8, column), a(group + 8, column + 1)));
        second.push(packed(ty, b(column, group), b(column + 1, group)));
    }
    (first, second)
}

fn list(from: usize, many: usize) -> String {
    (from..from + many).map(|i| format!("%r{i}")).collect::<Vec<_>>().join(", ")
}

#[test]
fn fragments_lie_where_ptx_says() {
    for (ty, k) in [("bf16", 16), ("f16", 16), ("bf16", 8), ("f16", 8), ("tf32", 8)] {
        let (a, b, c) = (matrix(16, k, 1), matrix(k, 8, 2), matrix(16, 8, 3));
        let mut lanes = Vec::new();
        for lane in 0..32 {
            let (first, second) = factors(ty, k, (&a, &b), lane);
            let at = [(0, 0), (0, 1), (8, 0), (8, 1)];
            let third = at.map(|(row, column)| c[(lane / 4 + row) * 8 + lane % 4 * 2 + column].to_bits());
            lanes.push([first, second, third.to_vec()].concat());
        }
        let (of_a, all) = (factors(ty, k, (&a, &b), 0).0.len(), lanes[0].len());
        // Register i of lane l is word 32 i + l.
        let input: Vec<u32> = (0..all).flat_map(|i| lanes.iter().map(move |lane| lane[i])).collect();
        let loads: String =
            (0..all).map(|i| format!("ld.global.b32 %r{}, [%rd4+{}];\n", i + 10, 128 * i)).collect();
        let stores: String =
            (0..4).map(|i| format!("st.global.b32 [%rd5+{}], %r{};\n", 128 * i, i + 40)).collect();
        let body = format!(
            "{loads} mma.sync.aligned.m16n8k{k}.row.col.f32.{ty}.{ty}.f32 {{{}}}, {{{}}}, {{{}}}, {{{}}};\n{stores}",
            list(40, 4),
            list(10, of_a),
            list(10 + of_a, all - 4 - of_a),
            list(10 + all - 4, 4)
        );
        let got = run(&body, &input, 32, 128);
        let want = product((16, 8, k), &a, &b, &c);
        for lane in 0..32 {
            for (i, (row, column)) in [(0, 0), (0, 1), (8, 0), (8, 1)].into_iter().enumerate() {
                let want = want[(lane / 4 + row) * 8 + lane % 4 * 2 + column];
                assert_eq!(f32::from_bits(got[32 * i + lane]), want, "{ty} k{k} lane {lane} {i}");
            }
        }
    }
}

/// 16-bit numbers of a matrix by rows, or by columns.
fn stored(ty: &str, all: &[f32], columns: usize, by_rows: bool) -> Vec<u32> {
    let rows = all.len() / columns;
    let at = |i: usize| if by_rows { all[i] } else { all[i % rows * columns + i / rows] };
    (0..all.len() / 2).map(|i| packed(ty, at(2 * i), at(2 * i + 1))).collect()
}

#[test]
fn open_fragments_hold_all_elements() {
    for (m, n) in [(16, 16), (32, 8), (8, 32)] {
        for (ty, a_layout, b_layout) in [("bf16", "row", "col"), ("f16", "col", "row")] {
            let (a, b, c) = (matrix(m, 16, 1), matrix(16, n, 2), matrix(m, n, 3));
            let first = stored(ty, &a, 16, a_layout == "row");
            let second = stored(ty, &b, n, b_layout == "row");
            let third: Vec<u32> = c.iter().map(|x| x.to_bits()).collect();
            let registers = |side: usize| if ty == "f16" { 8 } else { side / 4 };
            let (of_a, of_b) = (list(10, registers(m)), list(30, registers(n)));
            let a_stride = if a_layout == "row" { 16 } else { m };
            let b_stride = if b_layout == "row" { n } else { 16 };
            let (b_at, c_at) = (4 * first.len(), 4 * (first.len() + second.len()));
            let (shape, of_c, of_d) = (format!("m{m}n{n}k16"), list(50, 8), list(70, 8));
            let types = if ty == "f16" { "f32.f32".into() } else { format!("f32.{ty}.{ty}.f32") };
            let body = format!(
                "mov.b32 %r2, {a_stride}; mov.b32 %r3, {b_stride};
                wmma.load.a.sync.aligned.{a_layout}.{shape}.global.{ty} {{{of_a}}}, [%rd1], %r2;
                wmma.load.b.sync.aligned.{b_layout}.{shape}.global.{ty} {{{of_b}}}, [%rd1+{b_at}], %r3;
                wmma.load.c.sync.aligned.row.{shape}.f32 {{{of_c}}}, [%rd1+{c_at}], {n};
                wmma.mma.sync.aligned.{a_layout}.{b_layout}.{shape}.{types} {{{of_d}}}, {{{of_a}}}, {{{of_b}}}, {{{of_c}}};
                wmma.store.d.sync.aligned.col.{shape}.global.f32 [%rd2], {{{of_d}}}, {m};"
            );
            let got = run(&body, &[first, second, third].concat(), 32, m * n);
            let want = product((m, n, 16), &a, &b, &c);
            for (i, got) in got.iter().enumerate() {
                assert_eq!(f32::from_bits(*got), want[i % m * n + i / m], "{shape} {ty} {i}");
            }
        }
    }
}

#[test]
fn rows_go_to_lanes_and_back() {
    // Four matrices of 8 by 8, one after the other; element i is i.
    let input: Vec<u32> = (0..128).map(|i| (2 * i) | ((2 * i + 1) << 16)).collect();
    let copied = "mul.wide.u32 %rd6, %r1, 16; mov.b64 %rd7, s; add.s64 %rd8, %rd7, %rd6; add.s64 %rd9, %rd1, %rd6;
        ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd9]; st.shared.v4.b32 [%rd8], {%r2, %r3, %r4, %r5}; bar.sync 0;";
    let stores = "st.global.b32 [%rd5], %r10; st.global.b32 [%rd5+128], %r11;
        st.global.b32 [%rd5+256], %r12; st.global.b32 [%rd5+384], %r13;";
    for transposed in [false, true] {
        let mark = if transposed { ".trans" } else { "" };
        let load =
            format!("ldmatrix.sync.aligned.m8n8.x4{mark}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%rd8];");
        let got = run(&format!("{copied} {load} {stores}"), &input, 32, 128);
        for (i, got) in got.iter().enumerate() {
            let (matrix, lane) = (i as u32 / 32, i as u32 % 32);
            let [low, high] = [0, 1].map(|part| {
                let (row, column) = (lane / 4, lane % 4 * 2 + part);
                64 * matrix + if transposed { column * 8 + row } else { row * 8 + column }
            });
            assert_eq!(*got, low | high << 16, "{i}");
        }
        // What was loaded is stored, 512 bytes on.
        let back = format!(
            "{copied} {load} stmatrix.sync.aligned.m8n8.x4{mark}.shared.b16 [%rd8+512], {{%r10, %r11, %r12, %r13}};
            ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%rd8+512]; add.s64 %rd9, %rd2, %rd6;
            st.global.v4.b32 [%rd9], {{%r10, %r11, %r12, %r13}};"
        );
        assert_eq!(run(&back, &input, 32, 128), input);
    }
}

#[test]
fn a_product_needs_the_whole_warp() {
    let body = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%r2, %r3, %r4, %r5}, {%r6, %r7}, {%r8}, {%r2, %r3, %r4, %r5};";
    let (code, said) = launched(&block(16), ("", body), &[], 1).unwrap_err();
    assert!(code == 719 && said.contains("not all lanes"), "{said}");
}

/// What hardware makes of the bits that TF32 lacks is not documented.
#[test]
fn a_product_of_tf32_needs_rounded_factors() {
    let product = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r20, %r21, %r22, %r23}, {%r10, %r11, %r12, %r13}, {%r14, %r15}, {%r16, %r17, %r18, %r19};";
    for (at, bits, fits) in [
        (10, 0x3f80_2000_u32, true),
        (13, 0x3f80_0001, false),
        (15, 0xbf80_1000, false),
        (16, 0x3f80_0001, true),
    ] {
        let zeros: String = (10..20).map(|i| format!("mov.b32 %r{i}, 0; ")).collect();
        let body = format!("{zeros} mov.b32 %r{at}, {bits}; {product}");
        match launched(&block(32), ("", &body), &[], 1) {
            Ok(_) => assert!(fits, "register {at}"),
            Err((code, said)) => assert!(!fits && code == 715 && said.contains("TF32 lacks"), "{said}"),
        }
    }
}
