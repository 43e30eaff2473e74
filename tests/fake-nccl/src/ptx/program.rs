//! Functions to code: each instruction decoded once, its names gone.

use super::decode::plain;
use super::machine::Step;
use super::parser::{Function, Operand, Source, Space, Statement, Variable, Written};
use super::scope::{Place, Scope};
use super::types::Mnemonic;
use super::warps::{Plain, Together};
use std::collections::HashMap;

/// What an instruction does.
pub(super) enum Action {
    Step(Step),
    Together(Together),
    Nothing,
    /// To an instruction.
    Branch(usize),
    /// To one of these, by a register.
    Switch(usize, Vec<usize>),
    /// Out of a function, or of the kernel.
    Return,
    /// Waits for the block; the register has the barrier's number.
    Barrier(usize),
    /// A function, what it gets and what is taken from it.
    Call(usize, Vec<Copied>, Vec<Copied>),
    Trap,
}

/// Bytes of a lane's local memory that go from one place to another.
#[derive(Clone, Copy)]
pub(super) struct Copied {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) bytes: usize,
}

pub(super) struct Instruction {
    /// Does nothing to lanes where the predicate is false; or true, with the mark.
    pub(super) guard: Option<(usize, bool)>,
    pub(super) action: Action,
    pub(super) line: u32,
}

/// A function with places for what it gets and gives.
pub(super) struct Code {
    pub(super) name: String,
    pub(super) instructions: Vec<Instruction>,
    results: Vec<(usize, usize)>,
    parameters: Vec<(usize, usize)>,
}

/// Makes the code of a kernel and of all that it calls.
pub(super) struct Builder<'s> {
    source: &'s Source,
    pub(super) scope: Scope,
    /// Variables outside of functions.
    outside: HashMap<String, Place>,
    /// Those that were made; one that is being made has no code yet.
    pub(super) functions: Vec<Option<Code>>,
    numbers: HashMap<String, usize>,
    /// Of a lane.
    pub(super) local_bytes: usize,
    pub(super) shared_bytes: usize,
}

/// Where labels lead, and the targets of tables.
type Names<'n> = (&'n HashMap<&'n str, usize>, &'n HashMap<&'n str, &'n [String]>);

/// The next place for something aligned.
pub(super) fn aligned(at: usize, to: usize) -> usize {
    at.next_multiple_of(to.max(1))
}

impl<'s> Builder<'s> {
    /// `data` are the places of global variables.
    pub(super) fn new(source: &'s Source, data: &HashMap<String, Place>) -> Builder<'s> {
        let mut outside = data.clone();
        let mut end = 0;
        let within = source.functions.iter().flat_map(|f| &f.body).filter_map(|s| match s {
            Statement::Variable(variable) => Some(variable),
            _ => None,
        });
        let all: Vec<&Variable> =
            source.variables.iter().chain(within).filter(|v| v.space == Space::Shared).collect();
        // What the launch sizes lies behind all else.
        for is_extern in [false, true] {
            for variable in all.iter().filter(|v| v.is_extern == is_extern) {
                let at = aligned(end, variable.align);
                let place = Place { space: Space::Shared, address: at as u64 };
                outside.insert(variable.name.clone(), place);
                end = at + variable.bytes;
            }
        }
        Builder {
            source,
            scope: Scope::default(),
            outside,
            functions: Vec::new(),
            numbers: HashMap::new(),
            local_bytes: 0,
            shared_bytes: end,
        }
    }

    fn local(&mut self, variable: &Variable) -> (usize, usize) {
        let at = aligned(self.local_bytes, variable.align);
        self.local_bytes = at + variable.bytes;
        (at, variable.bytes)
    }

    /// The number of a function's code, which is made unless it was.
    pub(super) fn function(&mut self, function: &'s Function) -> Result<usize, String> {
        if let Some(known) = self.numbers.get(&function.name) {
            return if self.functions[*known].is_some() {
                Ok(*known)
            } else {
                Err("a function calls itself".into())
            };
        }
        let number = self.functions.len();
        self.numbers.insert(function.name.clone(), number);
        self.functions.push(None);
        // What it calls comes first: names are those of one function at a time.
        for statement in &function.body {
            if let Statement::Instruction(written) = statement
                && written.mnemonic.starts_with("call")
            {
                let called = self.called(written)?;
                self.function(called).map_err(|e| format!("line {}: {e}", written.line))?;
            }
        }
        let code = self.code(function)?;
        self.functions[number] = Some(code);
        Ok(number)
    }

    fn called(&self, written: &Written) -> Result<&'s Function, String> {
        let name = written.operands.iter().find_map(|o| match o {
            Operand::Name(name) => Some(name),
            _ => None,
        });
        let found = self.source.functions.iter().find(|f| name == Some(&f.name) && !f.is_entry);
        found.ok_or_else(|| format!("line {}: a call of an unknown function", written.line))
    }

    fn code(&mut self, function: &'s Function) -> Result<Code, String> {
        let outside = std::mem::take(&mut self.outside);
        self.scope.begin(&outside);
        self.outside = outside;
        let mut code = Code {
            name: function.name.clone(),
            instructions: Vec::new(),
            results: Vec::new(),
            parameters: Vec::new(),
        };
        if function.is_entry {
            let mut at = 0;
            for parameter in &function.parameters {
                at = aligned(at, parameter.align);
                let place = Place { space: Space::Param, address: at as u64 };
                self.scope.places.insert(parameter.name.clone(), place);
                at += parameter.bytes;
            }
        } else {
            code.results = function.results.iter().map(|v| self.own(v)).collect();
            code.parameters = function.parameters.iter().map(|v| self.own(v)).collect();
        }
        let labels = labels(function);
        let mut tables = HashMap::new();
        let mut last = "";
        for statement in &function.body {
            match statement {
                Statement::Label(name) => last = name,
                Statement::Registers(ty, name, many) => self.scope.declare(*ty, name, *many),
                Statement::Variable(v) if v.space == Space::Shared => {}
                Statement::Variable(variable) => drop(self.own(variable)),
                Statement::Targets(names) => drop(tables.insert(last, names.as_slice())),
                Statement::Instruction(_) => {}
            }
            if let Statement::Instruction(written) = statement {
                let made = self.instruction(written, (&labels, &tables), function.is_entry);
                let wrong = |e| format!("line {}: {}: {e}", written.line, written.mnemonic);
                code.instructions.push(made.map_err(wrong)?);
            }
        }
        Ok(code)
    }

    /// A variable of a function, in local memory: parameters of calls are there too.
    fn own(&mut self, variable: &Variable) -> (usize, usize) {
        let (at, bytes) = self.local(variable);
        let place = Place { space: Space::Local, address: at as u64 };
        self.scope.places.insert(variable.name.clone(), place);
        (at, bytes)
    }

    fn instruction(
        &mut self,
        written: &Written,
        names: Names<'_>,
        is_entry: bool,
    ) -> Result<Instruction, String> {
        let guard = match &written.guard {
            Some((name, negated)) => Some((self.scope.predicate(&Operand::Name(name.clone()))?, *negated)),
            None => None,
        };
        let action = self.action(written, names, is_entry)?;
        Ok(Instruction { guard, action, line: written.line })
    }

    fn action(
        &mut self,
        written: &Written,
        (labels, tables): Names<'_>,
        is_entry: bool,
    ) -> Result<Action, String> {
        let label = |name: &str| labels.get(name).copied().ok_or_else(|| format!("unknown label {name}"));
        let mut mnemonic = Mnemonic::new(&written.mnemonic);
        mnemonic.ignore(&["uni"]);
        let action = match (mnemonic.head, written.operands.as_slice()) {
            ("bra", [Operand::Name(to)]) => Action::Branch(label(to)?),
            ("brx", [index, Operand::Name(table)]) if mnemonic.flag("idx") => {
                let names = tables.get(table.as_str()).ok_or("unknown targets")?;
                let to = names.iter().map(|name| label(name)).collect::<Result<_, _>>()?;
                Action::Switch(self.scope.read::<u32>(index)?, to)
            }
            ("ret", []) => Action::Return,
            ("exit", []) if is_entry => Action::Return,
            ("trap", []) => Action::Trap,
            ("call", operands) => self.call(written, operands)?,
            ("bar" | "barrier", [id]) if mnemonic.has("sync") && !mnemonic.has("warp") => {
                mnemonic.ignore(&["sync", "cta", "aligned"]);
                Action::Barrier(self.scope.read::<u32>(id)?)
            }
            _ => {
                return plain(written, &mut self.scope).map(|made| match made {
                    Plain::Step(step) => Action::Step(step),
                    Plain::Together(together) => Action::Together(together),
                    Plain::Nothing => Action::Nothing,
                });
            }
        };
        mnemonic.finish()?;
        Ok(action)
    }

    fn call(&mut self, written: &Written, operands: &[Operand]) -> Result<Action, String> {
        let called = self.called(written)?;
        let number = self.numbers[&called.name];
        let code = self.functions[number].as_ref().ok_or("a function calls itself")?;
        let lists = |first: bool| {
            let at = operands.iter().position(|o| matches!(o, Operand::Name(_))).unwrap_or(0);
            let side = if first { &operands[..at] } else { &operands[at + 1..] };
            match side {
                [Operand::List(all)] => all.as_slice(),
                _ => &[],
            }
        };
        let pairs = |given: &[Operand], own: &[(usize, usize)], into: bool| {
            if given.len() != own.len() {
                return Err(format!("{} values where {} are due", given.len(), own.len()));
            }
            let pair = |(operand, (at, bytes)): (&Operand, &(usize, usize))| {
                let Operand::Name(name) = operand else { return Err("expected a parameter".to_string()) };
                let place = self.scope.places.get(name).ok_or_else(|| format!("unknown name {name}"))?;
                let outer = place.address as usize;
                let (from, to) = if into { (outer, *at) } else { (*at, outer) };
                Ok(Copied { from, to, bytes: *bytes })
            };
            given.iter().zip(own).map(pair).collect::<Result<Vec<_>, _>>()
        };
        let inputs = pairs(lists(false), &code.parameters, true)?;
        let outputs = pairs(lists(true), &code.results, false)?;
        Ok(Action::Call(number, inputs, outputs))
    }
}

/// The instruction that comes after each label.
fn labels(function: &Function) -> HashMap<&str, usize> {
    let (mut labels, mut at) = (HashMap::new(), 0);
    for statement in &function.body {
        match statement {
            Statement::Label(name) => drop(labels.insert(name.as_str(), at)),
            Statement::Instruction(_) => at += 1,
            _ => {}
        }
    }
    labels
}
