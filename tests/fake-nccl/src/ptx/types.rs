//! Types of operands, and the parts of a mnemonic.

/// A type as an instruction names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Type {
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    B8,
    B16,
    B32,
    B64,
    F16,
    F32,
    F64,
    Bf16,
    F16x2,
    Bf16x2,
    Tf32,
    E4m3x2,
    E5m2x2,
    Pred,
}

const NAMES: [(&str, Type); 22] = [
    ("u8", Type::U8),
    ("u16", Type::U16),
    ("u32", Type::U32),
    ("u64", Type::U64),
    ("s8", Type::S8),
    ("s16", Type::S16),
    ("s32", Type::S32),
    ("s64", Type::S64),
    ("b8", Type::B8),
    ("b16", Type::B16),
    ("b32", Type::B32),
    ("b64", Type::B64),
    ("f16", Type::F16),
    ("f32", Type::F32),
    ("f64", Type::F64),
    ("bf16", Type::Bf16),
    ("f16x2", Type::F16x2),
    ("bf16x2", Type::Bf16x2),
    ("tf32", Type::Tf32),
    ("e4m3x2", Type::E4m3x2),
    ("e5m2x2", Type::E5m2x2),
    ("pred", Type::Pred),
];

impl Type {
    /// By its name without the dot.
    pub(super) fn named(name: &str) -> Option<Type> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, ty)| *ty)
    }

    /// Bytes in memory.
    pub(super) fn bytes(self) -> usize {
        match self {
            Type::U8 | Type::S8 | Type::B8 | Type::Pred => 1,
            Type::U16 | Type::S16 | Type::B16 | Type::F16 | Type::Bf16 | Type::E4m3x2 | Type::E5m2x2 => 2,
            Type::U64 | Type::S64 | Type::B64 | Type::F64 => 8,
            _ => 4,
        }
    }

    pub(super) fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    pub(super) fn is_float(self) -> bool {
        matches!(self, Type::F32 | Type::F64) || self.is_half()
    }

    /// Sixteen bits of a floating point number, or two of them.
    pub(super) fn is_half(self) -> bool {
        matches!(self, Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2)
    }
}

/// A mnemonic: what comes before its first dot, and the modifiers that nobody has taken yet. What is left in the end is unknown.
pub(super) struct Mnemonic<'a> {
    pub(super) head: &'a str,
    rest: Vec<&'a str>,
}

impl<'a> Mnemonic<'a> {
    pub(super) fn new(text: &'a str) -> Mnemonic<'a> {
        let mut parts = text.split('.');
        Mnemonic { head: parts.next().unwrap_or_default(), rest: parts.collect() }
    }

    /// Takes a modifier; false where it isn't there.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        let found = self.rest.iter().position(|part| *part == name);
        found.map(|i| self.rest.remove(i)).is_some()
    }

    /// Takes the one of these that is there.
    pub(super) fn one_of<'n>(&mut self, names: &[&'n str]) -> Option<&'n str> {
        names.iter().copied().find(|name| self.flag(name))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.rest.contains(&name)
    }

    /// Takes the first modifier that is one of these.
    pub(super) fn first_of<'n>(&mut self, names: &[&'n str]) -> Option<&'n str> {
        let found = self.rest.iter().position(|part| names.contains(part))?;
        let part = self.rest.remove(found);
        names.iter().copied().find(|name| *name == part)
    }

    /// Takes the modifiers that mean nothing here: caches, scopes and orders where all memory is in order.
    pub(super) fn ignore(&mut self, names: &[&str]) {
        self.rest
            .retain(|part| !names.contains(part) && !part.starts_with("L1::") && !part.starts_with("L2::"));
    }

    /// Takes the type at the end.
    pub(super) fn ty(&mut self) -> Result<Type, String> {
        self.rest.pop().and_then(Type::named).ok_or_else(|| "an instruction without a known type".into())
    }

    /// The type at the end.
    pub(super) fn last(&self) -> Option<Type> {
        self.rest.last().copied().and_then(Type::named)
    }

    /// Takes the first modifier.
    pub(super) fn first(&mut self) -> Result<&'a str, String> {
        if self.rest.is_empty() { Err("a modifier is missing".into()) } else { Ok(self.rest.remove(0)) }
    }

    /// All were taken.
    pub(super) fn finish(&self) -> Result<(), String> {
        match self.rest.first() {
            None => Ok(()),
            Some(part) => Err(format!("unknown modifier .{part}")),
        }
    }
}
