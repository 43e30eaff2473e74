//! Declarations of variables and parameters, from tokens.

use super::parser::{Operand, Parsed, Parser, Space, Variable};
use super::types::Type;

impl Parser<'_> {
    pub(super) fn parameters(&mut self) -> Parsed<Vec<Variable>> {
        self.expect("(")?;
        let mut all = Vec::new();
        while !self.accept(")") {
            all.push(self.variable()?);
            self.accept(",");
        }
        Ok(all)
    }

    /// A declaration up to what ends it: its space, alignment, type, name, length and start.
    pub(super) fn variable(&mut self) -> Parsed<Variable> {
        let space = match self.next()? {
            ".global" => Space::Global,
            ".const" => Space::Const,
            ".shared" => Space::Shared,
            ".local" => Space::Local,
            ".param" => Space::Param,
            other => return Err(format!("unknown directive {other}")),
        };
        let mut align = None;
        let ty = loop {
            match self.next()? {
                ".align" => align = Some(self.number()? as usize),
                word => match word.strip_prefix('.').and_then(Type::named) {
                    Some(ty) => break ty,
                    None => return Err(format!("unknown attribute {word} of a variable")),
                },
            }
        };
        // What a pointer points at is told after the type.
        while self.peek().starts_with('.') {
            match self.next()? {
                ".align" => drop(self.number()?),
                ".ptr" | ".global" | ".const" | ".shared" | ".local" => {}
                other => return Err(format!("unknown attribute {other} of a variable")),
            }
        }
        let name = self.next()?.to_string();
        let mut bytes = ty.bytes();
        while self.accept("[") {
            bytes *= if self.peek() == "]" { 0 } else { self.number()? as usize };
            self.expect("]")?;
        }
        let start = if self.accept("=") { self.start(ty)? } else { Vec::new() };
        Ok(Variable { name, space, align: align.unwrap_or(ty.bytes()), bytes, start, is_extern: false })
    }

    /// What a variable starts with: a number, or numbers in braces.
    fn start(&mut self, ty: Type) -> Parsed<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut push = |operand: Operand| {
            let bits = match operand {
                Operand::Integer(bits) | Operand::Double(bits) => bits,
                Operand::Single(bits) => bits.into(),
                _ => return Err("a variable that starts with no number"),
            };
            bytes.extend_from_slice(&bits.to_le_bytes()[..ty.bytes()]);
            Ok(())
        };
        if !self.accept("{") {
            push(self.operand()?)?;
            return Ok(bytes);
        }
        while !self.accept("}") {
            push(self.operand()?)?;
            self.accept(",");
        }
        Ok(bytes)
    }
}
