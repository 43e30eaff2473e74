//! Instructions and their operands, from tokens.

use super::parser::{Operand, Parsed, Parser, Written};

impl Parser<'_> {
    pub(super) fn instruction(&mut self) -> Parsed<Written> {
        let line = self.line();
        let guard = if self.accept("@") {
            let negated = self.accept("!");
            Some((self.next()?.to_string(), negated))
        } else {
            None
        };
        let mnemonic = self.next()?.to_string();
        if !mnemonic.starts_with(|c: char| c.is_ascii_lowercase()) {
            return Err(format!("expected an instruction, found {mnemonic}"));
        }
        let mut operands = Vec::new();
        while !self.accept(";") {
            operands.push(self.operand()?);
            if !self.accept(",") {
                self.expect(";")?;
                break;
            }
        }
        Ok(Written { guard, mnemonic, operands, line })
    }

    pub(super) fn operand(&mut self) -> Parsed<Operand> {
        match self.peek() {
            "{" => Ok(Operand::Vector(self.listed("{", "}")?)),
            "(" => Ok(Operand::List(self.listed("(", ")")?)),
            "[" => self.address(),
            "!" => {
                self.expect("!")?;
                Ok(Operand::Not(Box::new(self.operand()?)))
            }
            "_" => {
                self.expect("_")?;
                Ok(Operand::Sink)
            }
            text if text == "-" || text.starts_with(|c: char| c.is_ascii_digit()) => self.constant(),
            _ => {
                let name = Operand::Name(self.next()?.to_string());
                if !self.accept("|") {
                    return Ok(name);
                }
                Ok(Operand::Pair(Box::new(name), Box::new(self.operand()?)))
            }
        }
    }

    fn listed(&mut self, open: &str, close: &str) -> Parsed<Vec<Operand>> {
        self.expect(open)?;
        let mut all = Vec::new();
        while !self.accept(close) {
            all.push(self.operand()?);
            self.accept(",");
        }
        Ok(all)
    }

    fn address(&mut self) -> Parsed<Operand> {
        self.expect("[")?;
        let base = self.operand()?;
        let mut offset = 0;
        if self.accept("+") || self.peek() == "-" {
            offset = self.number()?;
        }
        self.expect("]")?;
        Ok(Operand::Address(Box::new(base), offset))
    }

    fn constant(&mut self) -> Parsed<Operand> {
        let text = self.peek();
        for (mark, digits) in [("0f", 8), ("0F", 8), ("0d", 16), ("0D", 16)] {
            if let Some(bits) = text.strip_prefix(mark).filter(|bits| bits.len() == digits) {
                let bits = u64::from_str_radix(bits, 16).map_err(|_| format!("the number {text}"))?;
                self.expect(text)?;
                return Ok(if digits == 8 { Operand::Single(bits as u32) } else { Operand::Double(bits) });
            }
        }
        Ok(Operand::Integer(self.number()? as u64))
    }

    pub(super) fn number(&mut self) -> Parsed<i64> {
        let negative = self.accept("-");
        let text = self.next()?;
        let digits = text.trim_end_matches('U');
        let parsed = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16),
            None => digits.parse(),
        };
        let number = parsed.map_err(|_| format!("expected a number, found {text}"))? as i64;
        Ok(if negative { number.wrapping_neg() } else { number })
    }
}
