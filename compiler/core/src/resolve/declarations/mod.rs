//! What files declare: sizes, layers, parameters, states and inputs, and which names they may have.

pub(super) mod declare;
pub(super) mod fans;
pub(super) mod globals;
pub(super) mod layers;
pub(super) mod load;
pub(super) mod presets;
pub(super) mod reserved_words;
pub(super) mod state;
