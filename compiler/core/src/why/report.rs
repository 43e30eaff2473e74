//! The answers, as data.

use meshwright_diag::{Location, Span};
use meshwright_plan::Phase;
use serde::Serialize;

/// The place of a span; `None` for a span that is nowhere.
pub type PlaceOf<'a> = dyn Fn(Span) -> Option<Location> + 'a;

/// A rule that is spoken of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleReport {
    /// Its number in the layout, from 1.
    pub number: usize,
    /// Its text, for one dim.
    pub text: String,
    /// Its place.
    pub place: Option<Location>,
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fact {
    /// `rule`, `overridden`, `yielded`, `elsewhere`, `no_rule`, `replicated`, `followed`, `refused`, `wanted`, `renamed`,
    /// `partial`, `reduced`, `gone` or `rematerializable`.
    pub kind: &'static str,
    /// It in words.
    pub text: String,
    /// The rule it is about, if it is about one.
    pub rule: Option<RuleReport>,
}

/// Facts on a dim of one value of the chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// The value.
    pub value: String,
    /// The dim.
    pub dim: String,
    /// The op that makes it.
    pub op: String,
    /// Its place in the model.
    pub place: Option<Location>,
    /// The facts, in the order in which they were decided.
    pub facts: Vec<Fact>,
}

/// A collective that the split brings about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Caused {
    /// `all_reduce` and so on.
    pub op: String,
    /// Its axes.
    pub axes: Vec<String>,
    /// Bytes of one device's buffer: what goes in, or for an all-gather what comes out.
    pub bytes: usize,
    /// Part of the step.
    pub phase: Phase,
    /// The value that is moved.
    pub value: String,
    /// Its place in the model.
    pub place: Option<Location>,
    /// Why.
    pub because: String,
}

/// The answer for one dim of a value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Why {
    /// The value, by its number in the partitioned step.
    pub id: u32,
    /// Its path with its dims.
    pub value: String,
    /// Its path.
    pub path: String,
    /// The dim.
    pub dim: String,
    /// Its size.
    pub size: usize,
    /// Axes that split it where the value is made, major first.
    pub axes: Vec<String>,
    /// The largest shard of it on one device.
    pub shard: usize,
    /// The whole placement, as `explain` shows it.
    pub split_by: String,
    /// From the value to what decided, the value itself first.
    pub chain: Vec<Link>,
    /// Collectives that the split brings about, in order.
    pub collectives: Vec<Caused>,
}
