//! The backends that plain operations run on.

use burn_flex::Flex;
use burn_ir::BackendIr;

/// A backend that plain operations run on.
pub(crate) trait Plain: BackendIr + 'static {}

impl Plain for Flex {}
