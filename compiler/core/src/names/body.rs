//! Names in the bodies of layers and models.

use super::collector::{BodyNames, Collector};
use super::symbols::SymbolKind;
use meshwright_diag::Span;
use meshwright_syntax::ast::{
    Arg, At, Binding, Call, DimItem, Expr, ExprKind, Layer, Model, Name, Repeat, Statement, StatementKind,
    Variable,
};

impl<'a> Collector<'a> {
    pub(super) fn layer(&mut self, layer: &'a Layer, item: Span) {
        let mut block = BodyNames { span: Some(item), layer: Some(&layer.name.text), ..BodyNames::default() };
        for p in &layer.params {
            let argument = self.arguments.get(&(layer.name.text.as_str(), p.name.text.as_str()));
            block.values.extend(argument.map(|symbol| (p.name.text.as_str(), *symbol)));
        }
        layer.params.iter().filter_map(|p| p.default.as_ref()).for_each(|d| self.expression(d, &mut block));
        layer.body.iter().for_each(|s| self.statement(s, &mut block));
    }

    pub(super) fn model(&mut self, model: &'a Model, item: Span) {
        let mut block = BodyNames { span: Some(item), model: Some(&model.name.text), ..BodyNames::default() };
        model.body.iter().for_each(|s| self.statement(s, &mut block));
    }

    fn local(&mut self, kind: SymbolKind, name: &'a Name, item: Span, block: &mut BodyNames<'a>) -> usize {
        let symbol = self.declared(kind, name, (item, "", block.span));
        block.values.entry(&name.text).or_insert(symbol);
        symbol
    }

    fn statement(&mut self, s: &'a Statement, block: &mut BodyNames<'a>) {
        match &s.kind {
            StatementKind::Let { names, value } => {
                self.expression(value, block);
                for n in names {
                    self.local(SymbolKind::Value, n, s.span, block);
                }
            }
            StatementKind::Assign { names, value } => {
                self.expression(value, block);
                for n in names {
                    self.use_of(n.span, block.values.get(n.text.as_str()).copied());
                }
            }
            StatementKind::Param(v) => self.variable(SymbolKind::Param, v, s.span, block),
            StatementKind::State(v) => self.variable(SymbolKind::State, v, s.span, block),
            StatementKind::Input(i) => {
                self.dims(&i.dims, block);
                i.range.iter().for_each(|r| self.dim(r, block));
                self.local(SymbolKind::Input, &i.name, s.span, block);
            }
            StatementKind::Loss(b) => self.result(SymbolKind::Loss, b, s.span, block),
            StatementKind::Metric(m) => self.result(SymbolKind::Metric, &m.binding, s.span, block),
            StatementKind::Output(b) => self.result(SymbolKind::Output, b, s.span, block),
            StatementKind::Repeat(r) => self.repeat(r, block),
            StatementKind::Return(values) => values.iter().for_each(|e| self.expression(e, block)),
        }
    }

    fn variable(&mut self, kind: SymbolKind, v: &'a Variable, item: Span, block: &mut BodyNames<'a>) {
        self.dims(&v.dims, block);
        self.expression(&v.init, block);
        self.local(kind, &v.name, item, block);
    }

    fn result(&mut self, kind: SymbolKind, b: &'a Binding, item: Span, block: &mut BodyNames<'a>) {
        self.expression(&b.value, block);
        let symbol = self.declared(kind, &b.name, (item, "", block.span));
        block.results.entry(&b.name.text).or_insert(symbol);
        if let Some(model) = block.model {
            self.results.entry((model, &b.name.text)).or_insert(symbol);
        }
    }

    /// What the body of a `repeat` declares ends with it; of a `scan` it is collected under the same name.
    fn repeat(&mut self, r: &'a Repeat, block: &mut BodyNames<'a>) {
        self.dim(&r.dim, block);
        let outside = block.values.clone();
        if let Some(i) = &r.index {
            self.local(SymbolKind::Index, i, i.span, block);
        }
        r.body.iter().for_each(|s| self.statement(s, block));
        if !r.scan {
            block.values = outside;
        }
    }

    /// Names where dims stand: what the layer takes, or dims of the file.
    fn dims(&mut self, names: &'a [Name], block: &BodyNames<'a>) {
        names.iter().for_each(|n| self.dim(n, block));
    }

    fn dim(&mut self, name: &'a Name, block: &BodyNames<'a>) {
        let text = name.text.as_str();
        let argument = block.layer.and_then(|layer| self.arguments.get(&(layer, text)));
        let found = argument.filter(|a| block.values.get(text) == Some(a)).or_else(|| self.dims.get(text));
        self.use_of(name.span, found.copied());
    }

    pub(super) fn expression(&mut self, e: &'a Expr, block: &mut BodyNames<'a>) {
        match &e.kind {
            ExprKind::Int(_) | ExprKind::Float(_) | ExprKind::Bool(_) | ExprKind::Str(_) => {}
            ExprKind::Name(name) => {
                let name = name.as_str();
                let own = block.values.get(name).or_else(|| block.results.get(name));
                let found = own.or_else(|| self.consts.get(name)).or_else(|| self.dims.get(name)).copied();
                if let Some(at) = self.bare(name, e.span) {
                    self.use_of(at, found);
                }
            }
            ExprKind::Unary { operand, .. } => self.expression(operand, block),
            ExprKind::Binary { lhs, rhs, .. } => {
                self.expression(lhs, block);
                self.expression(rhs, block);
            }
            ExprKind::Call(call) => self.call(call, block),
            ExprKind::DimOp(op) => {
                op.groups.iter().flatten().for_each(|item| self.item(item, block));
                self.given(&op.args, block);
            }
            ExprKind::Index { base, items } => {
                self.expression(base, block);
                items.iter().for_each(|item| self.item(item, block));
            }
            ExprKind::DimList(names) => self.dims(names, block),
        }
    }

    /// The place of a name without the parentheses around it.
    fn bare(&self, name: &str, span: Span) -> Option<Span> {
        if (span.end - span.start) as usize == name.len() {
            return Some(span);
        }
        let text = self.sources.slice(span);
        let start = text.find(|c: char| c != '(' && !c.is_whitespace())?;
        let start = span.start + start as u32;
        let at = Span { start, end: start + name.len() as u32, ..span };
        (self.sources.slice(at) == name).then_some(at)
    }

    fn call(&mut self, call: &'a Call, block: &mut BodyNames<'a>) {
        let name = call.name.text.as_str();
        let layer = self.layers.get(name).copied();
        self.use_of(call.name.span, layer);
        self.given(&call.args, block);
        for a in call.args.iter().filter_map(|a| a.name.as_ref()) {
            self.use_of(a.span, self.arguments.get(&(name, a.text.as_str())).copied());
        }
        let Some(label) = &call.label else { return };
        let text = label.name.text.as_str();
        if label.shares {
            // A call without a label of its own is named by its statement, or by its layer.
            let own = block.labels.get(text).or_else(|| block.values.get(text));
            let earlier = own.or_else(|| self.layers.get(text)).copied();
            self.use_of(label.name.span, earlier);
        } else {
            let symbol = self.declared(SymbolKind::Label, &label.name, (label.span, "", block.span));
            block.labels.entry(text).or_insert(symbol);
        }
    }

    fn given(&mut self, args: &'a [Arg], block: &mut BodyNames<'a>) {
        for a in args {
            self.expression(&a.value, block);
            a.within.iter().for_each(|d| self.dim(d, block));
        }
    }

    fn item(&mut self, item: &'a DimItem, block: &mut BodyNames<'a>) {
        self.dims(&item.dims, block);
        self.dims(&item.to, block);
        item.window.iter().for_each(|w| self.dim(w, block));
        match &item.at {
            Some(At::Value(e)) => self.expression(e, block),
            Some(At::Range(low, high)) => {
                self.expression(low, block);
                self.expression(high, block);
            }
            None => {}
        }
    }
}
