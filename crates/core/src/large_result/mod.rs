//! Results whose text is longer than the limit: the shown part, and the pages of the whole.
//!
//! The surface stores the text of a result beyond `result_limit`, and replaces it by its beginning, its end, its size
//! and the place of the whole text ([decision 0029](../../../../docs/decisions/0029-large-results.md)). Nothing else of
//! a result changes: not images, not structured content, and not the result that is stored for duplicates.
//!
//! | file | subject |
//! | --- | --- |
//! | `mod` | the cut of a text, and the notice in the gap |
//! | `page` | a page of a stored text |
//! | `storage` | the stored results: bounds, readers and expiry |

mod page;
mod storage;

use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use page::{TextPage, TextPageError, page};
pub use storage::{
    LargeResult, LargeResultBounds, LargeResultStore, NewLargeResult, ResultReader, ResultTooLarge,
};

/// Separator between two text blocks of one result, when they are stored as one text.
pub const BETWEEN_BLOCKS: &str = "\n";

/// The cut of texts that are longer than the limit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextCut {
    /// Size of all texts as one, in bytes.
    pub bytes: usize,
    /// Bytes that are left out, as offsets in all texts as one.
    pub gap: Range<usize>,
    /// Part of each text that is shown, in order.
    pub parts: Vec<ShownPart>,
}

/// The part of a text that is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShownPart {
    /// The whole text.
    Whole,
    /// The gap begins in this text: the text before `until`, then the [`CutNotice`], then the text after `from`.
    Gap {
        /// End of the shown beginning.
        until: usize,
        /// Start of the shown end; the length of the text if no end is shown.
        from: usize,
    },
    /// The end of the text only.
    End {
        /// Start of the shown end.
        from: usize,
    },
    /// Nothing.
    Nothing,
}

/// Cuts texts that are longer than `limit` bytes together. Three quarters of the limit are shown from the beginning and
/// a quarter from the end, where logs and test runs have their summary. Returns `None` if they are not longer.
pub fn cut(texts: &[&str], limit: usize) -> Option<TextCut> {
    let bytes = bytes(texts);
    if bytes <= limit {
        return None;
    }
    let shown_first = limit - limit / 4;
    let shown_last = bytes - limit / 4;
    let (mut parts, mut gap, mut start) = (Vec::new(), None::<Range<usize>>, 0);
    for text in texts {
        let end = start + text.len();
        let part = if end <= shown_first || (start >= shown_last && gap.is_some()) {
            ShownPart::Whole
        } else {
            let from = ceil_char(text, shown_last.saturating_sub(start));
            match &mut gap {
                None => {
                    let until = floor_char(text, shown_first.saturating_sub(start));
                    gap = Some(start + until..start + from);
                    ShownPart::Gap { until, from }
                }
                Some(gap) => {
                    gap.end = start + from;
                    if from == text.len() { ShownPart::Nothing } else { ShownPart::End { from } }
                }
            }
        };
        parts.push(part);
        start = end + BETWEEN_BLOCKS.len();
    }
    // A line break between two texts may be the only excess over the limit.
    let gap = gap.filter(|gap| !gap.is_empty())?;
    Some(TextCut { bytes, gap, parts })
}

/// Returns the last character boundary at or before this byte.
fn floor_char(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// Returns the first character boundary at or after this byte.
fn ceil_char(text: &str, at: usize) -> usize {
    (at..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}

/// Returns the size of these texts as one, in bytes.
fn bytes(texts: &[&str]) -> usize {
    let between = texts.len().saturating_sub(1) * BETWEEN_BLOCKS.len();
    texts.iter().map(|text| text.len()).sum::<usize>() + between
}

/// Returns the texts of a result as one text, as they are stored.
pub fn whole(texts: &[&str]) -> String {
    texts.join(BETWEEN_BLOCKS)
}

/// The place where the whole text can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultLocation {
    /// An MCP resource with this URI.
    Resource(String),
    /// A file with this path on the machine of the caller.
    File(String),
    /// This HTTP path of the gateway.
    Http(String),
}

impl ResultLocation {
    /// Returns the URI or path.
    pub fn address(&self) -> &str {
        match self {
            Self::Resource(address) | Self::File(address) | Self::Http(address) => address,
        }
    }
}

/// The notice in place of the text that was left out.
#[derive(Clone, Copy, Debug)]
pub struct CutNotice<'a> {
    /// Cut of the text.
    pub cut: &'a TextCut,
    /// Place of the whole text.
    pub place: &'a ResultLocation,
    /// Time for which it is kept.
    pub keep: Duration,
}

impl CutNotice<'_> {
    /// Returns the notice, with empty lines that separate it from the tool's text.
    pub fn words(&self) -> String {
        let TextCut { bytes, gap, .. } = self.cut;
        let (first, last) = (gap.start, bytes - gap.end);
        let (left_out, next) = (gap.len(), gap.start);
        let read = match self.place {
            ResultLocation::Resource(uri) => {
                format!("read the resource {uri}?offset={next}; each page names the next one")
            }
            ResultLocation::File(path) => {
                format!("read the file {path}; what is left out begins at byte {next}")
            }
            ResultLocation::Http(path) => {
                format!("send `GET {path}?offset={next}` to this gateway; each page names the next one")
            }
        };
        let keep = span(self.keep);
        format!(
            "\n\n[Shortened by Steadfast. This text has {bytes} bytes. The first {first} and the last {last} are shown, and \
             {left_out} are left out here. To read them, {read}. The whole text is kept for {keep}.]\n\n"
        )
    }

    /// Returns the shown part of a text, with the notice in the gap; `None` if nothing of it is shown.
    pub fn apply(&self, part: &ShownPart, text: &str) -> Option<String> {
        let from = |from: usize| text.get(from..).unwrap_or_default();
        match part {
            ShownPart::Whole => Some(text.to_owned()),
            ShownPart::Gap { until, from: end } => {
                Some([text.get(..*until).unwrap_or_default(), &self.words(), from(*end)].concat())
            }
            ShownPart::End { from: end } => Some(from(*end).to_owned()),
            ShownPart::Nothing => None,
        }
    }
}

/// Formats a duration in its largest whole unit.
fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{} ms", span.as_millis()),
        _ if seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        _ if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

/// Metadata of a shortened text in the result envelope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShortenedText {
    /// Name of the stored text.
    pub id: String,
    /// Size of the whole text in bytes.
    pub bytes: usize,
    /// Offset of the first byte that was left out.
    pub gap_start: usize,
    /// Offset of the first byte after the gap.
    pub gap_end: usize,
    /// Place of the whole text: the URI of a resource, the path of a file, or a path of the HTTP API.
    pub read_at: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the shown parts of these texts, with a mark in the gap.
    fn shown(texts: &[&str], limit: usize) -> Option<Vec<String>> {
        let cut = cut(texts, limit)?;
        assert_eq!(cut.parts.len(), texts.len());
        let place = ResultLocation::File("/f".to_owned());
        let notice = CutNotice { cut: &cut, place: &place, keep: Duration::from_secs(60) };
        let words = notice.words();
        let parts = cut.parts.iter().zip(texts);
        Some(parts.filter_map(|(part, text)| Some(notice.apply(part, text)?.replace(&words, "|"))).collect())
    }

    #[test]
    fn a_text_over_the_limit_is_its_beginning_and_its_end_and_one_at_the_limit_is_whole() {
        for (texts, limit, is_shown) in [
            (&["0123456789abcdef"][..], 16, None),
            (&["0123456789abcdefg"], 16, Some(&["0123456789ab|defg"][..])),
            (&["0123456789abcdefghijklmnop"], 8, Some(&["012345|op"])),
            // A character is never cut: neither at the end of the beginning nor at the start of the end.
            (&["01234€6789abcdefghij"], 8, Some(&["01234|ij"])),
            (&["0123456789abcdefgh€"], 8, Some(&["012345|"])),
            (&["€€€€€"], 4, Some(&["€|"])),
            (&["", ""], 1, None),
            (&[""], 0, None),
        ] {
            let is_shown = is_shown.map(|parts| parts.iter().map(|&part| part.to_owned()).collect());
            assert_eq!(shown(texts, limit), is_shown, "{texts:?} {limit}");
        }
    }

    #[test]
    fn several_texts_have_one_limit_and_one_gap() {
        for (texts, is_shown) in [
            // With the line breaks between them, these have 21 bytes: the first 12 and the last 4 are shown.
            (&["0123", "56789abcdef", "hijk"][..], &["0123", "56789ab|", "hijk"][..]),
            (&["0123456789a", "cdef", "hijk"], &["0123456789a", "|", "hijk"]),
            (&["0123456789abcdef", "h", "jk"], &["0123456789ab|", "h", "jk"]),
            (&["0123456789abcd", "fg", "hijklm"], &["0123456789ab|", "jklm"]),
            (&["01", "", "4567890123456789", ""], &["01", "", "45678901|789", ""]),
        ] {
            assert_eq!(shown(texts, 16).unwrap(), is_shown, "{texts:?}");
        }
    }

    #[test]
    fn the_notice_gives_the_omitted_range_and_its_location() {
        let cut = cut(&["x".repeat(1000).as_str()], 100).unwrap();
        let notice_for = |place: ResultLocation| {
            CutNotice { cut: &cut, place: &place, keep: Duration::from_secs(3600) }.words().trim().to_owned()
        };
        let sizes = "[Shortened by Steadfast. This text has 1000 bytes. The first 75 and the last 25 are shown, and 900 are left \
                     out here. To read them, ";
        let lifetime = ". The whole text is kept for 1 h.]";
        for (place, read) in [
            (
                ResultLocation::Resource("steadfast://results/a".to_owned()),
                "read the resource steadfast://results/a?offset=75; each page names the next one",
            ),
            (
                ResultLocation::File("/s/a.txt".to_owned()),
                "read the file /s/a.txt; what is left out begins at byte 75",
            ),
            (
                ResultLocation::Http("/v1/results/a".to_owned()),
                "send `GET /v1/results/a?offset=75` to this gateway; each page names the next one",
            ),
        ] {
            assert_eq!(notice_for(place), format!("{sizes}{read}{lifetime}"));
        }
        for (millis, expected) in
            [(1, "1 ms"), (1500, "1 s"), (60_000, "1 min"), (90_000, "90 s"), (7_200_000, "2 h")]
        {
            assert_eq!(span(Duration::from_millis(millis)), expected);
        }
    }

    proptest! {
        /// For all texts: the shown parts and the gap are the whole text, and no more than the limit is shown.
        #[test]
        fn the_gap_and_the_shown_parts_are_the_whole_text(
            texts in prop::collection::vec("[a€𝄞]{0,12}", 1..5),
            limit in 0_usize..40,
        ) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let all = whole(&texts);
            prop_assert_eq!(bytes(&texts), all.len());
            match cut(&texts, limit) {
                None => prop_assert!(all.len() < limit + texts.len()),
                Some(cut) => {
                    prop_assert!(all.is_char_boundary(cut.gap.start) && all.is_char_boundary(cut.gap.end));
                    prop_assert!(all.len() - cut.gap.len() <= limit + texts.len());
                    let gaps = cut.parts.iter().filter(|part| matches!(part, ShownPart::Gap { .. })).count();
                    prop_assert_eq!(gaps, 1);
                }
            }
        }
    }
}
