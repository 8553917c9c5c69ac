//! Pagination of lists.
//!
//! Each list is ordered by the keys of its rows, which do not change. A page begins after the last key of the previous
//! page, so that each row is returned once, even if rows are added and removed in the meantime.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use steadfast_core::id::{Digest, Namespace, ToolName, ToolRef, tool_schema};
use steadfast_core::key::RecordKey;
use steadfast_executor::BreakerKey;
use steadfast_store::JournalPosition;

/// The maximum number of rows of a page. The text of [`list_query`] repeats it.
const MOST: usize = 1000;
/// The default number of rows of a page.
const DEFAULT_ROWS: usize = 100;

/// Defines the query parameters of a list: its filters, `after` and `limit`.
macro_rules! list_query {
    ($(#[$about:meta])* $name:ident by $cursor:ty { $($(#[$attr:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$attr])* $field: Option<$kind>,)*
            /// Only entries after this cursor: `next` of the previous page.
            after: Option<$crate::queries::paging::CursorText<$cursor>>,
            /// Maximum number of entries, up to 1000. The default is 100.
            #[schemars(range(min = 1, max = 1000))]
            limit: Option<usize>,
        }

        impl $name {
            /// Returns the requested page, or a description of the error.
            fn page(&self) -> Result<$crate::queries::paging::PageRequest<$cursor>, String> {
                let after = self.after.as_ref().map($crate::queries::paging::CursorText::as_str);
                $crate::queries::paging::PageRequest::read(after, self.limit)
            }
        }
    };
}
pub(super) use list_query;

/// A cursor of a list, as text. It is validated when the query is read.
#[derive(Deserialize)]
#[serde(transparent, bound = "")]
pub(crate) struct CursorText<K> {
    text: String,
    #[serde(skip)]
    key: PhantomData<fn() -> K>,
}

impl<K> CursorText<K> {
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

impl<K> Clone for CursorText<K> {
    fn clone(&self) -> Self {
        Self { text: self.text.clone(), key: PhantomData }
    }
}

impl<K> fmt::Debug for CursorText<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl<K: Cursor> JsonSchema for CursorText<K> {
    fn schema_name() -> Cow<'static, str> {
        "After".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        match K::PATTERN {
            Some(pattern) => json_schema!({ "type": "string", "pattern": pattern }),
            None => json_schema!({ "type": "string" }),
        }
    }
}

/// The requested page of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageRequest<K> {
    /// Only rows after this key.
    pub(super) after: Option<K>,
    /// The maximum number of rows.
    pub(super) limit: usize,
}

/// The rows of one page.
#[derive(Clone, Debug)]
pub(super) struct PageRows<T> {
    /// The rows in the order of their keys.
    pub(super) rows: Vec<T>,
    /// The cursor of the next page.
    pub(super) next: Option<String>,
}

impl<K: Cursor> PageRequest<K> {
    /// Parses the query parameters of a page.
    pub(super) fn read(after: Option<&str>, limit: Option<usize>) -> Result<Self, String> {
        let nowhere = |text| {
            format!("after={text} is not a cursor of this list: send `next` of the previous page unchanged")
        };
        let after = after.map(|text| K::read(text).ok_or_else(|| nowhere(text))).transpose()?;
        match limit.unwrap_or(DEFAULT_ROWS) {
            limit if (1..=MOST).contains(&limit) => Ok(Self { after, limit }),
            limit => Err(format!("limit={limit}: must be from 1 to {MOST}")),
        }
    }

    /// Returns the rows of this page. Keys must be unique.
    pub(super) fn of<T>(&self, rows: impl IntoIterator<Item = T>, key: impl Fn(&T) -> K) -> PageRows<T> {
        let keyed = rows.into_iter().map(|row| (key(&row), row));
        let mut remaining: Vec<_> =
            keyed.filter(|(key, _)| self.after.as_ref().is_none_or(|after| key > after)).collect();
        remaining.sort_by(|(one, _), (other, _)| one.cmp(other));
        let is_more = remaining.len() > self.limit;
        remaining.truncate(self.limit);
        let next = remaining.last().filter(|_| is_more).map(|(key, _)| key.text());
        PageRows { rows: remaining.into_iter().map(|(_, row)| row).collect(), next }
    }
}

/// The key by which the rows of a list are ordered and found again.
pub(crate) trait Cursor: Ord {
    /// The pattern of its text, for the schema. `None` if any text is valid.
    const PATTERN: Option<&str>;

    /// Returns the key as text.
    fn text(&self) -> String;

    /// Parses the text of a key.
    fn read(text: &str) -> Option<Self>
    where
        Self: Sized;
}

/// A name. Any text is valid, because rows may follow after it.
impl Cursor for String {
    const PATTERN: Option<&str> = None;

    fn text(&self) -> String {
        self.clone()
    }

    fn read(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl Cursor for BreakerKey {
    const PATTERN: Option<&str> = Some(Self::PATTERN);

    fn text(&self) -> String {
        self.to_string()
    }

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Cursor for u64 {
    const PATTERN: Option<&str> = Some("^[0-9]{1,20}$");

    fn text(&self) -> String {
        self.to_string()
    }

    fn read(text: &str) -> Option<Self> {
        number(text)
    }
}

/// The highest number is the newest, and comes first.
impl Cursor for Reverse<u64> {
    const PATTERN: Option<&str> = u64::PATTERN;

    fn text(&self) -> String {
        self.0.to_string()
    }

    fn read(text: &str) -> Option<Self> {
        number(text).map(Reverse)
    }
}

/// The newest comes first.
impl Cursor for Reverse<JournalPosition> {
    const PATTERN: Option<&str> = Some("^[0-9]{1,20}-[0-9]{1,20}$");

    fn text(&self) -> String {
        self.0.to_string()
    }

    fn read(text: &str) -> Option<Self> {
        let (first, second) = text.split_once('-')?;
        Some(Reverse(JournalPosition(number(first)?, number(second)?)))
    }
}

/// Parses a number of at most twenty digits. A number above the range comes after all rows.
fn number(text: &str) -> Option<u64> {
    let is_number = (1..=20).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

impl Cursor for RecordKey {
    const PATTERN: Option<&str> = Some("^[0-9a-f]{64}$");

    fn text(&self) -> String {
        self.0.to_hex()
    }

    fn read(text: &str) -> Option<Self> {
        Digest::from_hex(text).map(RecordKey)
    }
}

/// A tool in a query: `namespace/tool`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct NamedTool(pub ToolRef);

impl TryFrom<String> for NamedTool {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        tool(&text).map(Self)
    }
}

impl JsonSchema for NamedTool {
    fn schema_name() -> Cow<'static, str> {
        "NamedTool".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        tool_schema()
    }
}

/// Parses a tool: `namespace/tool`.
pub(crate) fn tool(text: &str) -> Result<ToolRef, String> {
    let wrong = || format!("`{text}` is not a tool name: write it as namespace/tool");
    let (namespace, tool) = text.split_once('/').ok_or_else(wrong)?;
    Ok(ToolRef {
        namespace: Namespace::new(namespace).map_err(|_| wrong())?,
        tool: ToolName::new(tool).map_err(|_| wrong())?,
    })
}

/// Returns true if a row matches a filter, or if there is no filter.
pub(super) fn fits<T: PartialEq>(filter: Option<&T>, found: Option<&T>) -> bool {
    filter.is_none() || filter == found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(rows: &[&str], after: Option<&str>, limit: usize) -> (String, Option<String>) {
        let rows = rows.iter().map(|row| (*row).to_owned());
        let listed = PageRequest::<String>::read(after, Some(limit)).unwrap().of(rows, String::clone);
        (listed.rows.concat(), listed.next)
    }

    #[test]
    fn a_page_continues_after_the_last_one_when_rows_change() {
        let more = |rows: &str, next: &str| (rows.to_owned(), Some(next.to_owned()));
        assert_eq!(page(&["d", "a", "c", "b"], None, 2), more("ab", "b"));
        assert_eq!(page(&["d", "a", "c"], Some("b"), 1), more("c", "c"), "the last one is gone");
        assert_eq!(page(&["d", "a", "bb", "c"], Some("b"), 2), more("bbc", "c"), "one came behind it");
        assert_eq!(page(&["d", "a", "c"], Some("c"), 1), ("d".to_owned(), None), "it ends there");
        assert_eq!(page(&["a"], Some("d"), 1), (String::new(), None));
    }

    #[test]
    fn invalid_limits_and_cursors_are_refused() {
        for limit in [0, MOST + 1] {
            let reason = PageRequest::<u64>::read(None, Some(limit)).unwrap_err();
            assert_eq!(reason, format!("limit={limit}: must be from 1 to 1000"));
        }
        assert_eq!(PageRequest::<u64>::read(None, None).unwrap().limit, DEFAULT_ROWS);
        let reason = PageRequest::<u64>::read(Some("x"), None).unwrap_err();
        assert!(reason.starts_with("after=x is not a cursor of this list"), "{reason}");
    }

    #[test]
    fn every_cursor_is_parsed_to_its_key() {
        fn back<K: Cursor + fmt::Debug>(key: &K) {
            assert_eq!(K::read(&key.text()).as_ref(), Some(key));
        }
        back(&"bank/päy ü".to_owned());
        back(&7_u64);
        back(&Reverse(u64::MAX));
        back(&Reverse(JournalPosition(u64::MAX, 3)));
        back(&RecordKey(Digest::of(b"a")));
        back(&BreakerKey::Tool(tool("bank/of/england").unwrap()));
    }
}
