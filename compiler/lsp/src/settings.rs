//! What the editor sets.

use serde_json::Value;

/// The settings of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EditorSettings {
    /// Options as the command line has them, for all models: `--machine dgx-h100`.
    pub(crate) options: String,
}

impl EditorSettings {
    /// From `initializationOptions`, or from the settings of a client: there they stand below `meshwright`. What is something
    /// else is left out.
    pub(crate) fn of(value: &Value) -> EditorSettings {
        let own = value.get("meshwright").unwrap_or(value);
        let options = own.get("options").and_then(Value::as_str).unwrap_or_default();
        EditorSettings { options: options.to_string() }
    }
}
