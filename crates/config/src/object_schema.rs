//! The JSON Schema of a table of settings.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use crate::setting::Setting;

/// Returns the schema of a table of settings as an object.
pub(crate) fn object_schema<D: 'static>(settings: &[Setting<D>]) -> Json {
    object_of(object(settings, |_| true))
}

/// Returns the schema of an object with these properties.
pub(crate) fn object_of(properties: Map<String, Json>) -> Json {
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// Returns the schemas of some settings of a table, by name.
pub(crate) fn object<D: 'static>(
    settings: &[Setting<D>],
    with: impl Fn(&Setting<D>) -> bool,
) -> Map<String, Json> {
    let mut properties = Map::new();
    let mut sections: BTreeMap<&str, Map<String, Json>> = BTreeMap::new();
    for setting in settings.iter().filter(|setting| with(setting)) {
        match setting.path.split_once('.') {
            None => drop(properties.insert(setting.path.to_owned(), setting.schema())),
            Some((section, name)) => {
                sections.entry(section).or_default().insert(name.to_owned(), setting.schema());
            }
        }
    }
    properties.extend(sections.into_iter().map(|(section, inner)| (section.to_owned(), object_of(inner))));
    properties
}
