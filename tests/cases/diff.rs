//! Two texts line by line.

/// The lines of both with `-` where only `old` has one, `+` where only `new` has; long equal stretches are left out.
pub(crate) fn lines(old: &str, new: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    // common[i][j]: longest common subsequence of a[i..] and b[j..].
    let mut common = vec![vec![0u32; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] =
                if a[i] == b[j] { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut out: Vec<(char, &str)> = Vec::new();
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            out.push((' ', a[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || (i < a.len() && common[i + 1][j] >= common[i][j + 1]) {
            out.push(('-', a[i]));
            i += 1;
        } else {
            out.push(('+', b[j]));
            j += 1;
        }
    }
    let near = |k: usize| out[k.saturating_sub(2)..(k + 3).min(out.len())].iter().any(|l| l.0 != ' ');
    let mut text = String::new();
    let mut gap = false;
    for (k, (mark, line)) in out.iter().enumerate() {
        if near(k) {
            text.push_str(&format!("  {mark} {line}\n"));
            gap = false;
        } else if !gap {
            text.push_str("    …\n");
            gap = true;
        }
    }
    text
}
