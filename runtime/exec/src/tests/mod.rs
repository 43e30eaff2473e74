//! Tests of the engine on hand-built Plans.
