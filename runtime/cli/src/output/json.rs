//! JSON objects whose keys stay in the order in which they are given.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

/// An object.
#[derive(Clone, Debug)]
pub(crate) struct Object(Vec<(String, Value)>);

/// The object of these fields.
pub(crate) fn object<K: Into<String>>(fields: impl IntoIterator<Item = (K, Value)>) -> Object {
    Object(fields.into_iter().map(|(k, v)| (k.into(), v)).collect())
}

impl Object {
    /// Adds a field.
    pub(crate) fn push(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.0.push((key.into(), value.into()));
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}
