//! The texts of a result, and the same result with replaced texts.

use std::borrow::Cow;

use serde_json::value::RawValue;
use steadfast_core::large_result::CutNotice;
use steadfast_core::output::ToolOutput;
use steadfast_json::RawJson;
use steadfast_json::scan;

use crate::json_parts::with_text;

/// The texts of an output, and their positions in it.
pub(super) struct ResultTexts<'o> {
    output: &'o ToolOutput,
    form: OutputForm<'o>,
}

/// The form of an output.
enum OutputForm<'o> {
    /// A JSON-RPC error of a server, with its message.
    Error(Cow<'o, str>),
    /// A plain text, as tools without an MCP server return it.
    Plain(Cow<'o, str>),
    /// The result of an MCP tool.
    Blocks(Vec<ContentBlock<'o>>),
}

/// A content block of a result.
struct ContentBlock<'o> {
    json: &'o str,
    text: Option<BlockText<'o>>,
}

/// The text of a block.
struct BlockText<'o> {
    text: Cow<'o, str>,
    /// True if it is the text of an embedded resource.
    is_embedded: bool,
}

/// The text of an embedded resource that lies completely in the gap.
const LEFT_OUT: &str = "[Left out: see the notice above.]";

impl<'o> ResultTexts<'o> {
    /// Returns the texts of an output, or `None` if it has none. Structured content, images and other bytes are no
    /// text.
    pub(super) fn of(output: &'o ToolOutput) -> Option<Self> {
        let content = output.content.as_str();
        let error = output.metadata.as_ref().filter(|_| content == "null").map(RawJson::as_str);
        let form = if let Some(message) =
            error.and_then(|error| scan::get(error, "message")).and_then(scan::string)
        {
            OutputForm::Error(message)
        } else if let Some(text) = scan::string(content) {
            OutputForm::Plain(text)
        } else {
            let blocks = serde_json::from_str::<Vec<&RawValue>>(scan::get(content, "content")?).ok()?;
            OutputForm::Blocks(blocks.into_iter().map(|block| ContentBlock::of(block.get())).collect())
        };
        Some(Self { output, form })
    }

    /// Returns all texts in order.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        let (one, blocks) = match &self.form {
            OutputForm::Error(text) | OutputForm::Plain(text) => (Some(&**text), &[][..]),
            OutputForm::Blocks(blocks) => (None, &**blocks),
        };
        one.into_iter().chain(blocks.iter().filter_map(|block| Some(&*block.text.as_ref()?.text)))
    }

    /// Returns the output with the texts that the notice leaves. Everything else is unchanged.
    pub(super) fn replaced(&self, notice: &CutNotice<'_>) -> ToolOutput {
        let ToolOutput { content, metadata } = self.output;
        let mut parts = notice.cut.parts.iter();
        let mut left = |text: &str| parts.next().and_then(|part| notice.apply(part, text));
        match &self.form {
            OutputForm::Error(text) => {
                let error = metadata.as_ref().map_or("{}", RawJson::as_str);
                let shortened = with_text(error, "message", |_| left(text).unwrap_or_default());
                let metadata = shortened.map(RawJson::from_trusted).or_else(|| metadata.clone());
                ToolOutput { content: content.clone(), metadata }
            }
            OutputForm::Plain(text) => {
                let content = RawJson::string(&left(text).unwrap_or_default());
                ToolOutput { content, metadata: metadata.clone() }
            }
            OutputForm::Blocks(blocks) => {
                let blocks = blocks.iter().filter_map(|block| match &block.text {
                    None => Some(block.json.to_owned()),
                    Some(BlockText { text, is_embedded: false }) => {
                        let text = left(text)?;
                        with_text(block.json, "text", |_| text)
                    }
                    Some(BlockText { text, is_embedded: true }) => {
                        let text = left(text).unwrap_or_else(|| LEFT_OUT.to_owned());
                        with_member(block.json, "resource", |resource| with_text(resource, "text", |_| text))
                    }
                });
                let blocks: Vec<String> = blocks.collect();
                let result = content.as_str();
                let content = with_member(result, "content", |_| Some(format!("[{}]", blocks.join(","))));
                let content = content.map_or_else(|| self.output.content.clone(), RawJson::from_trusted);
                ToolOutput { content, metadata: metadata.clone() }
            }
        }
    }
}

impl<'o> ContentBlock<'o> {
    fn of(json: &'o str) -> Self {
        let text = |object: &'o str| scan::get(object, "text").and_then(scan::string);
        let text = match scan::get(json, "type") {
            Some(r#""text""#) => text(json).map(|text| BlockText { text, is_embedded: false }),
            Some(r#""resource""#) => {
                scan::get(json, "resource").and_then(text).map(|text| BlockText { text, is_embedded: true })
            }
            Some(_) | None => None,
        };
        Self { json, text }
    }
}

/// Replaces the value of the member of this name. Returns `None` if there is no such member.
fn with_member(object: &str, name: &str, value: impl FnOnce(&str) -> Option<String>) -> Option<String> {
    let at = scan::members(object).find(|member| member.name == name)?.value;
    let value = value(object.get(at.clone())?)?;
    Some([object.get(..at.start)?, &value, object.get(at.end..)?].concat())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use steadfast_core::large_result::{ResultLocation, cut};

    use super::*;

    /// The output with a mark in place of the notice.
    fn shortened(content: &str, metadata: Option<&str>, limit: usize) -> Option<(String, Option<String>)> {
        let metadata = metadata.map(RawJson::from_trusted);
        let output = ToolOutput { content: RawJson::from_trusted(content), metadata };
        let texts = ResultTexts::of(&output)?;
        let cut = cut(&texts.all().collect::<Vec<_>>(), limit)?;
        let place = ResultLocation::File("/f".to_owned());
        let notice = CutNotice { cut: &cut, place: &place, keep: Duration::from_secs(60) };
        let words = RawJson::string(&notice.words());
        let words = words.as_str().trim_matches('"');
        let marked = |json: &RawJson| json.as_str().replace(words, "|");
        let ToolOutput { content, metadata } = texts.replaced(&notice);
        Some((marked(&content), metadata.as_ref().map(marked)))
    }

    #[test]
    fn only_text_is_replaced_and_everything_else_is_unchanged() {
        for (content, is) in [
            (
                r#"{ "content":[ {"type":"text","text":"0123456789\n","annotations":{"a":1.0}} ],"x":1.0}"#,
                r#"{ "content":[{"type":"text","text":"012345|9\n","annotations":{"a":1.0}}],"x":1.0}"#,
            ),
            (
                r#"{"content":[{"type":"image","data":"0123456789"},{"type":"text","text":"0123456789"}],"structuredContent":{"s":"0123456789"}}"#,
                r#"{"content":[{"type":"image","data":"0123456789"},{"type":"text","text":"012345|89"}],"structuredContent":{"s":"0123456789"}}"#,
            ),
            (
                r#"{"content":[{"type":"text","text":"0123456789"},{"type":"text","text":"b"},{"type":"audio","data":"x"},{"type":"text","text":"cdef"}],"isError":true}"#,
                r#"{"content":[{"type":"text","text":"012345|"},{"type":"audio","data":"x"},{"type":"text","text":"ef"}],"isError":true}"#,
            ),
            (
                r#"{"content":[{"type":"text","text":"0123456789"},{"type":"resource","resource":{"uri":"a:1","text":"in the gap"}},{"type":"resource","resource":{"text":"0123456789","uri":"a:2"}}]}"#,
                r#"{"content":[{"type":"text","text":"012345|"},{"type":"resource","resource":{"uri":"a:1","text":"[Left out: see the notice above.]"}},{"type":"resource","resource":{"text":"89","uri":"a:2"}}]}"#,
            ),
            (r#""0123456789""#, r#""012345|89""#),
        ] {
            assert_eq!(shortened(content, None, 8), Some((is.to_owned(), None)), "{content}");
        }
        let error = r#"{"code":-1,"message":"0123456789","data":"0123456789"}"#;
        let is = r#"{"code":-1,"message":"012345|89","data":"0123456789"}"#;
        assert_eq!(shortened("null", Some(error), 8), Some(("null".to_owned(), Some(is.to_owned()))));
    }

    #[test]
    fn content_other_than_text_is_never_shortened() {
        for (content, metadata) in [
            (r#"{"content":[{"type":"image","data":"0123456789"}]}"#, None),
            (r#"{"content":[{"type":"resource","resource":{"uri":"a:1","blob":"0123456789"}}]}"#, None),
            (r#"{"content":[{"type":"resource_link","uri":"0123456789"}]}"#, None),
            (r#"{"content":[{"type":"unheard of","text":"0123456789"}]}"#, None),
            (r#"{"content":"0123456789"}"#, None),
            (r#"{"structuredContent":{"text":"0123456789"}}"#, None),
            (r#"{"resultType":"input_required","requestState":"0123456789"}"#, None),
            (r#"["0123456789"]"#, None),
            ("12345678901", None),
            ("null", Some(r#"{"status":200}"#)),
            (r#"{"content":[{"type":"text","text":"01234567"}]}"#, None),
        ] {
            assert_eq!(shortened(content, metadata, 8), None, "{content}");
        }
    }
}
