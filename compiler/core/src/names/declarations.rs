//! Declarations outside of layers and models.

use super::collector::{BodyNames, Collector};
use super::symbols::{Names, SymbolKind};
use meshwright_diag::{Sources, Span};
use meshwright_sorted::SortedMap;
use meshwright_syntax::ast::{Binding, Expr, Item, ItemKind, Layer, ModelFile, TrainKind, TrainSetting};

/// The names of model files, those that others use first.
pub(super) fn collect<'a>(files: &[&'a ModelFile], sources: &'a Sources) -> Collector<'a> {
    let mut all = Collector {
        names: Names::default(),
        sources,
        dims: SortedMap::new(),
        consts: SortedMap::new(),
        layers: SortedMap::new(),
        arguments: SortedMap::new(),
        results: SortedMap::new(),
        models: SortedMap::new(),
        main: files.last().and_then(|f| f.items.first()).map(|i| i.span.file),
        globs: Vec::new(),
    };
    let items = || files.iter().flat_map(|f| &f.items);
    items().for_each(|item| all.global(item));
    items().for_each(|item| all.within(item));
    let globs = std::mem::take(&mut all.globs);
    globs.into_iter().for_each(|at| all.path(at));
    all
}

impl<'a> Collector<'a> {
    fn global(&mut self, item: &'a Item) {
        let whole = (item.span, item.doc.as_str(), None);
        match &item.kind {
            ItemKind::Dims(all) => {
                for b in all {
                    let symbol = self.declared(SymbolKind::Dim, &b.name, (b.span, &item.doc, None));
                    self.dims.entry(&b.name.text).or_insert(symbol);
                }
            }
            ItemKind::Consts(all) => {
                for b in all {
                    let symbol = self.declared(SymbolKind::Const, &b.name, (b.span, &item.doc, None));
                    self.consts.entry(&b.name.text).or_insert(symbol);
                }
            }
            ItemKind::Size(size) => {
                self.declared(SymbolKind::Preset, &size.name, whole);
            }
            ItemKind::Layer(layer) => {
                let symbol = self.declared(SymbolKind::Layer, &layer.name, whole);
                if self.layers.contains_key(layer.name.text.as_str()) {
                    return;
                }
                self.layers.insert(&layer.name.text, symbol);
                self.arguments_of(layer, item.span);
            }
            ItemKind::Model(model) => {
                let symbol = self.declared(SymbolKind::Model, &model.name, whole);
                self.models.entry(&model.name.text).or_insert(symbol);
            }
            ItemKind::Use(_) | ItemKind::Train(_) => {}
        }
    }

    fn arguments_of(&mut self, layer: &'a Layer, item: Span) {
        for p in &layer.params {
            let end = p.default.as_ref().map_or(p.name.span, |d| d.span);
            let whole = (p.name.span.to(end), "", Some(item));
            let symbol = self.declared(SymbolKind::Argument, &p.name, whole);
            self.arguments.entry((&layer.name.text, &p.name.text)).or_insert(symbol);
        }
    }

    fn within(&mut self, item: &'a Item) {
        match &item.kind {
            ItemKind::Dims(all) | ItemKind::Consts(all) => all.iter().for_each(|b| self.number(&b.value)),
            ItemKind::Size(size) => size.values.iter().for_each(|b| self.set(b)),
            ItemKind::Layer(layer) => self.layer(layer, item.span),
            ItemKind::Model(model) => self.model(model, item.span),
            ItemKind::Train(train) => {
                self.use_of(train.model.span, self.models.get(train.model.text.as_str()).copied());
                train.settings.iter().for_each(|s| self.setting(&train.model.text, s));
            }
            ItemKind::Use(_) => {}
        }
    }

    /// A value that a preset sets.
    fn set(&mut self, binding: &'a Binding) {
        let name = binding.name.text.as_str();
        self.use_of(binding.name.span, self.dims.get(name).or_else(|| self.consts.get(name)).copied());
        self.number(&binding.value);
    }

    fn setting(&mut self, model: &'a str, setting: &'a TrainSetting) {
        match &setting.kind {
            TrainKind::Minimize(m) => {
                self.use_of(m.loss.span, self.results.get(&(model, m.loss.text.as_str())).copied());
                self.globs.extend(m.of.iter().map(|g| g.span));
                m.every.iter().chain(&m.from).for_each(|e| self.number(e));
            }
            TrainKind::Optimizer(c) | TrainKind::Clip(c) | TrainKind::Precision(c) => {
                c.args.iter().for_each(|a| self.number(&a.value));
            }
            TrainKind::Freeze(paths) => self.globs.extend(paths.iter().map(|g| g.span)),
            TrainKind::WeightDecay { value, except } => {
                value.iter().for_each(|e| self.number(e));
                self.globs.extend(except.iter().map(|g| g.span));
            }
            TrainKind::Group(group) => {
                self.globs.extend(group.of.iter().map(|g| g.span));
                group.settings.iter().for_each(|s| self.setting(model, s));
            }
            TrainKind::Ema { decay, of } => {
                self.number(decay);
                self.globs.extend(of.iter().map(|g| g.span));
            }
        }
    }

    /// An expression outside of layers and models.
    fn number(&mut self, e: &'a Expr) {
        self.expression(e, &mut BodyNames::default());
    }
}
