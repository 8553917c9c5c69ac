//! JSON assembled from parts that stay unchanged, byte for byte.

use steadfast_json::scan;
use steadfast_mcp::json_text::JsonText;

/// Returns a text assembled from valid JSON as JSON. If it is nested too deeply to be passed on, it becomes a string.
pub(crate) fn json(text: &str) -> JsonText {
    JsonText::parse(text.to_owned()).unwrap_or_else(|_| JsonText::string(text))
}

/// Builds an object from names and JSON values.
pub(crate) fn object<N: AsRef<str>, V: AsRef<str>>(members: impl IntoIterator<Item = (N, V)>) -> JsonText {
    let parts: Vec<String> = members
        .into_iter()
        .map(|(name, value)| format!("{}:{}", JsonText::string(name.as_ref()).as_str(), value.as_ref()))
        .collect();
    json(&format!("{{{}}}", parts.join(",")))
}

/// Replaces the text of a member. Returns `None` if there is no such member with a text.
pub(crate) fn with_text(object: &str, name: &str, text: impl FnOnce(&str) -> String) -> Option<String> {
    let at = scan::members(object).find(|member| member.name == name)?.value;
    let text = text(&scan::string(object.get(at.clone())?)?);
    let (before, after) = (object.get(..at.start)?, object.get(at.end..)?);
    Some(format!("{before}{}{after}", JsonText::string(&text).as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_replaced_and_nothing_else() {
        let changed = |object| with_text(object, "name", |name| format!("{name}!"));
        assert_eq!(changed(r#"{ "a":1.0,"name":"n\"" }"#).unwrap(), r#"{ "a":1.0,"name":"n\"!" }"#);
        assert_eq!((changed(r#"{"name":7}"#), changed("[]"), changed("{}")), (None, None, None));
    }

    #[test]
    fn an_object_has_the_names_that_it_is_given() {
        assert_eq!(object([("a\"", "1"), ("b", "[ ]")]).as_str(), r#"{"a\"":1,"b":[ ]}"#);
        assert_eq!(object([("", ""); 0]).as_str(), "{}");
    }
}
