//! Lists in pages: how much of one is asked for, and how it goes on.
//!
//! Every list has an order that does not change while it is read: that of its rows' keys. A page begins behind the key that
//! the one before ended with, so that each row is seen once, whatever comes and goes meanwhile.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use steadfast_core::id::{Digest, Namespace, ToolName, ToolRef, tool_schema};
use steadfast_core::key::Key;
use steadfast_executor::BreakerKey;
use steadfast_store::Position;

/// The most rows that are given at once. It stands in the words of [`asks`] too.
const MOST: usize = 1000;
/// So many are given where nobody says how many.
const USUAL: usize = 100;

/// What may be asked of a list: its own filters, and how much of it.
macro_rules! asks {
    ($(#[$about:meta])* $name:ident by $cursor:ty { $($(#[$what:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$what])* $field: Option<$kind>,)*
            /// Those behind this place: `next` of the page before.
            after: Option<$crate::look::paging::After<$cursor>>,
            /// So many at the most, up to 1000; otherwise 100.
            #[schemars(range(min = 1, max = 1000))]
            limit: Option<usize>,
        }

        impl $name {
            /// How much of the list is meant, or what is wrong with that.
            fn page(&self) -> Result<$crate::look::paging::Page<$cursor>, String> {
                let after = self.after.as_ref().map($crate::look::paging::After::as_str);
                $crate::look::paging::Page::read(after, self.limit)
            }
        }
    };
}
pub(super) use asks;

/// A place in a list whose rows have such keys, as it was handed out. What is wrong with it is said when it is read.
#[derive(Deserialize)]
#[serde(transparent, bound = "")]
pub(crate) struct After<K> {
    text: String,
    #[serde(skip)]
    key: PhantomData<fn() -> K>,
}

impl<K> After<K> {
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

impl<K> Clone for After<K> {
    fn clone(&self) -> Self {
        Self { text: self.text.clone(), key: PhantomData }
    }
}

impl<K> fmt::Debug for After<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl<K: Cursor> JsonSchema for After<K> {
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

/// How much of a list is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page<K> {
    /// Only what stands behind this key.
    pub(super) after: Option<K>,
    /// The most rows.
    pub(super) limit: usize,
}

/// A part of a list.
#[derive(Clone, Debug)]
pub(super) struct Listed<T> {
    /// In the order of their keys.
    pub(super) rows: Vec<T>,
    /// What to ask for `after` next.
    pub(super) next: Option<String>,
}

impl<K: Cursor> Page<K> {
    /// What was asked for, or what is wrong with it.
    pub(super) fn read(after: Option<&str>, limit: Option<usize>) -> Result<Self, String> {
        let nowhere = |text| {
            format!("after={text} is no place in this list: send `next` of the page before, as it came")
        };
        let after = after.map(|text| K::read(text).ok_or_else(|| nowhere(text))).transpose()?;
        match limit.unwrap_or(USUAL) {
            limit if (1..=MOST).contains(&limit) => Ok(Self { after, limit }),
            limit => Err(format!("limit={limit}: from 1 to {MOST} can be had at once")),
        }
    }

    /// The rows of this page. No two rows may have one key.
    pub(super) fn of<T>(&self, rows: impl IntoIterator<Item = T>, key: impl Fn(&T) -> K) -> Listed<T> {
        let keyed = rows.into_iter().map(|row| (key(&row), row));
        let mut behind: Vec<_> =
            keyed.filter(|(key, _)| self.after.as_ref().is_none_or(|after| key > after)).collect();
        behind.sort_by(|(one, _), (other, _)| one.cmp(other));
        let is_more = behind.len() > self.limit;
        behind.truncate(self.limit);
        let next = behind.last().filter(|_| is_more).map(|(key, _)| key.text());
        Listed { rows: behind.into_iter().map(|(_, row)| row).collect(), next }
    }
}

/// What the rows of a list are ordered by, and found again by.
pub(crate) trait Cursor: Ord {
    /// What every place looks like, for the schema; nothing where any text is one.
    const PATTERN: Option<&str>;

    /// As it is handed out.
    fn text(&self) -> String;

    /// The same again, if it is one.
    fn read(text: &str) -> Option<Self>
    where
        Self: Sized;
}

/// A name: whatever text it is, something may stand behind it.
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

/// The newest has the highest number, and comes first.
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
impl Cursor for Reverse<Position> {
    const PATTERN: Option<&str> = Some("^[0-9]{1,20}-[0-9]{1,20}$");

    fn text(&self) -> String {
        self.0.to_string()
    }

    fn read(text: &str) -> Option<Self> {
        let (first, second) = text.split_once('-')?;
        Some(Reverse(Position(number(first)?, number(second)?)))
    }
}

/// A number of at most twenty digits. One that is too large for any row stands behind all of them.
fn number(text: &str) -> Option<u64> {
    let is_number = (1..=20).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

impl Cursor for Key {
    const PATTERN: Option<&str> = Some("^[0-9a-f]{64}$");

    fn text(&self) -> String {
        self.0.to_hex()
    }

    fn read(text: &str) -> Option<Self> {
        Digest::from_hex(text).map(Key)
    }
}

/// A tool as it is written in a query: `namespace/tool`.
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

/// A tool as it is written: `namespace/tool`.
pub(crate) fn tool(text: &str) -> Result<ToolRef, String> {
    let wrong = || format!("`{text}` names no tool: write it as namespace/tool");
    let (namespace, tool) = text.split_once('/').ok_or_else(wrong)?;
    Ok(ToolRef {
        namespace: Namespace::new(namespace).map_err(|_| wrong())?,
        tool: ToolName::new(tool).map_err(|_| wrong())?,
    })
}

/// Whether a row fits what was asked for; where nothing was, every row does.
pub(super) fn fits<T: PartialEq>(asked: Option<&T>, found: Option<&T>) -> bool {
    asked.is_none() || asked == found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(rows: &[&str], after: Option<&str>, limit: usize) -> (String, Option<String>) {
        let rows = rows.iter().map(|row| (*row).to_owned());
        let listed = Page::<String>::read(after, Some(limit)).unwrap().of(rows, String::clone);
        (listed.rows.concat(), listed.next)
    }

    #[test]
    fn a_page_goes_on_behind_the_last_one_whatever_comes_and_goes() {
        let more = |rows: &str, next: &str| (rows.to_owned(), Some(next.to_owned()));
        assert_eq!(page(&["d", "a", "c", "b"], None, 2), more("ab", "b"));
        assert_eq!(page(&["d", "a", "c"], Some("b"), 1), more("c", "c"), "the last one is gone");
        assert_eq!(page(&["d", "a", "bb", "c"], Some("b"), 2), more("bbc", "c"), "one came behind it");
        assert_eq!(page(&["d", "a", "c"], Some("c"), 1), ("d".to_owned(), None), "it ends there");
        assert_eq!(page(&["a"], Some("d"), 1), (String::new(), None));
    }

    #[test]
    fn limits_and_places_that_are_none_are_refused() {
        for limit in [0, MOST + 1] {
            let why = Page::<u64>::read(None, Some(limit)).unwrap_err();
            assert_eq!(why, format!("limit={limit}: from 1 to 1000 can be had at once"));
        }
        assert_eq!(Page::<u64>::read(None, None).unwrap().limit, USUAL);
        let why = Page::<u64>::read(Some("x"), None).unwrap_err();
        assert!(why.starts_with("after=x is no place in this list"), "{why}");
    }

    #[test]
    fn every_place_comes_back_as_it_was() {
        fn back<K: Cursor + fmt::Debug>(key: &K) {
            assert_eq!(K::read(&key.text()).as_ref(), Some(key));
        }
        back(&"bank/päy ü".to_owned());
        back(&7_u64);
        back(&Reverse(u64::MAX));
        back(&Reverse(Position(u64::MAX, 3)));
        back(&Key(Digest::of(b"a")));
        back(&BreakerKey::Tool(tool("bank/of/england").unwrap()));
    }
}
