//! `one_hot[d](index)`: 1 at the position that an index names, else 0.

use crate::family::index_of;
use crate::{Family, Form, OpError, Sample};
use meshwright_diag::codes;
use meshwright_plan::DType;

/// How it is written. It is a comparison with the position along the dim, so it can be made anywhere.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "one_hot",
    form: Form::OverDims(1),
    doc: "`one_hot[d](i)`: 1 along `d` at the position `i`, an `i32 in d`, else 0; of the program's arithmetic type.",
    build: |g, c| {
        let (i, dim) = (c.tensor(g, 0), c.one_dim(g)?);
        let t = g.ty(i).clone();
        let name = g.dims.name(dim).to_string();
        if t.dtype != DType::I32 || t.range != Some(dim) || t.has(dim) {
            return Err(OpError::new(codes::E0205, format!("`one_hot[{name}]` takes an `i32 in {name}` without that dim, not {}", t.dtype))
                .operand(0)
                .help(format!("declare it `i32 in {name}`")));
        }
        let here = g.index(dim);
        let hit = g.binary("==", i, here);
        Ok(g.cast(hit, c.float))
    },
    samples: || vec![Sample::call("one_hot", "one_hot", &["v"], vec![index_of(&[("a", 5)], ("v", 7))]).flat()],
}];
