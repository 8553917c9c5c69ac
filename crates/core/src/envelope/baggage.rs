//! W3C baggage in the form of a header, which MCP also uses in `_meta`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{MAX_BAGGAGE_BYTES, MAX_BAGGAGE_ENTRIES};

/// Returns the entries of a baggage text. Malformed entries, entries beyond the limits, and properties of entries are
/// left out.
pub fn read_baggage(text: &str) -> BTreeMap<String, String> {
    let mut entries = BTreeMap::new();
    let mut bytes = 0;
    for member in text.split(',') {
        let entry = member.split(';').next().unwrap_or_default();
        let Some((name, value)) = entry.split_once('=') else { continue };
        let (name, value) = (name.trim(), decoded(value.trim()));
        bytes += name.len() + value.len();
        if bytes > MAX_BAGGAGE_BYTES || entries.len() == MAX_BAGGAGE_ENTRIES {
            break;
        }
        if is_name(name) {
            entries.insert(name.to_owned(), value);
        }
    }
    entries
}

/// Returns the text of these entries, or `None` if there are none. Entries whose names are not valid in a header are
/// left out.
pub fn write_baggage(entries: &BTreeMap<String, String>) -> Option<String> {
    let mut text = String::new();
    for (name, value) in entries.iter().filter(|(name, _)| is_name(name)) {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push('=');
        for byte in value.bytes() {
            match byte {
                b'"' | b',' | b';' | b'\\' | b'%' => _ = write!(text, "%{byte:02X}"),
                byte if byte.is_ascii_graphic() => text.push(char::from(byte)),
                byte => _ = write!(text, "%{byte:02X}"),
            }
        }
    }
    (!text.is_empty()).then_some(text)
}

/// Returns true if the name is a valid HTTP token.
fn is_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

fn decoded(value: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(value.len()), value.as_bytes());
    while let [first, others @ ..] = rest {
        let encoded = match others {
            [high, low, ..] if *first == b'%' => digit(*high).zip(digit(*low)),
            _ => None,
        };
        let (byte, taken) = encoded.map_or((*first, 1), |(high, low)| (high << 4 | low, 3));
        bytes.push(byte);
        rest = rest.get(taken..).unwrap_or_default();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, String)> {
        read_baggage(text).into_iter().collect()
    }

    #[test]
    fn written_baggage_is_read_unchanged() {
        let entries: BTreeMap<String, String> =
            [("user", "ann, \"the\" 1%;\\ ä\n"), ("a.b", ""), ("c", "x=y")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
        let text = write_baggage(&entries).unwrap();
        assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
        assert_eq!(read_baggage(&text), entries, "{text}");
        let odd = BTreeMap::from([("no name".to_owned(), "x".to_owned()), (String::new(), "y".to_owned())]);
        assert_eq!((write_baggage(&odd), write_baggage(&BTreeMap::new())), (None, None));
    }

    #[test]
    fn malformed_baggage_is_read_as_far_as_it_is_valid() {
        let pairs = |pairs: &[(&str, &str)]| -> Vec<_> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        for (text, expected) in [
            ("user = ann ; secret;level=3 , b=%C3%A4", pairs(&[("b", "ä"), ("user", "ann")])),
            ("a=1,a=2,,b,=c,d e=f", pairs(&[("a", "2")])),
            (
                "a=100%,b=%4,c=%zz,d=%ff",
                pairs(&[("a", "100%"), ("b", "%4"), ("c", "%zz"), ("d", "\u{fffd}")]),
            ),
            ("", Vec::new()),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
        let many: Vec<_> = (0..99).map(|number| format!("n{number}=v")).collect();
        assert_eq!(read(&many.join(",")).len(), MAX_BAGGAGE_ENTRIES);
        assert_eq!(read(&format!("a=1,b={}", "x".repeat(MAX_BAGGAGE_BYTES))), pairs(&[("a", "1")]));
    }
}
