//! Lanes that part and meet, warps that wait for each other, and the memory that they share.

use super::{block, launched, run};

#[test]
fn lanes_that_part_meet_again() {
    // Each lane goes round as often as its number says.
    let body = "mov.b32 %r2, 0; mov.b32 %r3, 0;
        $L0: setp.ge.u32 %p1, %r2, %r1; @%p1 bra $L1;
        add.s32 %r3, %r3, %r2; add.s32 %r2, %r2, 1; bra.uni $L0;
        $L1: activemask.b32 %r4; setp.eq.b32 %p2, %r4, -1; selp.b32 %r5, 1000, 0, %p2;
        add.s32 %r3, %r3, %r5; st.global.b32 [%rd5], %r3;";
    let want: Vec<u32> = (0..32).map(|lane: u32| 1000 + lane * lane.saturating_sub(1) / 2).collect();
    assert_eq!(run(body, &[], 32, 32), want);
    // Both sides of a branch, of which one ends.
    let body = "and.b32 %r2, %r1, 1; setp.eq.b32 %p1, %r2, 0; @!%p1 bra $L1;
        activemask.b32 %r3; st.global.b32 [%rd5], %r3; ret;
        $L1: activemask.b32 %r3; st.global.b32 [%rd5], %r3;";
    let want: Vec<u32> = (0..32).map(|lane| if lane % 2 == 0 { 0x5555_5555 } else { 0xaaaa_aaaa }).collect();
    assert_eq!(run(body, &[], 32, 32), want);
    let table = "rem.u32 %r2, %r1, 3; bra.uni $L9;
        $L0: mov.b32 %r3, 10; bra.uni $L4;
        $L1: mov.b32 %r3, 11; bra.uni $L4;
        $L2: mov.b32 %r3, 12; bra.uni $L4;
        $T: .branchtargets $L0, $L1, $L2;
        $L9: brx.idx %r2, $T;
        $L4: st.global.b32 [%rd5], %r3;";
    assert_eq!(run(table, &[], 32, 32), (0..32).map(|lane| 10 + lane % 3).collect::<Vec<u32>>());
}

#[test]
fn lanes_shuffle_and_vote() {
    let shuffled = |how: &str| run(&format!("shfl.sync.{how}, -1; st.global.b32 [%rd5], %r2;"), &[], 32, 32);
    let want = |f: fn(u32) -> u32| (0..32).map(f).collect::<Vec<u32>>();
    assert_eq!(shuffled("bfly.b32 %r2, %r1, 5, 31"), want(|l| l ^ 5));
    assert_eq!(shuffled("idx.b32 %r2, %r1, 7, 31"), want(|_| 7));
    assert_eq!(shuffled("up.b32 %r2, %r1, 3, 0"), want(|l| if l < 3 { l } else { l - 3 }));
    assert_eq!(shuffled("down.b32 %r2, %r1, 3, 31"), want(|l| if l > 28 { l } else { l + 3 }));
    // Segments of eight lanes.
    assert_eq!(shuffled("idx.b32 %r2, %r1, 2, 0x181f"), want(|l| l / 8 * 8 + 2));
    assert_eq!(shuffled("down.b32 %r2, %r1, 1, 0x181f"), want(|l| if l % 8 == 7 { l } else { l + 1 }));
    let inside =
        "shfl.sync.up.b32 %r2|%p1, %r1, 1, 0, -1; selp.b32 %r3, 1, 0, %p1; st.global.b32 [%rd5], %r3;";
    assert_eq!(run(inside, &[], 32, 32), want(|l| u32::from(l > 0)));
    let votes = "setp.lt.u32 %p1, %r1, 4; vote.sync.ballot.b32 %r2, %p1, -1; vote.sync.any.pred %p2, %p1, -1;
        vote.sync.all.pred %p3, %p1, -1; selp.b32 %r3, 256, 0, %p2; @%p3 add.s32 %r3, %r3, 512;
        redux.sync.add.s32 %r4, %r1, -1; shl.b32 %r4, %r4, 16;
        or.b32 %r2, %r2, %r3; or.b32 %r2, %r2, %r4; st.global.b32 [%rd5], %r2;";
    assert_eq!(run(votes, &[], 32, 32), [(496 << 16) + 256 + 15; 32]);
}

/// The first of 96 threads reads what the last one wrote.
const REVERSED: &str = "mov.b64 %rd6, s; add.s64 %rd7, %rd6, %rd3; st.shared.b32 [%rd7], %r1; bar.sync 0;
    sub.s32 %r2, 95, %r1; mul.wide.u32 %rd8, %r2, 4; add.s64 %rd9, %rd6, %rd8; ld.shared.b32 %r3, [%rd9];
    st.global.b32 [%rd5], %r3;";

#[test]
fn warps_wait_at_barriers() {
    let mut how = block(96);
    let want: Vec<u32> = (0..96).rev().collect();
    for watches in [false, true] {
        how.watches = watches;
        assert_eq!(launched(&how, ("", REVERSED), &[], 96).unwrap(), want);
    }
    let racy = REVERSED.replace("bar.sync 0;", "");
    let (code, said) = launched(&how, ("", &racy), &[], 96).unwrap_err();
    assert!(code == 719 && said.contains("nobody wrote it"), "{said}");
    let rewritten = format!("{REVERSED} st.shared.b32 [%rd7], %r1;");
    let (code, said) = launched(&how, ("", &rewritten), &[], 96).unwrap_err();
    assert!(code == 719 && said.contains("no barrier between"), "{said}");
    // Some warps may end, but lanes of a warp must not wait for others that never come.
    let ended = format!("setp.ge.u32 %p1, %r1, 32; @%p1 ret; {}", REVERSED.replace("95", "31"));
    assert_eq!(launched(&block(96), ("", &ended), &[], 32).unwrap(), want[64..]);
    let parted = "setp.ge.u32 %p1, %r1, 16; @%p1 bra $L1; bar.sync 0; bra.uni $L2; $L1: bar.sync 0; $L2:";
    let (code, said) = launched(&block(32), ("", parted), &[], 1).unwrap_err();
    assert!(code == 719 && said.contains("never come"), "{said}");
    let numbers = "setp.ge.u32 %p1, %r1, 32; @%p1 bra $L1; bar.sync 0; bra.uni $L2; $L1: bar.sync 1; $L2:";
    let (code, said) = launched(&block(64), ("", numbers), &[], 1).unwrap_err();
    assert!(code == 719 && said.contains("different numbers"), "{said}");
}

#[test]
fn memory_of_all_spaces_is_reached() {
    let spaces =
        "mov.b64 %rd6, depot; cvta.local.u64 %rd7, %rd6; st.b32 [%rd7+4], %r1; ld.local.b32 %r2, [%rd6+4];
        mov.b64 %rd8, s; cvta.shared.u64 %rd9, %rd8; add.s64 %rd9, %rd9, %rd3; st.b32 [%rd9], %r2;
        cvta.to.shared.u64 %rd10, %rd9; ld.shared.b32 %r3, [%rd10];
        ld.global.nc.b32 %r4, [numbers+4]; add.s32 %r3, %r3, %r4; st.b32 [%rd5], %r3;";
    let numbers = ".global .align 4 .b32 numbers[3] = {5, 100, -1};";
    let got = launched(&block(40), (numbers, spaces), &[], 40).unwrap();
    assert_eq!(got, (100..140).collect::<Vec<u32>>());
    let vectors = "mul.wide.u32 %rd6, %r1, 16; add.s64 %rd7, %rd1, %rd6; add.s64 %rd8, %rd2, %rd6;
        ld.global.v4.b32 {%r2, %r3, %r4, _}, [%rd7]; st.global.v2.b32 [%rd8+8], {%r2, %r3};
        st.global.v2.b32 [%rd8], {%r4, %r4}; mov.b64 %rd9, {%r2, %r3}; mov.b64 {%r5, %r6}, %rd9;
        mov.b32 {%rs1, %rs2}, %r6; ld.global.s8 %r7, [%rd7]; ld.global.b8 %rs3, [%rd7];
        st.global.b8 [%rd8+1], %rs3; @%p1 mov.b32 %r7, 0; st.global.b32 [%rd8+4], %r7;";
    assert_eq!(run(vectors, &[0xff, 2, 3, 4], 1, 4), [0xff03, u32::MAX, 0xff, 2]);
    let sums = "red.global.add.u32 [%rd2], %r1; atom.global.add.u32 %r2, [%rd2+4], 1;
        cvt.rn.f32.u32 %r3, %r1; atom.relaxed.gpu.global.add.f32 %r4, [%rd2+8], %r3;
        atom.global.max.s32 %r4, [%rd2+12], %r1; atom.global.cas.b32 %r5, [%rd2+16], %r1, 77;";
    assert_eq!(run(sums, &[], 64, 5), [2016, 64, 2016f32.to_bits(), 63, 77]);
}

#[test]
fn functions_are_called() {
    let before = ".func (.param .b32 func_retval0) twice(.param .b32 twice_param_0) {
            .reg .b32 %r<3>; ld.param.b32 %r1, [twice_param_0]; setp.ge.u32 %p0, %r1, 16;
            add.s32 %r2, %r1, %r1; @%p0 add.s32 %r2, %r2, 1000;
            st.param.b32 [func_retval0], %r2; ret; }"
        .replace(".reg .b32 %r<3>;", ".reg .b32 %r<3>; .reg .pred %p<1>;");
    let body = "setp.eq.b32 %p1, %r1, 3; @%p1 bra $L1;
        { .param .b32 param0; .param .b32 retval0; st.param.b32 [param0], %r1;
        call.uni (retval0), twice, (param0); ld.param.b32 %r2, [retval0]; }
        st.global.b32 [%rd5], %r2; $L1:";
    let got = launched(&block(32), (&before, body), &[], 32).unwrap();
    let want = |lane: u32| if lane == 3 { 0 } else { 2 * lane + if lane < 16 { 0 } else { 1000 } };
    assert_eq!(got, (0..32).map(want).collect::<Vec<u32>>());
}

#[test]
fn blocks_of_a_grid_know_where_they_are() {
    let mut how = block(1);
    (how.grid, how.block) = ([2, 3, 2], [4, 2, 1]);
    let body = "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y; mov.u32 %r4, %ctaid.z; mov.u32 %r5, %nctaid.x;
        mov.u32 %r6, %nctaid.y; mov.u32 %r7, %tid.y; mov.u32 %r8, %ntid.x; mov.u32 %r9, %ntid.y;
        mad.lo.s32 %r10, %r4, %r6, %r3; mad.lo.s32 %r10, %r10, %r5, %r2; mad.lo.s32 %r10, %r10, %r9, %r7;
        mad.lo.s32 %r10, %r10, %r8, %r1; mul.wide.u32 %rd6, %r10, 4; add.s64 %rd7, %rd2, %rd6;
        st.global.b32 [%rd7], %r10;";
    assert_eq!(launched(&how, ("", body), &[], 96).unwrap(), (0..96).collect::<Vec<u32>>());
}
