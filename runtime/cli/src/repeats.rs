//! A model of many equal blocks has many equal rows: of neighboring blocks whose rows differ in the path alone, the first is
//! shown and the others are named. Whatever else differs, be it a byte or a line, is shown, but for the number of a bucket: which
//! values of a block are in the same one follows from where buckets are full.

/// The rows of a value: the cells of the first begin with line and path, the last cell of each is a reason.
pub(crate) struct ValueRows {
    pub(crate) path: String,
    pub(crate) rows: Vec<Vec<String>>,
}

/// A line of the table.
#[derive(Debug, PartialEq)]
pub(crate) enum TableLine {
    Row(Vec<String>),
    /// The first and the last of the blocks that are as another, and that one.
    Same {
        first: String,
        last: String,
        of: String,
    },
}

/// The least rows of a block, and the least equal blocks in a row, that are worth it: short tables stay as they are.
const ROWS: usize = 4;
const BLOCKS: usize = 3;
/// What the number of a bucket comes after.
const BUCKET: &str = ", bucket ";

/// The rows with repeated blocks left out.
pub(crate) fn folded(entries: Vec<ValueRows>) -> Vec<TableLine> {
    let mut groups: Vec<(String, Vec<ValueRows>)> = Vec::new();
    for e in entries {
        let block = block(&e.path).to_string();
        match groups.last_mut() {
            Some((last, group)) if *last == block => group.push(e),
            _ => groups.push((block, vec![e])),
        }
    }
    let forms: Vec<_> = groups.iter().map(|(b, group)| form(b, group)).collect();
    let mut out = Vec::new();
    let mut at = 0;
    let mut groups = groups.into_iter();
    while let Some((of, group)) = groups.next() {
        let equal = forms[at..].iter().take_while(|f| **f == forms[at]).count();
        let rows: Vec<Vec<String>> = group.into_iter().flat_map(|e| e.rows).collect();
        let worth = equal >= BLOCKS && rows.len() >= ROWS;
        out.extend(rows.into_iter().map(TableLine::Row));
        at += 1;
        if worth {
            let names: Vec<String> = groups.by_ref().take(equal - 1).map(|g| g.0).collect();
            at += names.len();
            if let (Some(first), Some(last)) = (names.first(), names.last()) {
                out.push(TableLine::Same { first: first.clone(), last: last.clone(), of });
            }
        }
    }
    out
}

/// Where the path that `d(b1.up)` is made of begins, and where its first element ends.
fn ends(path: &str) -> (usize, usize) {
    let start = path.rfind(['(', ' ']).map_or(0, |i| i + 1);
    let end = path[start..].find(['.', ')']).map_or(path.len(), |i| start + i);
    (start, end)
}

/// The first element of a path: `b1` of `d(b1.up)`.
fn block(path: &str) -> &str {
    let (start, end) = ends(path);
    &path[start..end]
}

/// All that is shown of a block, without its name: in the path, and in the reasons where paths begin with it.
fn form(block: &str, group: &[ValueRows]) -> Vec<Vec<String>> {
    let path = |p: &str| {
        let (start, end) = ends(p);
        format!("{}\0{}", &p[..start], &p[end..])
    };
    let mut out = Vec::new();
    for e in group {
        for (i, row) in e.rows.iter().enumerate() {
            let mut row = row.clone();
            if i == 0 {
                row[1] = path(&e.path);
            }
            for cell in &mut row {
                if let Some(number) = cell.rfind(BUCKET) {
                    cell.truncate(number + BUCKET.len());
                }
            }
            if let Some(reason) = row.last_mut() {
                *reason = without(block, reason);
            }
            out.push(row);
        }
    }
    out
}

/// A text with `b1.` gone wherever a path begins with it.
fn without(block: &str, text: &str) -> String {
    let within = |c: char| c.is_alphanumeric() || "_.#".contains(c);
    let whole = format!("{block}.");
    let mut out = String::new();
    let mut rest = text;
    while let Some(i) = rest.find(&whole) {
        let begins = !rest[..i].chars().next_back().or(out.chars().next_back()).is_some_and(within);
        out.push_str(&rest[..i]);
        out.push_str(if begins { "\0." } else { &whole });
        rest = &rest[i + whole.len()..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, bytes: &str, reason: &str) -> ValueRows {
        let cells = ["7", path, bytes, reason].map(String::from).to_vec();
        ValueRows { path: path.into(), rows: vec![cells] }
    }

    fn blocks(bytes: [&str; 4]) -> Vec<ValueRows> {
        let block = |(k, bytes): (usize, &str)| {
            let reason = format!("because `seq` is used whole by b{}.up[seq]", k + 1);
            ["q", "k", "v", "out"].map(|n| entry(&format!("d(b{}.{n})", k + 1), bytes, &reason))
        };
        bytes.into_iter().enumerate().flat_map(block).collect()
    }

    fn shown(entries: Vec<ValueRows>) -> Vec<String> {
        let line = |l| match l {
            TableLine::Row(cells) => cells[1].clone(),
            TableLine::Same { first, last, of } => format!("{first} to {last} as {of}"),
        };
        folded(entries).into_iter().map(line).collect()
    }

    #[test]
    fn equal_blocks_are_said_once() {
        let mut all = blocks(["8"; 4]);
        all.insert(0, entry("x", "8", ""));
        assert_eq!(shown(all), ["x", "d(b1.q)", "d(b1.k)", "d(b1.v)", "d(b1.out)", "b2 to b4 as b1"]);
    }

    #[test]
    fn blocks_of_other_buckets_are_equal() {
        let [a, b] = ["all-gather x, bucket 1", "all-gather x, bucket 2"];
        assert_eq!(shown(blocks([a, a, b, b])).len(), 5);
        assert_eq!(shown(blocks([a, a, "all-gather x", b])).len(), 16);
    }

    #[test]
    fn a_difference_is_shown() {
        // A block of other bytes, a reason that names another block, another order: all rows.
        assert_eq!(shown(blocks(["8", "8", "9", "8"])).len(), 16);
        let mut other = blocks(["8"; 4]);
        other[5].rows[0][3] = "because `seq` is used whole by b1.up[seq]".into();
        assert_eq!(shown(other).len(), 16);
        let mut swapped = blocks(["8"; 4]);
        swapped.swap(4, 5);
        assert_eq!(shown(swapped).len(), 16);
        // A path that only ends like the block's name.
        assert_eq!(without("b1", "ab1.x and a.b1.x and b1.x"), "ab1.x and a.b1.x and \0.x");
    }
}
