//! The part of Markdown that the checks need: code, links and anchors.

use std::collections::BTreeMap;

/// One Markdown file.
pub(super) struct MarkdownPage {
    /// Path from the root of the repository, with `/`.
    pub(super) path: String,
    /// Text with code and comments replaced by spaces. Every other character stays at its offset.
    pub(super) prose: String,
    /// Anchors from headings and HTML elements.
    pub(super) anchors: Vec<String>,
}

/// A link, or the source of an image.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MarkdownLink {
    pub(super) line: usize,
    pub(super) destination: String,
}

impl MarkdownPage {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let text = text.replace("\r\n", "\n");
        let blocks = without_blocks(&text);
        let prose = without_spans(&blocks);
        let mut anchors = heading_anchors(&blocks);
        anchors.extend(attributes(&prose, "id=\"").map(|(_, id)| id.to_owned()));
        anchors.extend(attributes(&prose, "name=\"").map(|(_, id)| id.to_owned()));
        Self { path: path.to_owned(), prose, anchors }
    }

    /// Returns a page that consists of prose alone.
    pub(super) fn plain(path: &str, prose: String) -> Self {
        Self { path: path.to_owned(), prose, anchors: Vec::new() }
    }

    /// Returns the line of an offset of `prose`, counted from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.prose.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
    }

    /// Returns inline links, images, link definitions, and `href` and `src` of HTML, in the order of the text.
    pub(super) fn links(&self) -> Vec<MarkdownLink> {
        let mut found: Vec<(usize, String)> = self
            .prose
            .match_indices("](")
            .filter_map(|(at, opening)| {
                let at = at + opening.len();
                Some((at, destination(self.prose.get(at..)?)?))
            })
            .collect();
        let mut offset = 0;
        for line in self.prose.split_inclusive('\n') {
            if let Some(defined) = definition(line) {
                found.push((offset, defined));
            }
            offset += line.len();
        }
        for attribute in ["href=\"", "src=\""] {
            found.extend(attributes(&self.prose, attribute).map(|(at, value)| (at, value.to_owned())));
        }
        found.sort();
        found.into_iter().map(|(at, destination)| MarkdownLink { line: self.line(at), destination }).collect()
    }
}

/// Replaces fenced code and HTML comments by spaces.
fn without_blocks(text: &str) -> String {
    let mut blanked = String::with_capacity(text.len());
    let mut fence: Option<String> = None;
    for line in text.split_inclusive('\n') {
        let begins = line.trim_start();
        let mark: String = match begins.chars().next() {
            Some(first @ ('`' | '~')) => begins.chars().take_while(|&other| other == first).collect(),
            _ => String::new(),
        };
        match &fence {
            None if mark.len() >= 3 => {
                fence = Some(mark);
                blank(&mut blanked, line);
            }
            None => blanked.push_str(line),
            Some(opening) => {
                if mark.starts_with(opening.as_str()) && begins.trim() == mark {
                    fence = None;
                }
                blank(&mut blanked, line);
            }
        }
    }
    between(&blanked, "<!--", "-->")
}

/// Replaces the text between two marks, and the marks, by spaces.
fn between(text: &str, opening: &str, closing: &str) -> String {
    let mut blanked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(opening) {
        let (before, marked) = rest.split_at(at);
        blanked.push_str(before);
        let length = marked.find(closing).map_or(marked.len(), |end| end + closing.len());
        let (comment, behind) = marked.split_at(length);
        blank(&mut blanked, comment);
        rest = behind;
    }
    blanked.push_str(rest);
    blanked
}

/// Replaces code spans by spaces. A span ends with its paragraph at the latest.
pub(super) fn without_spans(text: &str) -> String {
    let mut blanked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('`') {
        let (before, ticked) = rest.split_at(at);
        blanked.push_str(before);
        let ticks = ticked.len() - ticked.trim_start_matches('`').len();
        let (mark, after) = ticked.split_at(ticks);
        let paragraph = after.split("\n\n").next().unwrap_or(after);
        if let Some(length) = closing(paragraph, mark) {
            let (span, behind) = ticked.split_at(ticks + length);
            blank(&mut blanked, span);
            rest = behind;
        } else {
            blanked.push_str(mark);
            rest = after;
        }
    }
    blanked.push_str(rest);
    blanked
}

/// Returns the length up to and including the run of ticks that is as long as `mark`.
fn closing(text: &str, mark: &str) -> Option<usize> {
    let mut offset = 0;
    while let Some(at) = text.get(offset..)?.find('`') {
        let ticks = text.get(offset + at..)?.bytes().take_while(|&byte| byte == b'`').count();
        offset += at + ticks;
        if ticks == mark.len() {
            return Some(offset);
        }
    }
    None
}

/// Appends a space for each byte of a text. Line breaks stay.
pub(super) fn blank(blanked: &mut String, text: &str) {
    for character in text.chars() {
        if character == '\n' {
            blanked.push('\n');
        } else {
            blanked.extend(std::iter::repeat_n(' ', character.len_utf8()));
        }
    }
}

/// Returns the anchors of headings as GitHub makes them: equal ones are numbered.
fn heading_anchors(text: &str) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = Vec::new();
    for line in text.lines() {
        let Some(title) = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))
        else {
            continue;
        };
        let slug = slug(title);
        let count = counts.entry(slug.clone()).or_default();
        anchors.push(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    anchors
}

fn slug(title: &str) -> String {
    // Only the text of a link in a heading counts.
    let mut text = String::new();
    let mut rest = title;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, behind)| behind);
    }
    text.push_str(rest);
    text.trim()
        .chars()
        .flat_map(char::to_lowercase)
        .filter_map(|character| match character {
            ' ' => Some('-'),
            '-' | '_' => Some(character),
            _ => character.is_alphanumeric().then_some(character),
        })
        .collect()
}

/// Returns the destination of a link, from the text after its `](`.
fn destination(text: &str) -> Option<String> {
    let text = text.trim_start();
    if let Some(bracketed) = text.strip_prefix('<') {
        return bracketed.split_once('>').map(|(destination, _)| destination.to_owned());
    }
    let mut depth = 0_usize;
    let mut destination = String::new();
    for character in text.chars() {
        match character {
            '(' => depth += 1,
            ')' if depth == 0 => return Some(destination),
            ')' => depth -= 1,
            _ if character.is_whitespace() => return Some(destination),
            _ => {}
        }
        destination.push(character);
    }
    None
}

/// Returns the destination of a line such as `[label]: destination`. Footnotes have none.
fn definition(line: &str) -> Option<String> {
    let (label, destination) = line.trim_start().strip_prefix('[')?.split_once("]: ")?;
    (!label.starts_with('^') && !label.contains(['[', ']'])).then_some(())?;
    destination.split_whitespace().next().map(|found| found.trim_matches(['<', '>']).to_owned())
}

/// Returns the values of an attribute of HTML elements, with their positions.
fn attributes<'t>(text: &'t str, attribute: &'t str) -> impl Iterator<Item = (usize, &'t str)> {
    text.match_indices(attribute).filter_map(move |(at, _)| {
        let at = at + attribute.len();
        Some((at, text.get(at..)?.split_once('"')?.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destinations(text: &str) -> Vec<String> {
        MarkdownPage::new("a.md", text).links().into_iter().map(|link| link.destination).collect()
    }

    #[test]
    fn links_of_every_form_are_found_in_order() {
        let text = "[one](a.md) ![two](<b c.png>) [three](d_(e).md \"title\")\n\n[four]: f.md#g\n\n<a href=\"h.md\"><img src=\"i.png\"></a>\n[`code`](j.md)";
        assert_eq!(destinations(text), ["a.md", "b c.png", "d_(e).md", "f.md#g", "h.md", "i.png", "j.md"]);
    }

    #[test]
    fn code_and_comments_have_no_links_and_no_words() {
        let text = "`[a](b)` ``[`](c)`` <!-- [d](e)\n -->\n```sh\n[f](g)\n```\n~~~~\n```\n[h](i)\n~~~~\nend";
        let page = MarkdownPage::new("a.md", text);
        assert_eq!(page.links(), []);
        assert_eq!(page.prose.split_whitespace().collect::<Vec<_>>(), ["end"]);
        assert_eq!(page.prose.len(), text.len());
        assert_eq!(page.line(page.prose.find("end").unwrap()), 10);
    }

    #[test]
    fn a_single_backtick_hides_no_later_paragraph() {
        assert_eq!(destinations("a ` b\n\n[c](d) ` e"), ["d"]);
    }

    #[test]
    fn anchors_are_those_of_github() {
        let page = MarkdownPage::new(
            "a.md",
            "# The HTTP API\n## `trust` & more\n## A [link](x.md)\n### Same\n### Same\n```\n# no heading\n```\n<a id=\"mine\"></a>\n#hash",
        );
        assert_eq!(page.anchors, ["the-http-api", "trust--more", "a-link", "same", "same-1", "mine"]);
    }
}
