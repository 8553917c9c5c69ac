//! Output of the commands: data on standard output, messages on standard error. Coloured on a terminal, plain
//! otherwise.

use std::io::{self, IsTerminal, Write};
use std::pin::pin;
use std::time::{Duration, Instant};

/// Prints the data that a command was called for. A closed output is not an error.
pub(crate) fn print_data(text: &str) {
    let _ = writeln!(io::stdout(), "{}", text.trim_end());
}

/// Prints text without colours. The text may contain names from outside.
pub(crate) fn print_plain(text: &str) {
    print_data(&text.lines().map(clean).collect::<Vec<_>>().join("\n"));
}

/// Prints JSON.
pub(crate) fn print_json(value: &serde_json::Value) {
    print_data(&escaped(&format!("{value:#}")));
}

/// Prints one of several values as a line of JSON. Returns false if the output is closed.
pub(crate) fn print_json_line(value: &serde_json::Value) -> bool {
    print_line(&escaped(&value.to_string()))
}

/// Escapes the characters in JSON that would affect a terminal. JSON itself escapes only the ASCII ones.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '\n' => text.push(letter),
            // All of these are in the basic multilingual plane, and occur only in strings.
            _ if is_harmful(letter) => text.push_str(&format!("\\u{:04x}", u32::from(letter))),
            _ => text.push(letter),
        }
    }
    text
}

/// Prints a line of a continuing output. Returns false if the output is closed.
pub(crate) fn print_line(text: &str) -> bool {
    let mut out = io::stdout();
    writeln!(out, "{text}").and_then(|()| out.flush()).is_ok()
}

/// Prints a message to standard error. It may contain names from outside.
pub(crate) fn print_message(text: &str) {
    let _ = writeln!(io::stderr(), "{}", marked(text, ColourPainter::of(&io::stderr())));
}

/// Returns the text with its marks in colour, if the output is a terminal.
fn marked(text: &str, paint: ColourPainter) -> String {
    let line = |line: &str| -> String {
        let line = short(line, LONGEST);
        for (mark, style) in [("error:", TextStyle::Bad), ("note:", TextStyle::Warn)] {
            if let Some(rest) = line.strip_prefix(mark) {
                return format!("{}{rest}", paint.paint(style, mark));
            }
        }
        let margin = line.trim_start();
        let is_excerpt = margin.starts_with("-->") || margin.starts_with('|');
        paint.paint(if is_excerpt { TextStyle::Dim } else { TextStyle::Plain }, &line)
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Maximum length of a line of a message, in characters. Input may be longer than is readable.
const LONGEST: usize = 2_000;

/// Style of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextStyle {
    Plain,
    Bold,
    Dim,
    Good,
    Warn,
    Bad,
}

/// Setting that enables colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ColourPainter(pub(crate) bool);

impl ColourPainter {
    /// Returns the setting that fits the standard output.
    pub(crate) fn of_stdout() -> Self {
        Self::of(&io::stdout())
    }

    fn of(stream: &impl IsTerminal) -> Self {
        let is_disabled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(is_interactive(stream) && !is_disabled)
    }

    pub(crate) fn paint(self, style: TextStyle, text: &str) -> String {
        let code = match style {
            TextStyle::Plain => return text.to_owned(),
            TextStyle::Bold => "1",
            TextStyle::Dim => "2",
            TextStyle::Good => "32",
            TextStyle::Warn => "1;33",
            TextStyle::Bad => "1;31",
        };
        if self.0 && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Returns true if the stream is a terminal that can rewrite its line.
pub(crate) fn is_interactive(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns columns and lines of the terminal, if the standard output is one.
pub(crate) fn size() -> Option<(usize, usize)> {
    #[cfg(unix)]
    {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
        (size.ws_col > 0 && size.ws_row > 0).then(|| (size.ws_col.into(), size.ws_row.into()))
    }
    #[cfg(not(unix))]
    None
}

/// Returns text from outside without characters that would break a line, colour it, or turn its direction.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|letter| if is_harmful(letter) { ' ' } else { letter }).collect()
}

/// Returns true if the character affects a terminal instead of being visible on it.
fn is_harmful(letter: char) -> bool {
    let hidden = matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    letter.is_control() || hidden
}

/// Returns the beginning of a text that fits into so many columns.
pub(crate) fn short(text: &str, widest: usize) -> String {
    let line = clean(text);
    match line.char_indices().nth(widest) {
        Some(_) => {
            let beginning: String = line.chars().take(widest.saturating_sub(1)).collect();
            format!("{}…", beginning.trim_end())
        }
        None => line,
    }
}

/// Formats a duration in the short form for tables.
pub(crate) fn span(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// A table of rows under a head. A cell is cut at its maximum width and at the end of the terminal. Columns that do
/// not fit are left out.
pub(crate) struct TextTable {
    head: Vec<&'static str>,
    rows: Vec<Vec<(TextStyle, String)>>,
}

/// Maximum width of a cell with free text.
const WIDEST: usize = 60;
const GAP: usize = 2;
/// Minimum useful width of a cell.
const NARROWEST: usize = 4;

impl TextTable {
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [(TextStyle, String); N]) {
        self.rows.push(cells.into_iter().map(|(style, text)| (style, short(&text, WIDEST))).collect());
    }

    /// Removes this column if no row has a value in it.
    pub(crate) fn unless_empty(mut self, head: &str) -> Self {
        let Some(column) = self.head.iter().position(|one| *one == head) else { return self };
        if self.rows.iter().all(|row| row.get(column).is_none_or(|(_, text)| text.is_empty())) {
            self.head.remove(column);
            for row in self.rows.iter_mut().filter(|row| row.len() > column) {
                row.remove(column);
            }
        }
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the lines, each indented by so many spaces.
    pub(crate) fn draw(&self, paint: ColourPainter, indent: usize) -> String {
        self.within(size().map_or(usize::MAX, |(columns, _)| columns), paint, indent)
    }

    fn within(&self, room: usize, paint: ColourPainter, indent: usize) -> String {
        let width = |column: usize| {
            let cells =
                self.rows.iter().filter_map(|row| row.get(column)).map(|(_, text)| text.chars().count());
            let head = self.head.get(column).map_or(0, |head| head.len());
            cells.max().unwrap_or(0).max(head)
        };
        let widths: Vec<_> = (0..self.head.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = (TextStyle, &str)>| {
            let (mut line, mut used) = (" ".repeat(indent), indent);
            for ((style, text), width) in cells.zip(&widths) {
                // The first column is always shown.
                if used > indent && used + NARROWEST > room {
                    break;
                }
                let text = short(text, room.saturating_sub(used).max(NARROWEST));
                let fill = width.saturating_sub(text.chars().count()) + GAP;
                line.push_str(&paint.paint(style, &text));
                line.push_str(&" ".repeat(fill));
                used += width + GAP;
            }
            line.trim_end().to_owned()
        };
        let mut lines = vec![line(&mut self.head.iter().map(|head| (TextStyle::Dim, *head)))];
        lines.extend(
            self.rows.iter().map(|row| line(&mut row.iter().map(|(style, text)| (*style, text.as_str())))),
        );
        lines.join("\n")
    }
}

/// Waits for a future. If that takes long, a terminal shows a message about what it is waiting for.
pub(crate) async fn wait_with_spinner<T>(activity: &str, doing: impl Future<Output = T>) -> T {
    let mut doing = pin!(doing);
    let (began, mut line) = (Instant::now(), TransientLine::new());
    for turn in 0_usize.. {
        tokio::select! {
            biased;
            done = &mut doing => return done,
            () = tokio::time::sleep(TICK) => {}
        }
        if began.elapsed() >= LONG {
            let sign = SPINNER.get(turn % SPINNER.len()).unwrap_or(&' ');
            line.show(&format!("{sign} {activity} {:.0}s", began.elapsed().as_secs_f32()));
        }
    }
    doing.await
}

/// Delay before that message is shown.
const LONG: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);
const SPINNER: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// Progress of work with a known size. Shows nothing in the first second.
pub(crate) struct ProgressLine {
    line: TransientLine,
    began: Instant,
    drawn: Option<Instant>,
    total: usize,
}

impl ProgressLine {
    pub(crate) fn of(total: usize) -> Self {
        Self { line: TransientLine::new(), began: Instant::now(), drawn: None, total: total.max(1) }
    }

    pub(crate) fn at(&mut self, done: usize, unit: &str) {
        let fresh = self.drawn.is_some_and(|drawn| drawn.elapsed() < TICK);
        if self.began.elapsed() < LONG || fresh {
            return;
        }
        self.drawn = Some(Instant::now());
        let full = (done * BAR / self.total).min(BAR);
        let (bar, rest) = ("━".repeat(full), "─".repeat(BAR - full));
        self.line.show(&format!("{bar}{rest} {done}/{} {unit}", self.total));
    }
}

const BAR: usize = 30;

/// A line on the terminal that is erased when it is dropped.
struct TransientLine {
    is_visible: bool,
    shown: bool,
}

impl TransientLine {
    fn new() -> Self {
        Self { is_visible: is_interactive(&io::stderr()), shown: false }
    }

    fn show(&mut self, text: &str) {
        if self.is_visible {
            self.shown = true;
            let _ = write!(io::stderr(), "\r\x1b[K{text}").and_then(|()| io::stderr().flush());
        }
    }
}

impl Drop for TransientLine {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K").and_then(|()| io::stderr().flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sf_5_external_names_cannot_colour_or_reverse_a_line() {
        assert_eq!(clean("a\x1b[31mb\nc\u{202e}d"), "a [31mb c d");
        assert_eq!(
            marked("error: `\x1b[2J`\r\n  --> a\u{202e}b", ColourPainter(false)),
            "error: ` [2J`\n  --> a b"
        );
        let odd = serde_json::json!({ "a\u{9b}b": "c\u{202e}d\x1be" });
        assert_eq!(escaped(&format!("{odd:#}")), "{\n  \"a\\u009bb\": \"c\\u202ed\\u001be\"\n}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped(&odd.to_string())).unwrap(), odd);
        assert_eq!(short("abcdef", 4), "abc…");
        assert_eq!(short("abcd", 4), "abcd");
    }

    #[test]
    fn a_table_has_its_columns_under_each_other() {
        let mut table = TextTable::new(&["ID", "TOOL"]);
        table.row([(TextStyle::Plain, "1".to_owned()), (TextStyle::Bad, "bank/pay".to_owned())]);
        table.row([(TextStyle::Plain, "1234".to_owned()), (TextStyle::Plain, String::new())]);
        assert_eq!(table.draw(ColourPainter(false), 1), " ID    TOOL\n 1     bank/pay\n 1234");
        assert!(table.draw(ColourPainter(true), 1).contains("\x1b[1;31mbank/pay\x1b[0m"));
        let mut table = TextTable::new(&["ID", "TENANT", "TOOL"]);
        let of = |tenant: &str| ["7", tenant, "a"].map(|text| (TextStyle::Plain, text.to_owned()));
        table.row(of(""));
        let drawn = |table: TextTable| table.unless_empty("TENANT").draw(ColourPainter(false), 0);
        assert_eq!(drawn(table), "ID  TOOL\n7   a");
        let mut table = TextTable::new(&["ID", "TENANT", "TOOL"]);
        table.row(of("acme"));
        assert_eq!(drawn(table), "ID  TENANT  TOOL\n7   acme    a");
    }

    #[test]
    fn a_table_fits_the_width_of_its_terminal() {
        let mut table = TextTable::new(&["ID", "TOOL"]);
        table.row([(TextStyle::Plain, "1".to_owned()), (TextStyle::Bad, "bank/pay".to_owned())]);
        table.row([(TextStyle::Plain, "1234".to_owned()), (TextStyle::Plain, String::new())]);
        assert_eq!(table.within(11, ColourPainter(false), 1), " ID    TOOL\n 1     ban…\n 1234");
        assert_eq!(
            table.within(10, ColourPainter(false), 1),
            " ID\n 1\n 1234",
            "no line is wider than the terminal"
        );
    }
}
