//! The passes of a pipeline in a timeline.

use crate::trace::{Recorder, What};
use meshwright_device::launch::LoopLaunch;
use std::ops::Range;

/// The running pass of a pipeline.
pub(crate) struct OpenPass<'l> {
    /// Ranges of each chunk's launches in the body, by pass.
    passes: &'l [Vec<Range<usize>>],
    /// Kind, chunk, microbatch and start time.
    open: Option<(What, usize, usize, u64)>,
}

impl<'l> OpenPass<'l> {
    /// For a loop that begins; no pass is open.
    pub(crate) fn of(of: &'l LoopLaunch) -> OpenPass<'l> {
        OpenPass { passes: &of.passes, open: None }
    }

    /// Notes a launch of the body for a microbatch. If it is in another pass than the launch before, that pass has ended.
    pub(crate) fn runs(&mut self, launch: usize, micro: usize, recorder: Option<&mut Recorder>) {
        let Some(recorder) = recorder.filter(|_| !self.passes.is_empty()) else { return };
        let all = [What::Forward, What::Backward, What::Weights].into_iter().zip(self.passes);
        let found = all.into_iter().find_map(|(what, chunks)| {
            chunks.iter().position(|launches| launches.contains(&launch)).map(|chunk| (what, chunk, micro))
        });
        if self.open.map(|(what, chunk, micro, _)| (what, chunk, micro)) != found {
            self.end(Some(recorder));
            self.open = found.map(|(what, chunk, micro)| (what, chunk, micro, recorder.close()));
        }
    }

    /// Ends the running pass.
    pub(crate) fn end(&mut self, recorder: Option<&mut Recorder>) {
        if let (Some((what, chunk, micro, begin)), Some(recorder)) = (self.open.take(), recorder) {
            recorder.close();
            recorder.ended(what, chunk, begin, micro as u64);
        }
    }
}
