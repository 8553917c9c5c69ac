//! Encoding of body values as header values, and back.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;

const BEGIN: &str = "=?base64?";
const END: &str = "?=";

/// Encodes a text as a header value: unchanged if a header can carry it, else in Base64 between markers.
pub fn encode_value(text: &str) -> HeaderValue {
    let plain = text.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~'))
        && text.trim_matches([' ', '\t']).len() == text.len()
        && !(text.starts_with(BEGIN) && text.ends_with(END));
    let encoded = match plain {
        true => Cow::Borrowed(text),
        false => Cow::Owned(format!("{BEGIN}{}{END}", STANDARD.encode(text))),
    };
    // Both are visible ASCII, so this cannot fail. An empty value would only be refused.
    HeaderValue::from_str(&encoded).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Decodes a header value, if it is well formed.
pub fn decode_value(value: &HeaderValue) -> Option<Cow<'_, str>> {
    let text = value.to_str().ok()?.trim_matches([' ', '\t']);
    match text.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END)) {
        None => Some(Cow::Borrowed(text)),
        Some(encoded) => {
            let bytes = STANDARD.decode(encoded).ok()?;
            String::from_utf8(bytes).ok().map(Cow::Owned)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_encoded_as_the_specification_shows() {
        for (text, header) in [
            ("us-west1", "us-west1"),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ] {
            assert_eq!(encode_value(text), header);
            assert_eq!(decode_value(&HeaderValue::from_str(header).unwrap()).unwrap(), text);
        }
        for broken in ["=?base64?***?=", "=?base64?/w==?="] {
            assert_eq!(decode_value(&HeaderValue::from_static(broken)), None, "{broken}");
        }
    }

    proptest! {
        #[test]
        fn every_text_comes_back(text in any::<String>()) {
            let value = encode_value(&text);
            prop_assert_eq!(decode_value(&value).unwrap(), text);
        }
    }
}
