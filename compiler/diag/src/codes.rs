//! The list of codes. Each has a page in `codes/`, which `meshwright explain CODE` prints.
//!
//! E01xx syntax, E02xx names, types and dims, E03xx layout, E04xx partition and memory, E05xx running.
//! To add one, write `codes/EXXXX.md` (first line `# title`) and add a line here.

/// A code with its page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code {
    /// Such as `E0310`.
    pub id: &'static str,
    /// The page, in Markdown; its first line is `# title`.
    pub page: &'static str,
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.id)
    }
}

impl Code {
    /// The title of its page.
    pub fn title(&self) -> &'static str {
        self.page.lines().next().unwrap_or("").trim_start_matches('#').trim()
    }
}

macro_rules! codes {
    ($($id:ident)*) => {
        $(
            #[doc = concat!("See `codes/", stringify!($id), ".md`.")]
            pub const $id: Code = Code {
                id: stringify!($id),
                page: include_str!(concat!("../codes/", stringify!($id), ".md")),
            };
        )*
        /// Every code, in order.
        pub const ALL: &[Code] = &[$($id),*];
    };
}

codes! {
    E0101
    E0102
    E0103
    E0104
    E0105
    E0106
    E0107
    E0108
    E0190
    E0201
    E0202
    E0203
    E0204
    E0205
    E0206
    E0210
    E0211
    E0212
    E0213
    E0214
    E0215
    E0216
    E0217
    E0218
    E0219
    E0220
    E0221
    E0225
    E0301
    E0302
    E0303
    E0304
    E0305
    E0306
    E0307
    E0308
    E0309
    E0310
    E0311
    E0312
    E0313
    E0314
    E0315
    E0316
    E0317
    E0318
    E0319
    E0401
    E0501
    E0502
    E0503
    E0504
    E0505
    E0506
    E0507
    E0508
    E0510
    E0511
    E0512
    E0513
    E0514
    E0515
    E0516
    E0517
    E0518
    E0520
    E0521
    E0522
    E0523
    E0524
    E0525
    E0526
    E0527
    E0529
    E0530
    E0531
}

/// The code of that name, in any case.
pub fn find(id: &str) -> Option<Code> {
    ALL.iter().copied().find(|c| c.id.eq_ignore_ascii_case(id))
}
