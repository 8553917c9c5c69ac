//! A kept text is read in pages, each of which names the place where the next one begins.

use std::fmt;

use super::floor_char;

/// A part of a kept text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<'t> {
    /// The text of it.
    pub text: &'t str,
    /// Where it begins, in bytes.
    pub offset: usize,
    /// Where the next one begins; none behind the last one.
    pub next: Option<usize>,
    /// The bytes of the whole text.
    pub bytes: usize,
}

/// Why there is no page at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageError {
    /// The text ends before it.
    BehindTheEnd {
        /// The place that was asked for.
        offset: usize,
        /// The bytes of the text.
        bytes: usize,
    },
    /// It is in the middle of a character.
    WithinCharacter {
        /// The place that was asked for.
        offset: usize,
        /// The beginning of that character.
        nearest: usize,
    },
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BehindTheEnd { offset, bytes } => {
                write!(f, "offset={offset} is behind the end of the text, which has {bytes} bytes")
            }
            Self::WithinCharacter { offset, nearest } => write!(
                f,
                "offset={offset} is in the middle of a character that begins at {nearest}: take the place of the next page as the \
                 page before names it"
            ),
        }
    }
}

impl std::error::Error for PageError {}

/// The page of a text that begins at this byte, with at most so many bytes, but at least one character.
pub fn page(text: &str, offset: usize, most: usize) -> Result<Page<'_>, PageError> {
    let bytes = text.len();
    if offset > bytes {
        return Err(PageError::BehindTheEnd { offset, bytes });
    }
    let Some(rest) = text.get(offset..) else {
        return Err(PageError::WithinCharacter { offset, nearest: floor_char(text, offset) });
    };
    let one = rest.chars().next().map_or(0, char::len_utf8);
    let length = floor_char(rest, most).max(one);
    let text = rest.get(..length).unwrap_or(rest);
    let end = offset + text.len();
    Ok(Page { text, offset, next: (end < bytes).then_some(end), bytes })
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
        let why = |offset| page("a€", offset, 8).unwrap_err().to_string();
        assert_eq!(why(5), "offset=5 is behind the end of the text, which has 4 bytes");
        for offset in [2, 3] {
            assert!(why(offset).contains("a character that begins at 1"), "{}", why(offset));
        }
    }
}
