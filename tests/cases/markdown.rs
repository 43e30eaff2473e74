//! Markdown as the cases use it: headings and fenced blocks.

use std::path::{Path, PathBuf};

/// A fenced block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// What follows the fence.
    pub(crate) info: String,
    /// Its text; every line ends in a line end.
    pub(crate) text: String,
    /// Line of the opening fence, from 1.
    pub(crate) line: usize,
}

/// A heading with what stands below it, up to the next heading.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    /// The headings from the outermost, joined.
    pub(crate) title: String,
    level: usize,
    /// The section it is part of.
    pub(crate) parent: Option<usize>,
    /// Its own blocks.
    pub(crate) blocks: Vec<Block>,
}

/// A file of cases.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) path: PathBuf,
    /// Path below the folder, without the extension.
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) sections: Vec<Section>,
    /// What is wrong with its form.
    pub(crate) problems: Vec<String>,
}

/// What a block may be: inputs first, then expectations.
const INPUTS: [&str; 3] = ["mw", "layout", "args"];
const EXPECTATIONS: [&str; 14] = [
    "diagnostic",
    "graph",
    "spmd",
    "plan",
    "device",
    "attention",
    "fp8",
    "values",
    "collectives",
    "residuals",
    "totals",
    "stages",
    "why",
    "after",
];

fn kind(info: &str) -> &str {
    info.split([' ', ':']).next().unwrap_or("")
}

/// Whether a block is compared with what comes out.
pub(crate) fn is_expectation(info: &str) -> bool {
    EXPECTATIONS.contains(&kind(info))
}

impl Page {
    pub(crate) fn read(path: &Path, name: &str, text: &str) -> Page {
        let mut page = Page {
            path: path.into(),
            name: name.into(),
            text: text.into(),
            sections: Vec::new(),
            problems: Vec::new(),
        };
        let mut open: Option<Block> = None;
        for (i, line) in text.lines().enumerate() {
            if let Some(block) = &mut open {
                if line.trim_end() == "```" {
                    page.add(open.take());
                } else {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
            } else if let Some(info) = line.strip_prefix("```") {
                open = Some(Block { info: info.trim().into(), text: String::new(), line: i + 1 });
            } else if line.starts_with('#') {
                page.heading(line);
            }
        }
        if let Some(b) = open {
            page.problems.push(format!("line {}: the block is not closed", b.line));
        }
        page.titles_are_unique();
        page
    }

    fn heading(&mut self, line: &str) {
        let level = line.chars().take_while(|c| *c == '#').count();
        let own = line.trim_start_matches('#').trim();
        let mut parent = self.sections.len().checked_sub(1);
        while let Some(p) = parent.filter(|p| self.sections[*p].level >= level) {
            parent = self.sections[p].parent;
        }
        let title = match parent {
            Some(p) => format!("{} > {own}", self.sections[p].title),
            None => own.into(),
        };
        self.sections.push(Section { title, level, parent, blocks: Vec::new() });
    }

    fn add(&mut self, block: Option<Block>) {
        let Some(block) = block else { return };
        let known = INPUTS.contains(&kind(&block.info)) || is_expectation(&block.info);
        if !known && kind(&block.info) != "text" {
            self.problems.push(format!("line {}: no block is called `{}`", block.line, block.info));
        }
        match self.sections.last_mut() {
            Some(s) => s.blocks.push(block),
            None => self.problems.push(format!("line {}: a block before the first heading", block.line)),
        }
    }

    fn titles_are_unique(&mut self) {
        for (i, s) in self.sections.iter().enumerate() {
            if self.sections[..i].iter().any(|t| t.title == s.title) {
                self.problems.push(format!("two headings `{}`", s.title));
            }
            let inner = self.sections.iter().any(|t| t.parent == Some(i));
            if !inner && !s.blocks.iter().any(|b| is_expectation(&b.info)) && !s.blocks.is_empty() {
                self.problems.push(format!("`{}` expects nothing", s.title));
            }
        }
    }

    pub(crate) fn sections_with_expectations(&self) -> Vec<usize> {
        (0..self.sections.len())
            .filter(|s| self.sections[*s].blocks.iter().any(|b| is_expectation(&b.info)))
            .collect()
    }

    /// The blocks of a kind of input that a section has, or else those of the nearest section around it that has some.
    pub(crate) fn inputs(&self, section: usize, input: &str) -> Vec<&Block> {
        let mut at = Some(section);
        while let Some(s) = at {
            let own: Vec<&Block> =
                self.sections[s].blocks.iter().filter(|b| kind(&b.info) == input).collect();
            if !own.is_empty() {
                return own;
            }
            at = self.sections[s].parent;
        }
        Vec::new()
    }

    /// The text with other contents of the blocks that open at given lines.
    pub(crate) fn with_blocks(&self, replacements: &[(usize, String)]) -> String {
        let mut out = String::new();
        let mut lines = self.text.lines().enumerate();
        while let Some((i, line)) = lines.next() {
            out.push_str(line);
            out.push('\n');
            if let Some((_, text)) = replacements.iter().find(|r| r.0 == i + 1) {
                out.push_str(text);
                for (_, line) in lines.by_ref() {
                    if line.trim_end() == "```" {
                        out.push_str("```\n");
                        break;
                    }
                }
            }
        }
        out
    }
}
