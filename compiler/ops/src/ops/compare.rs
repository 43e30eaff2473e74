//! Comparisons: they take two numbers of one dtype and give a truth value.

use super::binary::{build, flat};
use crate::family::{float, integer};
use crate::{BinaryDef, Family, Sample, Signature};
use meshwright_plan::DType;
use meshwright_plan::expr::BinaryFn;

fn any(t: DType) -> bool {
    !t.is_pair()
}

macro_rules! comparisons {
    ($($id:ident $symbol:literal $function:ident $doc:literal $oracle:expr;)*) => {
        $(
            #[doc = $doc]
            pub static $id: BinaryDef = BinaryDef {
                name: $symbol,
                function: BinaryFn::$function,
                takes: any,
                takes_text: "numbers",
                linear: &[],
                derivatives: flat,
                oracle: |a, b| f64::from(u8::from(($oracle)(&a, &b))),
            };
        )*
        /// How they are written.
        pub(crate) static FAMILY: &[Family] = &[$(Family {
            name: $symbol,
            signature: Signature::INFIX,
            doc: $doc,
            build: |g, c| build(&$id, g, c),
            samples: || vec![
                Sample::call("floats", $symbol, &[], vec![float(&[("a", 4), ("b", 3)]), float(&[("b", 3)])]).flat(),
                Sample::call("integers", $symbol, &[], vec![
                    integer(&[("a", 5)], 0.0, 3.0), integer(&[("a", 5), ("b", 2)], 0.0, 3.0),
                ]).flat(),
            ],
        }),*];
    };
}

comparisons! {
    LT "<" Lt "Whether the first is less." f64::lt;
    LE "<=" Le "Whether the first is less or equal." f64::le;
    GT ">" Gt "Whether the first is greater." f64::gt;
    GE ">=" Ge "Whether the first is greater or equal." f64::ge;
    EQ "==" Eq "Whether both are equal." f64::eq;
    NE "!=" Ne "Whether they differ." f64::ne;
}
