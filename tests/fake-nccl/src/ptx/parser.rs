//! Tokens to functions, variables and statements, whose names mean nothing yet.

use super::lexer::{Token, tokens};
use super::types::Type;

/// An operand as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
    /// A register, a special register, a label or a symbol.
    Name(String),
    Integer(u64),
    /// The bits of a number in single precision.
    Single(u32),
    /// The bits of a number in double precision.
    Double(u64),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `[base + offset]`.
    Address(Box<Operand>, i64),
    /// `!p`.
    Not(Box<Operand>),
    /// `p|q`.
    Pair(Box<Operand>, Box<Operand>),
    /// `(a, b)` of a call.
    List(Vec<Operand>),
    /// `_`.
    Sink,
}

/// Where a variable lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Space {
    Global,
    Const,
    Shared,
    Local,
    Param,
    Generic,
}

#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) space: Space,
    pub(super) align: usize,
    pub(super) bytes: usize,
    /// What it starts with; the rest is zero.
    pub(super) start: Vec<u8>,
    /// Declared elsewhere: as large as the launch says.
    pub(super) is_extern: bool,
}

/// `@p` or `@!p`.
pub(super) type Guard = Option<(String, bool)>;

pub(super) enum Statement {
    Label(String),
    /// `.reg`: with a count, names end with numbers below it.
    Registers(Type, String, Option<u32>),
    Variable(Variable),
    /// `.branchtargets`, named by the label before it.
    Targets(Vec<String>),
    Instruction(Written),
}

/// An instruction as it is written.
pub(super) struct Written {
    pub(super) guard: Guard,
    pub(super) mnemonic: String,
    pub(super) operands: Vec<Operand>,
    pub(super) line: u32,
}

pub(super) struct Function {
    pub(super) name: String,
    pub(super) is_entry: bool,
    pub(super) results: Vec<Variable>,
    pub(super) parameters: Vec<Variable>,
    pub(super) body: Vec<Statement>,
    /// The sides of a block that it must be launched with.
    pub(super) required: Option<[u32; 3]>,
}

#[derive(Default)]
pub(super) struct Source {
    pub(super) functions: Vec<Function>,
    pub(super) variables: Vec<Variable>,
}

pub(super) struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

pub(super) type Parsed<T> = Result<T, String>;

/// The whole text.
pub(super) fn parse(text: &str) -> Parsed<Source> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0 };
    let line = |parser: &Parser| parser.tokens.get(parser.at.saturating_sub(1)).map_or(0, |t| t.line);
    parser.source().map_err(|problem| format!("line {}: {problem}", line(&parser)))
}

impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> &'a str {
        self.tokens.get(self.at).map_or("", |t| t.text)
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at).map_or(0, |t| t.line)
    }

    pub(super) fn next(&mut self) -> Parsed<&'a str> {
        let token = self.tokens.get(self.at).ok_or("the text ends early")?;
        self.at += 1;
        Ok(token.text)
    }

    pub(super) fn accept(&mut self, text: &str) -> bool {
        let is_next = self.peek() == text;
        self.at += usize::from(is_next);
        is_next
    }

    pub(super) fn expect(&mut self, text: &str) -> Parsed<()> {
        if self.accept(text) { Ok(()) } else { Err(format!("expected {text}, found {}", self.peek())) }
    }

    fn skip_line(&mut self) {
        let line = self.line();
        while self.at < self.tokens.len() && self.line() == line {
            self.at += 1;
        }
    }

    fn skip_past(&mut self, end: &str) -> Parsed<()> {
        while self.next()? != end {}
        Ok(())
    }

    /// Skips what tells a debugger or an assembler something; false where the next is something else.
    fn skips(&mut self) -> Parsed<bool> {
        match self.peek() {
            ".version" | ".target" | ".address_size" | ".file" | ".loc" => self.skip_line(),
            ".pragma" => self.skip_past(";")?,
            ".section" => self.skip_past("}")?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn source(&mut self) -> Parsed<Source> {
        let (mut source, mut is_extern) = (Source::default(), false);
        while self.at < self.tokens.len() {
            if self.skips()? {
                continue;
            }
            match self.peek() {
                ".visible" | ".weak" | ".common" | ".internal" => self.at += 1,
                ".extern" => {
                    self.at += 1;
                    is_extern = true;
                }
                ".entry" | ".func" => {
                    source.functions.extend(self.function()?);
                    is_extern = false;
                }
                _ => {
                    source.variables.push(Variable { is_extern, ..self.variable()? });
                    self.expect(";")?;
                    is_extern = false;
                }
            }
        }
        Ok(source)
    }

    /// None where it is declared without a body.
    fn function(&mut self) -> Parsed<Option<Function>> {
        let is_entry = self.next()? == ".entry";
        let results = if self.peek() == "(" { self.parameters()? } else { Vec::new() };
        let name = self.next()?.to_string();
        let parameters = if self.peek() == "(" { self.parameters()? } else { Vec::new() };
        let mut required = None;
        while self.peek() != "{" {
            match self.next()? {
                ";" => return Ok(None),
                ".reqntid" => required = Some(self.sides()?),
                ".maxntid" => drop(self.sides()?),
                ".minnctapersm" | ".maxnreg" | ".maxclusterrank" => drop(self.next()?),
                ".noreturn" | ".explicitcluster" => {}
                other => return Err(format!("unknown directive {other}")),
            }
        }
        let body = self.body()?;
        Ok(Some(Function { name, is_entry, results, parameters, body, required }))
    }

    /// Up to three numbers; the others are 1.
    fn sides(&mut self) -> Parsed<[u32; 3]> {
        let mut sides = [1; 3];
        for side in &mut sides {
            *side = self.number()? as u32;
            if !self.accept(",") {
                break;
            }
        }
        Ok(sides)
    }

    /// Statements in braces. Braces within are scopes, in which LLVM uses no name twice at a time.
    fn body(&mut self) -> Parsed<Vec<Statement>> {
        self.expect("{")?;
        let (mut depth, mut all) = (1, Vec::new());
        loop {
            if self.skips()? {
                continue;
            }
            match self.peek() {
                "{" => {
                    self.at += 1;
                    depth += 1;
                }
                "}" => {
                    self.at += 1;
                    depth -= 1;
                    if depth == 0 {
                        return Ok(all);
                    }
                }
                ".reg" => self.registers(&mut all)?,
                _ => all.push(self.statement()?),
            }
        }
    }

    /// `.reg` with one name or several.
    fn registers(&mut self, all: &mut Vec<Statement>) -> Parsed<()> {
        self.expect(".reg")?;
        let ty = self.next()?.strip_prefix('.').and_then(Type::named).ok_or("a register's type")?;
        loop {
            let name = self.next()?.to_string();
            let counted = self.accept("<");
            let count = if counted { Some(self.number()? as u32) } else { None };
            if counted {
                self.expect(">")?;
            }
            all.push(Statement::Registers(ty, name, count));
            if !self.accept(",") {
                return self.expect(";");
            }
        }
    }

    fn statement(&mut self) -> Parsed<Statement> {
        let next = self.tokens.get(self.at + 1).map_or("", |t| t.text);
        if next == ":" {
            let name = self.next()?.to_string();
            self.at += 1;
            return Ok(Statement::Label(name));
        }
        let made = match self.peek() {
            ".branchtargets" => {
                self.at += 1;
                let mut names = vec![self.next()?.to_string()];
                while self.accept(",") {
                    names.push(self.next()?.to_string());
                }
                Statement::Targets(names)
            }
            word if word.starts_with('.') => Statement::Variable(self.variable()?),
            _ => return self.instruction().map(Statement::Instruction),
        };
        self.expect(";")?;
        Ok(made)
    }
}
