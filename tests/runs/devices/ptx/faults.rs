//! What a kernel must not do, and texts that are no PTX.

use super::{block, launched};

/// The number of an error, and the line and thread that are told.
fn fails(body: &str, threads: u32) -> (i32, String) {
    launched(&block(threads), ("", body), &[1, 2, 3], 4).unwrap_err()
}

#[test]
fn memory_beyond_its_end_is_not_reached() {
    // Thread 3 reads past three words, and thread 4 writes past four.
    for (body, thread) in [("ld.global.b32 %r2, [%rd4];", 3), ("st.global.b32 [%rd5], %r1;", 4)] {
        let (code, said) = fails(body, 33);
        assert_eq!(code, 700, "{said}");
        assert!(
            said.contains(&format!("thread [{thread}, 0, 0]")) && said.contains("kernel k, line 20"),
            "{said}"
        );
    }
    let (code, said) = fails("st.shared.b32 [s+4096], %r1;", 1);
    assert!(code == 700 && said.contains("shared memory"), "{said}");
    let (code, said) = fails("st.local.b64 [depot+64], %rd1;", 1);
    assert!(code == 700 && said.contains("Local memory"), "{said}");
    let (code, said) = fails("mov.b64 %rd6, 0; ld.b32 %r2, [%rd6];", 1);
    assert!(code == 700 && said.contains("global memory"), "{said}");
    let (code, said) = fails("atom.global.add.u32 %r2, [%rd2+16], 1;", 1);
    assert!(code == 700 && said.contains("global memory"), "{said}");
}

#[test]
fn accesses_are_aligned() {
    for body in ["ld.global.b32 %r2, [%rd1+2];", "st.shared.v4.b32 [s+8], {%r1, %r1, %r1, %r1};"] {
        let (code, said) = fails(body, 1);
        assert!(code == 716 && said.contains("not aligned"), "{said}");
    }
}

#[test]
fn kernels_that_do_not_end_are_ended() {
    let (code, said) = fails("$L0: bra.uni $L0;", 64);
    assert!(code == 702, "{said}");
    let (code, said) = fails("trap;", 1);
    assert!(code == 719 && said.contains("trap"), "{said}");
}

#[test]
fn lanes_that_are_not_members_do_not_take_part() {
    let (code, said) = fails("shfl.sync.idx.b32 %r2, %r1, 0, 31, 1;", 32);
    assert!(code == 719 && said.contains("members") && said.contains("thread [1, 0, 0]"), "{said}");
    let apart = "setp.eq.b32 %p1, %r1, 0; @%p1 bra $L1; bar.warp.sync -1; bra.uni $L2; $L1: shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; $L2:";
    let (code, said) = fails(apart, 32);
    assert!(code == 719 && said.contains("never come"), "{said}");
}

#[test]
fn what_is_not_known_is_refused_with_its_line() {
    for (body, problem) in [
        ("frobnicate.u32 %r2, %r1;", "frobnicate"),
        ("add.wild.f32 %r2, %r1, %r1;", "unknown modifier .wild"),
        ("add.u32 %r2, %r1;", "2 operands where 3 are due"),
        ("add.u32 %r2, %r1, %r100;", "unknown register %r100"),
        ("add.u64 %r2, %rd1, %rd2;", "another size"),
        ("bra $L7;", "unknown label"),
        ("mov.u32 %r2, %nothing;", "unknown register"),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r2}, {%r3}, {%r4}, {%r5};",
            "registers for a matrix",
        ),
    ] {
        let (code, said) = fails(body, 1);
        assert!(code == 218 && said.contains("line 20") && said.contains(problem), "{body}: {said}");
    }
}

#[test]
fn launches_are_as_the_kernel_says() {
    let module = |block: &str| {
        let text = format!(
            ".version 9.0\n.visible .entry k(.param .align 8 .b8 k_param_0[24])\n.reqntid {block}\n{{ ret; }}"
        );
        super::Module::parse(&text).unwrap().kernel("k").unwrap()
    };
    let launch = |arguments: &[u8]| {
        module("32, 2, 1").launch(
            &super::Launch { block: [32, 2, 1], ..block(1) },
            arguments,
            &super::Pieces(vec![]),
        )
    };
    assert!(launch(&[0; 24]).is_ok());
    assert_eq!(launch(&[0; 16]).unwrap_err().code, 1);
    let other = module("32").launch(&block(64), &[0; 24], &super::Pieces(vec![]));
    assert_eq!(other.unwrap_err().code, 1);
}
