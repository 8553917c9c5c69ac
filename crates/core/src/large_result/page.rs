//! Pages of a stored text. Each page has the offset of the next one.

use super::floor_char;

/// A page of a stored text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextPage<'t> {
    /// Text of the page.
    pub text: &'t str,
    /// Offset of the page, in bytes.
    pub offset: usize,
    /// Offset of the next page; `None` on the last page.
    pub next: Option<usize>,
    /// Size of the whole text in bytes.
    pub bytes: usize,
}

/// The reason why an offset has no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextPageError {
    /// The offset is after the end of the text.
    #[error("offset={offset} is after the end of the text, which has {bytes} bytes")]
    PastEnd {
        /// Requested offset.
        offset: usize,
        /// Size of the text in bytes.
        bytes: usize,
    },
    /// The offset is in the middle of a character.
    #[error(
        "offset={offset} is in the middle of a character that begins at {nearest}: use the offset that the previous page \
         gives for the next one"
    )]
    WithinCharacter {
        /// Requested offset.
        offset: usize,
        /// Offset of that character.
        nearest: usize,
    },
}

/// Returns the page at this offset, with at most `most` bytes, but at least one character.
pub fn page(text: &str, offset: usize, most: usize) -> Result<TextPage<'_>, TextPageError> {
    let bytes = text.len();
    if offset > bytes {
        return Err(TextPageError::PastEnd { offset, bytes });
    }
    let Some(rest) = text.get(offset..) else {
        return Err(TextPageError::WithinCharacter { offset, nearest: floor_char(text, offset) });
    };
    let one = rest.chars().next().map_or(0, char::len_utf8);
    let length = floor_char(rest, most).max(one);
    let text = rest.get(..length).unwrap_or(rest);
    let end = offset + text.len();
    Ok(TextPage { text, offset, next: (end < bytes).then_some(end), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_cut_between_characters_and_each_names_the_next() {
        let text = "ab€d𝄞";
        for (offset, most, is) in [
            (0, 4, ("ab", Some(2))),
            (2, 3, ("€", Some(5))),
            (2, 1, ("€", Some(5))),
            (5, 100, ("d𝄞", None)),
            (10, 4, ("", None)),
            (0, 100, (text, None)),
        ] {
            let page = page(text, offset, most).unwrap();
            assert_eq!((page.text, page.next), is, "{offset} {most}");
            assert_eq!((page.offset, page.bytes), (offset, 10));
        }
    }

    #[test]
    fn all_pages_together_are_the_text() {
        let text = "0123456789€€€𝄞abc".repeat(20);
        for most in 1..30 {
            let (mut read, mut next) = (String::new(), Some(0));
            while let Some(offset) = next {
                let page = page(&text, offset, most).unwrap();
                read.push_str(page.text);
                next = page.next;
            }
            assert_eq!(read, text, "{most}");
        }
    }

    #[test]
    fn a_place_that_is_none_is_refused_with_the_nearest_one() {
        let error_at = |offset| page("a€", offset, 8).unwrap_err().to_string();
        assert_eq!(error_at(5), "offset=5 is after the end of the text, which has 4 bytes");
        for offset in [2, 3] {
            assert!(error_at(offset).contains("a character that begins at 1"), "{}", error_at(offset));
        }
    }
}
