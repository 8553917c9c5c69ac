//! Arguments repeated in headers. The schema of a tool marks them with `x-mcp-header`, and a call of the modern era
//! repeats them as `Mcp-Param-…`, so that proxies can route by them.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue};
use steadfast_json::scan;

use super::{decode_value, encode_value};

/// Returns the headers that repeat these arguments, for a tool with this schema.
pub fn headers_for(schema: &str, arguments: &str) -> Vec<(HeaderName, HeaderValue)> {
    let marked = marked(schema).into_iter();
    marked.filter_map(|one| Some((one.header, encode_value(&given(arguments, &one.path)?)))).collect()
}

/// Checks that the headers match these arguments, for a tool with this schema. A header for a missing argument is
/// ignored.
pub fn check_headers(schema: &str, arguments: &str, headers: &HeaderMap) -> Result<(), String> {
    for HeaderArgument { header, path } in marked(schema) {
        let Some(body) = given(arguments, &path) else { continue };
        let mut all = headers.get_all(&header).iter();
        match (all.next().map(decode_value), all.next()) {
            (_, Some(_)) => return Err(format!("header mismatch: {header} is repeated")),
            (None, None) => return Err(format!("header mismatch: the header {header} is missing")),
            (Some(None), None) => return Err(format!("header mismatch: {header} is not well formed")),
            (Some(Some(value)), None) if is_same(&value, &body) => {}
            (Some(Some(value)), None) => {
                return Err(format!("header mismatch: {header} is {value:?}, the body has {body:?}"));
            }
        }
    }
    Ok(())
}

/// An argument that a header repeats.
struct HeaderArgument<'s> {
    header: HeaderName,
    /// Its name, after the names of the enclosing objects.
    path: Vec<Cow<'s, str>>,
}

const MARK: &str = "x-mcp-header";
/// The most marked arguments of a schema. Further ones are ignored.
const MOST: usize = 64;
/// The most objects that may enclose an argument.
const DEEPEST: usize = 16;

fn marked(schema: &str) -> Vec<HeaderArgument<'_>> {
    let mut found = Vec::new();
    // Few schemas have marks.
    if schema.contains(MARK) {
        collect(schema, &mut Vec::new(), &mut found);
    }
    found
}

fn collect<'s>(schema: &'s str, path: &mut Vec<Cow<'s, str>>, found: &mut Vec<HeaderArgument<'s>>) {
    let Some(properties) = scan::get(schema, "properties").filter(|_| path.len() < DEEPEST) else {
        return;
    };
    for property in scan::members(properties) {
        let Some(inner) = properties.get(property.value) else { continue };
        path.push(property.name);
        let mark = scan::get(inner, MARK).and_then(scan::string);
        let header = mark.and_then(|mark| HeaderName::try_from(format!("mcp-param-{mark}")).ok());
        if let Some(header) = header.filter(|_| found.len() < MOST) {
            found.push(HeaderArgument { header, path: path.clone() });
        }
        collect(inner, path, found);
        path.pop();
    }
}

/// Returns the value of an argument as a header has it. Only plain values can be repeated.
fn given<'a>(arguments: &'a str, path: &[Cow<'_, str>]) -> Option<Cow<'a, str>> {
    let value = path.iter().try_fold(arguments, |object, name| scan::get(object, name))?;
    match value.as_bytes().first()? {
        b'"' => scan::string(value),
        b't' | b'f' => Some(Cow::Borrowed(value)),
        b'-' | b'0'..=b'9' => {
            let number: f64 = value.parse().ok()?;
            (number.abs() <= EXACT).then(|| Cow::Owned(number.to_string()))
        }
        _ => None,
    }
}

/// Beyond this, not every whole number is exact in a double, and none is repeated.
const EXACT: f64 = 9_007_199_254_740_991.0;

fn is_same(header: &str, body: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    header == body || number(header).is_some_and(|one| number(body) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = r#"{"type":"object","properties":{
        "region":{"type":"string","x-mcp-header":"Region"},
        "limit":{"type":"integer","x-mcp-header":"Limit"},
        "plain":{"type":"string"},
        "bad":{"type":"string","x-mcp-header":"no header"},
        "inner":{"type":"object","properties":{"fast":{"type":"boolean","x-mcp-header":"Fast"}}}
    }}"#;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        all.iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn marked_arguments_are_repeated_and_match_their_headers() {
        let arguments =
            r#"{"region":"Zürich","limit":42.0,"plain":"p","bad":"b","inner":{"fast":true},"other":1}"#;
        let all: HeaderMap = headers_for(SCHEMA, arguments).into_iter().collect();
        assert_eq!(
            all,
            headers(&[
                ("mcp-param-region", "=?base64?WsO8cmljaA==?="),
                ("mcp-param-limit", "42"),
                ("mcp-param-fast", "true"),
            ])
        );
        assert_eq!(check_headers(SCHEMA, arguments, &all), Ok(()));
        for nothing in [r#"{"region":null,"limit":1e300,"inner":7}"#, "{}", "7"] {
            assert!(headers_for(SCHEMA, nothing).is_empty(), "{nothing}");
            assert_eq!(check_headers(SCHEMA, nothing, &HeaderMap::new()), Ok(()), "{nothing}");
        }
        assert!(headers_for(r#"{"type":"object"}"#, arguments).is_empty());
    }

    #[test]
    fn headers_that_differ_from_the_arguments_are_detected() {
        let arguments = r#"{"region":"Hello","limit":7}"#;
        for (region, limit, is_accepted) in [
            ("Hello", "7", true),
            ("=?base64?SGVsbG8=?=", "7.0", true),
            ("=?base64?SGVsbG8?=", "7", false),
            ("=?base64?SGVs!!!bG8=?=", "7", false),
            ("hello", "7", false),
            ("Hello", "8", false),
        ] {
            let headers = headers(&[("mcp-param-region", region), ("mcp-param-limit", limit)]);
            assert_eq!(check_headers(SCHEMA, arguments, &headers).is_ok(), is_accepted, "{region} {limit}");
        }
        assert!(
            check_headers(SCHEMA, arguments, &headers(&[("mcp-param-region", "Hello")])).is_err(),
            "missing"
        );
        let mut twice = headers(&[("mcp-param-region", "Hello"), ("mcp-param-limit", "7")]);
        twice.append("mcp-param-limit", HeaderValue::from_static("7"));
        assert!(check_headers(SCHEMA, arguments, &twice).is_err(), "twice");
    }
}
