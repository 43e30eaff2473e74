//! Factors that are rounded to 8 bits and stored in another form: see [`meshwright_device::passes::fp8_matmuls`].

use super::{Base, written};
use meshwright_device::compile;
use meshwright_device::decisions::decide::decisions;
use meshwright_device::target::Target;
use meshwright_plan::Arithmetic;

/// A matmul of two rounded factors.
const CODES: Base = Base {
    float: Arithmetic::FP8,
    sizes: "a 16 b 64 c 16 n 64 h 64",
    text: "
        x[b n] = input
        w[n h] = param
        i[] = input
        o[] = map mul($0, 2) (i)
        q:bf16[b n] = map bf16(mul(round_e4m3(mul($0, $1)), $1)) (x, o)
        v:bf16[n h] = map bf16(mul(round_e4m3(mul($0, $1)), $1)) (w, i)
        p[b h] = contract (q, v)
        output p
    ",
    count: |_, decided| decided.fp8.factors.len(),
};

#[test]
fn codes_have_one_number_as_their_scale_which_stays() {
    CODES.check(
        2,
        &[
            (
                "the factor is an output",
                &[("output p", "output q\n output p"), ("i[] = input", "i[] = param"), ("(x, o)", "(x, i)")],
                0,
            ),
            (
                "the scale is half as wide",
                &[
                    ("i[] = input", "i[] = input\n r:bf16[] = input"),
                    (
                        "q:bf16[b n] = map bf16(mul(round_e4m3(mul($0, $1)), $1)) (x, o)",
                        "q[b n] = map mul(round_e4m3(bf16($0)), $1) (x, r)",
                    ),
                ],
                0,
            ),
            (
                "the scale takes part of the dims",
                &[("i[] = input", "i[] = input\n r[b] = input"), ("(x, o)", "(x, r)")],
                0,
            ),
            (
                "another value takes the storage of the scale",
                &[("p[b h] =", "t[] = map mul($0, $0) (o)\n p[b h] ="), ("output p", "output t\n output p")],
                0,
            ),
        ],
    );
}

/// Where no matmul multiplies codes, there is no reason against it either.
#[test]
fn a_cpu_has_no_reason_against_codes() {
    let plan = written(CODES.float, CODES.sizes, CODES.text);
    assert_eq!(decisions(&plan, 0, Target::cpu()).unwrap().fp8.declined.len(), 0);
    assert_eq!(decisions(&plan, 0, Target::cuda((8, 0), true)).unwrap().fp8.declined.len(), 1);
}

/// A value has one transposed matrix.
#[test]
fn matmuls_read_one_transposed_matrix() {
    let base = Base {
        text: "
            x[a b c] = input
            w[a h] = param
            u[c h] = param
            i[] = input
            q:bf16[a b c] = map bf16(mul(round_e4m3(mul($0, $1)), $1)) (x, i)
            v:bf16[a h] = map bf16(mul(round_e4m3(mul($0, $1)), $1)) (w, i)
            y:bf16[c h] = map bf16(mul(round_e4m3(mul($0, $1)), $1)) (u, i)
            p[b c h] = contract (q, v)
            r[a b h] = contract (q, y)
            output p
            output r
        ",
        ..CODES
    };
    let other = [("u[c h]", "u[a b h]"), ("y:bf16[c h]", "y:bf16[a b h]"), ("r[a b h]", "r[c h]")];
    base.check(3, &[("one sums the first dim, the other the first two", &other, 0)]);
}

/// What comes in front of codes, and behind them.
#[test]
fn steps_around_codes() {
    let largest = Base {
        text: "
            x[b n] = input
            w[n h] = param
            i[] = input
            m[b] = max (x)
            y[b n] = map sub($0, $1) (x, m)
            q:bf16[b n] = map mul($0, $1) (y, i)
            v:bf16[n h] = map bf16(mul(round_e4m3(mul($0, $1)), $1)) (w, i)
            p[b h] = contract (q, v)
            output p
        ",
        count: |_, decided| decided.fused.at.values().map(|group| group.steps.len()).max().unwrap_or(0),
        ..CODES
    };
    let rounds = ("map mul($0, $1) (y, i)", "map bf16(mul(round_e4m3(mul($0, $1)), $1)) (y, i)");
    largest.check(3, &[("a group of rows rounds to no codes", &[rounds], 2)]);
}

/// Three factors are live at once, one of them read by rows and by columns.
const LIVE_CODES: &str = "
    x[b n] = param
    w[n h] = param
    y[b h] = param
    i[] = input
    q:bf16[b n] = map bf16(mul(round_e4m3(mul($0, $1)), $1)) (x, i)
    v:bf16[n h] = map bf16(mul(round_e4m3(mul($0, $1)), $1)) (w, i)
    g:bf16[b h] = map bf16(mul(round_e4m3(mul($0, $1)), $1)) (y, i)
    p[b h] = contract (q, v)
    s[] = sum (p)
    d[n h] = contract (q, g)
    t[] = sum (d)
    output s
    output t
";

/// A value ends with its rounding, whose result has the Plan's dtype of the value, and would take its storage.
const ROUNDED_LAST: &str = "
    x:bf16[b n] = input
    w[n h] = param
    i[] = input
    q:bf16[b n] = map bf16(mul(round_e4m3(mul(f32($0), $1)), $1)) (x, i)
    v:bf16[n h] = map bf16(mul(round_e4m3(mul($0, $1)), $1)) (w, i)
    p[b h] = contract (q, v)
    s[] = sum (p)
    output s
";

/// What counts as live is what the arena has for codes: a byte for each form.
#[test]
fn codes_take_a_byte_for_each_form() {
    for (text, sizes, expected) in
        [(LIVE_CODES, "b 512 n 512 h 512", &[2, 1, 1][..]), (ROUNDED_LAST, "b 4096 n 512 h 16", &[1, 1])]
    {
        let plan = written(Arithmetic::FP8, sizes, text);
        let device = compile(&plan, 0, Target::h100()).unwrap_or_else(|e| panic!("{e}"));
        let forms: Vec<u64> = device.stored.values().copied().filter(|each| *each > 0).collect();
        assert_eq!(forms, expected, "{:?}", device.stored);
        let on = plan.fullest();
        let inputs: u64 = plan.program_inputs.iter().map(|i| on.bytes(i.buf)).sum();
        let (live, placed) = (plan.peak_stored(&device.stored), inputs + device.arena.bytes);
        // Besides there are single numbers, and a small factor and product.
        assert!(live.abs_diff(placed) < placed / 16, "{live} bytes are live, {placed} have a place");
        let peak = device.peak_bytes(&plan);
        assert_eq!((peak, device.peak_memory(&plan).peak_bytes), (live.max(peak), peak));
        assert!(peak.abs_diff(placed) < placed / 16, "{peak} bytes at the peak, {placed} have a place");
    }
}
