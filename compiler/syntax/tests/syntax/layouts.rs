//! What layout files, rules and meshes mean.

use meshwright_diag::{FileId, Sources, render};
use meshwright_syntax::ast::{DimPattern, LayoutFile, LayoutKind, MeshDecl, MeshOption};
use meshwright_syntax::{parse_mesh, parse_mtf_layout};

use crate::support::{layout, layouts};

fn mesh(m: &MeshDecl) -> String {
    m.axes.iter().map(|a| format!("{}={}", a.name.text, a.size)).collect::<Vec<_>>().join(",")
}

fn shown(tree: &LayoutFile) -> Vec<String> {
    let names =
        |n: &[meshwright_syntax::ast::Name]| n.iter().map(|n| n.text.as_str()).collect::<Vec<_>>().join(",");
    let one = |kind: &LayoutKind| match kind {
        LayoutKind::Mesh(m) => format!("mesh {}", mesh(m)),
        LayoutKind::Rule(r) => {
            let kind = r.scope.kind.map_or("", |(k, _)| k.word());
            let path = r.scope.path.as_ref().map_or("", |p| p.text.as_str());
            let dims: Vec<_> = r
                .dims
                .iter()
                .map(|d| match d {
                    DimPattern::Dim(n) => n.text.as_str(),
                    DimPattern::Any(_) => "*",
                })
                .collect();
            let free = if r.when_free.is_some() { " free" } else { "" };
            format!("{kind}|{path}|{}->{}{free}", dims.join(","), names(&r.axes))
        }
        LayoutKind::Gather(n) => format!("gather {}", names(n)),
        LayoutKind::Ring(n) => format!("ring {}", names(n)),
        LayoutKind::Order { dim, axes } => format!("order {} {}", dim.text, names(axes)),
        LayoutKind::Microbatches { count, .. } => format!("microbatches {count}"),
        LayoutKind::Schedule(n) => format!("schedule {}", n.text),
        LayoutKind::Chunks { count, .. } => format!("chunks {count}"),
        LayoutKind::Stages(counts) => {
            let counts: Vec<String> = counts.iter().map(|c| c.0.to_string()).collect();
            format!("stages {}", counts.join(", "))
        }
        LayoutKind::ReduceGrads => "reduce grads in bf16".into(),
        LayoutKind::ReduceWhen(when) => format!("reduce grads {}", when.words()),
        LayoutKind::Recompute(p) => {
            format!("recompute {}", p.iter().map(|p| p.text.as_str()).collect::<Vec<_>>().join(","))
        }
        LayoutKind::KeepParams(p) => {
            format!("keep {}", p.iter().map(|p| p.text.as_str()).collect::<Vec<_>>().join(","))
        }
    };
    tree.items.iter().map(|i| one(&i.kind)).collect()
}

#[test]
fn every_shipped_layout_parses() {
    let all = layouts();
    assert_eq!(all.len(), 8);
    let tree = |name: &str| {
        let (_, text) = all.iter().find(|(n, _)| n == name).unwrap();
        let (tree, errors) = layout(text);
        shown(&tree.unwrap_or_else(|| panic!("{name}: {errors}")))
    };
    assert_eq!(tree("dp.layout"), ["mesh all=4", "||batch->all"]);
    assert_eq!(tree("dp_tp.layout"), ["mesh r=2,c=2", "||batch->r", "||hidden,heads,d_ff,vocab->c"]);
    assert_eq!(tree("spatial.layout"), ["mesh b1=2,b2=2", "||rows->b1", "||cols->b2"]);
    assert_eq!(tree("megatron_sp.layout")[3], "||seq->model free");
    assert_eq!(
        tree("zero.layout")[1..],
        ["||batch->data", "moments||*->data", "grads||*->data", "params||*->data"]
    );
    assert_eq!(tree("pipeline.layout")[3..], ["microbatches 8", "schedule 1f1b", "recompute attention.*"]);
    assert_eq!(tree("context.layout")[3], "gather key");
    assert_eq!(tree("folded.layout")[1..], ["||batch->pod,data", "||heads,d_ff->model"]);
}

#[test]
fn scopes_settings_and_separators() {
    let (tree, errors) = layout(
        "mesh r = 1_0;batch -> r; ;\r\n\r\n params layers.*: *, w -> a , b when  free // c\r\nlayers.a2.*: x -> -\r\n\
         mesh -> r; gather a, b, microbatches 2, recompute a.*, *.b ; schedule -> r\nparams.x: y -> r\n*.w: mesh -> r\n\
         reduce  grads in\tbf16, gather in; reduce -> r\nkeep params\nkeep  params word ,a.*, gather k; keep -> r\nkeep: a -> r\nreduce  grads by\tpart,reduce grads once; reduce  grads  once",
    );
    assert_eq!(
        shown(&tree.unwrap_or_else(|| panic!("{errors}"))),
        [
            "mesh r=10",
            "||batch->r",
            "params|layers.*|*,w->a,b free",
            "|layers.a2.*|x->",
            "||mesh->r",
            "gather a,b",
            "microbatches 2",
            "recompute a.*,*.b",
            "||schedule->r",
            "|params.x|y->r",
            "|*.w|mesh->r",
            "reduce grads in bf16",
            "gather in",
            "||reduce->r",
            "keep ",
            "keep word,a.*",
            "gather k",
            "||keep->r",
            "|keep|a->r",
            "reduce grads by part",
            "reduce grads once",
            "reduce grads once"
        ]
    );
    assert_eq!(layout("").0.unwrap().items.len(), 0);
}

#[test]
fn mistakes_in_layouts() {
    for (text, expected) in [
        ("params:\n* -> a", "l:1:1: error[E0101]: a scope without a rule\n"),
        ("microbatch 8\nbatch -> r", "l:1:1: error[E0101]: there is no keyword `microbatch`\n"),
        ("mesh r = 2 c = 4", "l:1:12: error[E0101]: expected `,` or the end of the line, found `c`\n"),
        ("mesh r = 99999999999999999999", "l:1:10: error[E0105]: this number is too large\n"),
        (
            "reduce grads in f16; reduce params in bf16",
            "l:1:17: error[E0101]: gradients may be reduced in `bf16` alone\n\
             l:1:29: error[E0101]: only gradients may be reduced in another dtype than their own\n",
        ),
        ("reduce grads bf16", "l:1:14: error[E0101]: expected `by`, `in` or `once`, found `bf16`\n"),
        (
            "reduce grads by step; reduce params once",
            "l:1:17: error[E0101]: gradients are reduced `once` or `by part`\n\
             l:1:30: error[E0101]: only gradients may be reduced at another time\n",
        ),
        ("reduce grads in", "l:1:16: error[E0101]: expected `bf16`, found the end of the line\n"),
        ("keep", "l:1:5: error[E0101]: expected `params`, found the end of the line\n"),
        ("keep grads", "l:1:6: error[E0101]: expected `params`, found `grads`\n"),
        ("redcue grads in bf16", "l:1:1: error[E0101]: there is no keyword `redcue`\n"),
        (
            "batch -> ; a -> b\nhidden r",
            "l:1:9: error[E0101]: expected a name or `-`, found `;`\n\
             l:2:8: error[E0101]: expected `,`, `->` or `:`, found `r`\n",
        ),
    ] {
        let (tree, errors) = layout(text);
        assert_eq!((tree, errors.as_str()), (None, expected), "{text}");
    }
    let (_, diagnostics) = meshwright_syntax::parse_layout(FileId(0), "batch: r");
    assert_eq!(diagnostics[0].fixes[0].replacement, "batch -> r");
    // Both fixes together make what is meant.
    let wrong = "reduce params in f16";
    let (_, diagnostics) = meshwright_syntax::parse_layout(FileId(0), wrong);
    let mut mended = wrong.to_string();
    for fix in diagnostics.iter().rev().flat_map(|d| &d.fixes) {
        mended.replace_range(fix.span.start as usize..fix.span.end as usize, &fix.replacement);
    }
    assert_eq!(shown(&layout(&mended).0.unwrap()), ["reduce grads in bf16"]);
}

#[test]
fn mesh_tensorflow_form() {
    let rules = |text: &str| parse_mtf_layout(FileId(0), text).0.map(|t| shown(&t));
    let expected = Some(vec!["||batch->r".to_string(), "||hidden->c".to_string()]);
    for text in ["batch:r;hidden:c", "batch:r,hidden:c", "batch:r hidden:c", " batch : r.;hidden:\nc; "] {
        assert_eq!(rules(text), expected, "{text}");
    }
    for text in ["batch:rows:cols", "batch=rows", "batch:", ":r", "batch", "1b:r", "bätch:r"] {
        assert_eq!(rules(text), None, "{text}");
    }
    let size = |text: &str| {
        let option = parse_mesh(FileId(0), text).0;
        option.map(|option| match option {
            MeshOption::Named(m) => mesh(&m),
            MeshOption::Sizes { sizes, .. } => format!("{:?}", sizes.iter().map(|s| s.0).collect::<Vec<_>>()),
        })
    };
    for text in ["r=2,c=4", "r:2;c:4", "r = 2, c = 4", "r:2 c:4", "r:2.c:4"] {
        assert_eq!(size(text).as_deref(), Some("r=2,c=4"), "{text}");
    }
    assert_eq!(size("r=0").as_deref(), Some("r=0"));
    for (text, sizes) in [("4", "[4]"), ("2x8", "[2, 8]"), (" 2 x 1_0 x 3 ", "[2, 10, 3]"), ("0", "[0]")] {
        assert_eq!(size(text).as_deref(), Some(sizes), "{text}");
    }
    for text in
        ["2x", "x2", "2x2y", "2,2", "-1", "99999999999999999999", "2x\u{a0}2", "\u{3000}2x", "\u{2028}r"]
    {
        assert_eq!(size(text), None, "{text}");
    }
    for text in ["r", "r=-1", "r=x", "r=2.5", "r=99999999999999999999", "=2", "r=2=3"] {
        assert_eq!(size(text), None, "{text}");
    }
    let (_, diagnostics) = parse_mesh(FileId(0), "r=2,c=x,q");
    let mut sources = Sources::new();
    sources.add("--mesh", "r=2,c=x,q");
    assert_eq!(
        render::concise_all(&diagnostics, &sources),
        "--mesh:1:7: error[E0101]: expected the size of the axis, found `x`\n\
         --mesh:1:9: error[E0101]: expected `axis=size`, found `q`\n"
    );
}
