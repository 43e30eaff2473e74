//! Copies that go on while a warp runs on, and products by four warps together: what they give, and what must come before.

use super::matrices::{matrix, packed, product};
use super::{Launch, block, launched};

/// A product of 64 x 16 and 16 x 8 halves, copied to shared memory in rows of 32 bytes whose two vectors change places each four
/// rows.
const BODY: &str = "
    shr.u32 %r2, %r1, 1;
    and.b32 %r3, %r1, 1;
    shr.u32 %r4, %r1, 3;
    and.b32 %r4, %r4, 1;
    xor.b32 %r4, %r3, %r4;
    shl.b32 %r5, %r2, 5;
    shl.b32 %r4, %r4, 4;
    add.s32 %r5, %r5, %r4;
    mov.b64 %rd6, s;
    cvt.u32.u64 %r6, %rd6;
    add.s32 %r7, %r6, %r5;
    mul.wide.u32 %rd7, %r1, 16;
    add.s64 %rd8, %rd1, %rd7;
    add.s64 %rd9, %rd2, %rd7;
    cp.async.cg.shared.global [%r7], [%rd8], 16, 16;
    setp.lt.u32 %p1, %r1, 16;
    @%p1 cp.async.cg.shared.global [%r7+2048], [%rd8+2048], 16, %r8;
    cp.async.wait_all;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    shr.u64 %rd6, %rd6, 4;
    add.s64 %rd10, %rd6, -4611685949707911168;
    add.s64 %rd11, %rd10, 128;
    setp.ne.b32 %p2, 0, 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r10, %r11, %r12, %r13}, %rd10, %rd11, %p2, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    st.global.v4.b32 [%rd9], {%r10, %r11, %r12, %r13};";

/// The factors, and the rows of the second are its columns.
fn factors() -> (Vec<f32>, Vec<f32>, Vec<u32>) {
    let (a, b) = (matrix(64, 16, 1), matrix(8, 16, 2));
    let words = [&a, &b].into_iter().flat_map(|m| m.chunks(2)).map(|two| packed("bf16", two[0], two[1]));
    let words = words.collect();
    (a, b, words)
}

fn watched() -> Launch {
    Launch { watches: true, ..block(128) }
}

/// What is written where the last copy has `bytes` bytes, by row and column.
fn made(body: &str, bytes: u32) -> Result<Vec<f32>, (i32, String)> {
    let (_, _, words) = factors();
    let body = format!("mov.b32 %r8, {bytes}; {body}");
    let out = launched(&watched(), ("", &body), &words, 512)?;
    let mut all = vec![0.0; 512];
    for (i, bits) in out.iter().enumerate() {
        let (thread, register) = (i / 4, i % 4);
        let row = thread / 32 * 16 + thread % 32 / 4 + register / 2 * 8;
        all[row * 8 + thread % 4 * 2 + register % 2] = f32::from_bits(*bits);
    }
    Ok(all)
}

#[test]
fn four_warps_multiply_what_was_copied() {
    let (a, b, _) = factors();
    let by_rows: Vec<f32> = (0..16 * 8).map(|i| b[i % 8 * 16 + i / 8]).collect();
    assert_eq!(made(BODY, 16).unwrap(), product((64, 8, 16), &a, &by_rows, &[0.0; 512]));
    // Zeros where nothing is read.
    assert_eq!(made(BODY, 0).unwrap(), vec![0.0; 512]);
}

#[test]
fn what_was_not_waited_for_is_no_number() {
    for waits in ["cp.async.wait_all;", "wgmma.wait_group.sync.aligned 0;"] {
        let all = made(&BODY.replace(waits, ""), 16).unwrap();
        assert!(all.iter().all(|x| x.is_nan()), "without {waits}");
    }
}

#[test]
fn fences_are_needed() {
    let without = |what: &str| made(&BODY.replace(what, ""), 16).unwrap_err();
    for (what, said) in [
        ("fence.proxy.async.shared::cta;", "not made visible to products"),
        ("wgmma.fence.sync.aligned;", "not fenced"),
        ("bar.sync 0;", "no barrier between"),
    ] {
        let (code, text) = without(what);
        assert!(code == 719 && text.contains(said), "without {what}: {text}");
    }
    // A tile that is written again before the product has ended.
    let again = "wgmma.commit_group.sync.aligned; bar.sync 0; st.shared.b32 [%r7], %r1; bar.sync 0;";
    let (code, text) = made(&BODY.replace("wgmma.commit_group.sync.aligned;", again), 16).unwrap_err();
    assert!(code == 719 && text.contains("while a product read it"), "{text}");
}
