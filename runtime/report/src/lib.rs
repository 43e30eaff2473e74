//! What people look at: the table of runs, and pages that need nothing but themselves.
//!
//! A [`Page`] is one HTML file: its style, its scripts, a charting library with its licenses, and its data as JSON. It loads
//! nothing from a network. What pages have alike (themes, charts with their legends and downloads, tables that sort and filter)
//! is in `assets/page.js` and `assets/page.css`; each kind of page adds a script of its own, which draws the data that Rust gives
//! it.
//!
//! **Invariant:** a page loads nothing from anywhere, and nothing that data says can leave its place in the page.

mod page;
pub mod plan_page;
pub mod report;
pub mod results;
pub mod usage;

pub use page::Page;
