//! A sweep: which runs there are, what of them is done, the processes that do the rest, and the table of all.

pub(crate) mod check;
pub(crate) mod child;
pub(crate) mod combination;
pub(crate) mod grid;
pub(crate) mod halving;
pub(crate) mod live_lines;
pub(crate) mod results;
pub(crate) mod runner;
pub(crate) mod spec;
pub(crate) mod train_command;
pub(crate) mod values;
