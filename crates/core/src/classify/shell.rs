//! A parser for the commands within a command line, as a shell would run them.
//!
//! It covers only the parts of a shell that are needed to find the programs that a line would start, and their
//! arguments: quotes, operators, redirections, here-documents, comments and substitutions. Nothing is expanded. Quoted
//! text is never taken for a command. Substituted text always is.

/// The maximum length of a command line that is parsed.
const LONGEST: usize = 16 * 1024;
/// The maximum number of commands per line.
const MOST_COMMANDS: usize = 64;
/// The maximum depth of nested substitutions and nested shells.
const DEEPEST: usize = 6;

/// One simple command of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShellCommand {
    /// Words without their quotes, including assignments in front.
    pub(super) words: Vec<String>,
    /// Files that the output is written to.
    pub(super) writes: Vec<String>,
    /// True if the input is the output of the command before.
    pub(super) piped: bool,
    /// Positions of the commands whose output becomes a part of the words. They come before this command.
    pub(super) substituted: Vec<usize>,
    /// True if the command is the name of a function that is defined here.
    pub(super) defines: bool,
}

/// The program that a command runs, after assignments and wrappers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShellProgram<'c> {
    /// Name of the program, without the folder.
    pub(super) name: &'c str,
    /// Arguments of the program.
    pub(super) arguments: &'c [String],
    /// True if the program runs with the privileges of another user.
    pub(super) elevated: bool,
}

/// Returns the commands of a line.
pub(super) fn commands(line: &str) -> Vec<ShellCommand> {
    let mut found = Vec::new();
    read(super::cut(line, LONGEST), 0, &mut found);
    found
}

/// Returns the commands of a list of words: the command itself, and those that it passes to a shell.
pub(super) fn commands_of_words(words: Vec<String>) -> Vec<ShellCommand> {
    let mut found = Vec::new();
    push(ShellCommand { words, ..ShellCommand::default() }, 0, &mut found);
    found
}

impl ShellCommand {
    /// Returns the program after assignments and wrappers such as `sudo` and `env`.
    pub(super) fn program(&self) -> Option<ShellProgram<'_>> {
        let mut rest = &*self.words;
        let mut elevated = false;
        loop {
            let (first, arguments) = rest.split_first()?;
            if is_assignment(first) {
                rest = arguments;
                continue;
            }
            let name = base_name(first);
            let Some(wrapper) = WRAPPERS.iter().find(|wrapper| wrapper.name == name) else {
                return Some(ShellProgram { name, arguments, elevated });
            };
            let inner = wrapper.skip(arguments);
            if inner.is_empty() {
                // `sudo` or `env` alone are the program itself.
                return Some(ShellProgram { name, arguments, elevated });
            }
            elevated |= wrapper.elevates;
            rest = inner;
        }
    }
}

/// A program that only starts another one.
struct Wrapper {
    name: &'static str,
    /// Options whose value is the next word.
    with_value: &'static [&'static str],
    /// Number of its own words before the other program.
    operands: usize,
    elevates: bool,
}

const fn wrapper(name: &'static str, with_value: &'static [&'static str], operands: usize) -> Wrapper {
    Wrapper { name, with_value, operands, elevates: false }
}

static WRAPPERS: &[Wrapper] = &[
    Wrapper {
        name: "sudo",
        with_value: &[
            "-u", "-g", "-h", "-p", "-C", "-r", "-t", "-U", "-D", "-R", "-T", "--user", "--group", "--chdir",
        ],
        operands: 0,
        elevates: true,
    },
    Wrapper { name: "doas", with_value: &["-u", "-C", "-a"], operands: 0, elevates: true },
    wrapper("env", &["-u", "-C", "--unset", "--chdir"], 0),
    wrapper("nohup", &[], 0),
    wrapper("time", &["-f", "-o"], 0),
    wrapper("nice", &["-n"], 0),
    wrapper("ionice", &["-c", "-n"], 0),
    wrapper("setsid", &[], 0),
    wrapper("stdbuf", &["-i", "-o", "-e"], 0),
    wrapper("timeout", &["-s", "-k", "--signal", "--kill-after"], 1),
    wrapper("xargs", &["-I", "-n", "-P", "-L", "-d", "-a", "-E", "-s"], 0),
    wrapper("exec", &["-a"], 0),
    wrapper("command", &[], 0),
    wrapper("builtin", &[], 0),
    wrapper("busybox", &[], 0),
    // Keywords of the shell before a command.
    wrapper("if", &[], 0),
    wrapper("then", &[], 0),
    wrapper("else", &[], 0),
    wrapper("elif", &[], 0),
    wrapper("while", &[], 0),
    wrapper("until", &[], 0),
    wrapper("do", &[], 0),
    wrapper("!", &[], 0),
];

impl Wrapper {
    /// Returns the arguments that are left for the other program.
    fn skip<'w>(&self, arguments: &'w [String]) -> &'w [String] {
        let mut rest = arguments;
        let mut operands = self.operands;
        while let Some((first, after)) = rest.split_first() {
            rest = match first.as_str() {
                "--" => return after,
                option if self.with_value.contains(&option) => after.get(1..).unwrap_or_default(),
                option if option.starts_with('-') && option.len() > 1 => after,
                word if is_assignment(word) => after,
                _ if operands > 0 => {
                    operands -= 1;
                    after
                }
                _ => return rest,
            };
        }
        rest
    }
}

/// The shells that take a command line as an argument or on their input.
pub(super) const SHELLS: &[&str] = &["sh", "bash", "zsh", "dash", "ksh", "ash", "fish"];

/// Returns true for `NAME=value`, which sets a variable and starts nothing.
fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

fn base_name(word: &str) -> &str {
    word.rsplit(['/', '\\']).next().filter(|name| !name.is_empty()).unwrap_or(word)
}

/// Stores a command, and parses the line that it passes to a shell.
fn push(command: ShellCommand, depth: usize, found: &mut Vec<ShellCommand>) {
    if (command.words.is_empty() && command.writes.is_empty()) || found.len() >= MOST_COMMANDS {
        return;
    }
    let line = command.program().and_then(|program| match program.name {
        "eval" => Some(program.arguments.join(" ")),
        name if SHELLS.contains(&name) => {
            let at = program.arguments.iter().position(|word| is_command_option(word))?;
            program.arguments.get(at + 1).cloned()
        }
        _ => None,
    });
    found.push(command);
    if let Some(line) = line {
        read(super::cut(&line, LONGEST), depth + 1, found);
    }
}

/// Returns true for `-c`, also combined with other letters as in `-lc`.
pub(super) fn is_command_option(word: &str) -> bool {
    word.starts_with('-') && !word.starts_with("--") && word.ends_with('c')
}

/// Parses a line into the commands that it would start.
fn read(line: &str, depth: usize, found: &mut Vec<ShellCommand>) {
    if depth > DEEPEST {
        return;
    }
    let mut reader = ShellReader::new(line, depth, found);
    // An unmatched closing parenthesis does not hide the text behind it.
    while !reader.rest.is_empty() {
        reader.read();
        reader.skip(1);
    }
}

/// The characters that end an unquoted word.
const ENDS_OF_WORDS: [char; 11] = [' ', '\t', '\r', '\n', ';', '|', '&', '<', '>', '(', ')'];

struct ShellReader<'l, 'f> {
    rest: &'l str,
    depth: usize,
    found: &'f mut Vec<ShellCommand>,
    command: ShellCommand,
    /// End words of the here-documents whose text begins after the line.
    bodies: Vec<String>,
    /// Number of open parentheses.
    open: usize,
}

impl<'l, 'f> ShellReader<'l, 'f> {
    fn new(rest: &'l str, depth: usize, found: &'f mut Vec<ShellCommand>) -> Self {
        Self { rest, depth, found, command: ShellCommand::default(), bodies: Vec::new(), open: 0 }
    }

    /// Reads to the end, or to an unmatched closing parenthesis.
    fn read(&mut self) {
        while self.step() {}
        self.end_command(false);
    }

    /// Reads the next word or operator. Returns false if there is none.
    fn step(&mut self) -> bool {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r']);
        let Some(next) = self.rest.chars().next() else { return false };
        match next {
            '\n' => {
                self.skip(1);
                self.end_command(false);
                self.skip_bodies();
            }
            '(' if self.rest.starts_with("()") => {
                self.skip(2);
                self.command.defines = true;
                self.end_command(false);
            }
            ')' if self.open == 0 => return false,
            ';' | '(' | ')' => {
                match next {
                    '(' => self.open += 1,
                    ')' => self.open -= 1,
                    _ => {}
                }
                self.skip(1);
                self.end_command(false);
            }
            '|' => {
                let pipe = !self.rest.starts_with("||");
                self.skip(if pipe && !self.rest.starts_with("|&") { 1 } else { 2 });
                self.end_command(pipe);
            }
            '&' if self.rest.starts_with("&>") => self.redirect(),
            '&' => {
                self.skip(if self.rest.starts_with("&&") { 2 } else { 1 });
                self.end_command(false);
            }
            '#' => self.skip(self.rest.find('\n').unwrap_or(self.rest.len())),
            '<' | '>' => self.redirect(),
            '0'..='9' if is_numbered_redirect(self.rest) => {
                self.skip(self.rest.find(['<', '>']).unwrap_or(0));
                self.redirect();
            }
            '{' | '}' if self.rest.chars().nth(1).is_none_or(|after| ENDS_OF_WORDS.contains(&after)) => {
                self.skip(1);
                self.end_command(false);
            }
            _ => {
                let word = self.word();
                self.command.words.push(word);
            }
        }
        true
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn end_command(&mut self, pipe: bool) {
        let next = ShellCommand { piped: pipe, ..ShellCommand::default() };
        let command = std::mem::replace(&mut self.command, next);
        push(command, self.depth, self.found);
    }

    /// Reads a redirection. Only the target of output matters; text that a shell reads is a command.
    fn redirect(&mut self) {
        let operator =
            self.rest.find(|c| !matches!(c, '<' | '>' | '&' | '|' | '-')).unwrap_or(self.rest.len());
        let operator = self.rest.get(..operator).unwrap_or_default();
        self.skip(operator.len());
        if operator.ends_with('<') && self.rest.starts_with('(') && self.depth < DEEPEST {
            self.skip(1);
            self.substitute_parenthesised();
            return;
        }
        self.rest = self.rest.trim_start_matches([' ', '\t']);
        let target = self.word();
        if operator.starts_with("<<<") {
            return;
        }
        if operator.starts_with("<<") {
            self.bodies.push(target);
        } else if operator.contains('&') && target.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') {
            // `2>&1` joins two outputs. No file is written.
        } else if operator.contains('>') {
            self.command.writes.push(target);
        }
    }

    /// Skips here-documents, which are text, unless a shell reads them.
    fn skip_bodies(&mut self) {
        for end in std::mem::take(&mut self.bodies) {
            let mut body = String::new();
            while !self.rest.is_empty() {
                let (line, after) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
                if line.trim() == end {
                    self.rest = after;
                    break;
                }
                // `EOF)` ends the text and the substitution around it.
                let closing = line.trim_start().strip_prefix(&*end).filter(|behind| behind.starts_with(')'));
                if let Some(closing) = closing {
                    self.skip(line.len() - closing.len());
                    break;
                }
                self.rest = after;
                body.push_str(line);
                body.push('\n');
            }
            let reader = self.found.last().and_then(ShellCommand::program);
            let is_shell = reader.is_some_and(|program| {
                SHELLS.contains(&program.name)
                    && !program.arguments.iter().any(|word| is_command_option(word))
            });
            if is_shell {
                read(&body, self.depth + 1, self.found);
            }
        }
    }

    /// Reads one word, removes its quotes and reads its substitutions.
    fn word(&mut self) -> String {
        let mut word = String::new();
        let mut quoted = false;
        while let Some(next) = self.rest.chars().next() {
            match next {
                end if !quoted && ENDS_OF_WORDS.contains(&end) => break,
                '"' => {
                    quoted = !quoted;
                    self.skip(1);
                }
                '\'' if !quoted => {
                    self.skip(1);
                    let end = self.rest.find('\'').unwrap_or(self.rest.len());
                    word.push_str(self.rest.get(..end).unwrap_or_default());
                    self.skip(end + 1);
                }
                '\\' => {
                    self.skip(1);
                    if let Some(escaped) = self.rest.chars().next() {
                        self.skip(escaped.len_utf8());
                        if escaped != '\n' {
                            word.push(escaped);
                        }
                    }
                }
                '`' => {
                    self.skip(1);
                    let end = self.rest.find('`').unwrap_or(self.rest.len());
                    let inner = self.rest.get(..end).unwrap_or_default().to_owned();
                    self.skip(end + 1);
                    self.substitute(&inner);
                }
                '$' if self.rest.starts_with("$(") && self.depth < DEEPEST => {
                    self.skip(2);
                    self.substitute_parenthesised();
                }
                _ => {
                    word.push(next);
                    self.skip(next.len_utf8());
                }
            }
        }
        word
    }

    /// Reads a substituted line. The enclosing command runs its output.
    fn substitute(&mut self, line: &str) {
        let before = self.found.len();
        read(line, self.depth + 1, self.found);
        self.command.substituted.extend(before..self.found.len());
    }

    /// Reads a substitution up to the closing parenthesis. Not called below [`DEEPEST`]: a substitution there is read
    /// like the commands beside it.
    fn substitute_parenthesised(&mut self) {
        let before = self.found.len();
        let mut inner = ShellReader::new(self.rest, self.depth + 1, self.found);
        inner.read();
        self.rest = inner.rest;
        self.skip(1);
        self.command.substituted.extend(before..self.found.len());
    }
}

/// Returns true for `2>`, which is a redirection and not the word 2.
fn is_numbered_redirect(rest: &str) -> bool {
    rest.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with(['<', '>'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        commands(line).iter().map(|command| command.words.join(" ")).collect()
    }

    #[test]
    fn a_line_is_cut_into_the_commands_that_it_would_start() {
        for (line, expected) in [
            ("ls -l /tmp", &["ls -l /tmp"][..]),
            ("cd x && make; echo done || true &", &["cd x", "make", "echo done", "true"]),
            ("a | b |& c", &["a", "b", "c"]),
            ("echo 'rm -rf /' \"a; b\" c\\ d # rm -rf /", &["echo rm -rf / a; b c d"]),
            ("echo \"it's\" 'a'", &["echo it's a"]),
            ("echo \"$(rm -rf /)\" `id` x", &["rm -rf /", "id", "echo   x"]),
            ("echo \"$(echo \"it's :)\" ')' \\))\" && ls", &["echo it's :) ) )", "echo ", "ls"]),
            ("echo $( (a); b) c", &["a", "b", "echo  c"]),
            ("echo $(f() { a; }) c", &["f", "a", "echo  c"]),
            ("echo \"$(cat <<EOF\nIt's :)\nEOF\n)\"; ls", &["cat", "echo ", "ls"]),
            ("echo \"$(cat <<EOF\nIt's :)\n EOF)\"; ls", &["cat", "echo ", "ls"]),
            ("a) b; c) d", &["a", "b", "c", "d"]),
            ("cat > f <<'EOF'\nrm -rf /\nEOF\nls", &["cat", "ls"]),
            ("bash <<EOF\nrm -rf /\nEOF", &["bash", "rm -rf /"]),
            ("bash -lc 'rm -rf / && ls'", &["bash -lc rm -rf / && ls", "rm -rf /", "ls"]),
            ("(cd a; ls) 2>&1", &["cd a", "ls"]),
            ("{ ls; }", &["ls"]),
            ("{\tls; }|{ cat; }", &["ls", "cat"]),
            ("echo {a,b} }c", &["echo {a,b} }c"]),
            ("if true; then ls; fi", &["if true", "then ls", "fi"]),
            ("f() { ls; }", &["f", "ls"]),
            ("eval ls '-l'", &["eval ls -l", "ls -l"]),
            ("cat <(curl x)", &["curl x", "cat"]),
            ("echo \"unfinished", &["echo unfinished"]),
            ("echo $(unfinished", &["unfinished", "echo "]),
            ("", &[]),
            ("  \n # nothing\n", &[]),
        ] {
            assert_eq!(words(line), expected, "{line}");
        }
    }

    #[test]
    fn the_program_is_found_behind_its_launchers() {
        for (line, name, elevated) in [
            ("rm x", "rm", false),
            ("FOO=1 sudo rm x", "rm", true),
            ("sudo -u root -E /usr/bin/rm x", "rm", true),
            ("env -i A=b nice -n 5 timeout -k 1 30 cargo test", "cargo", false),
            ("xargs -n 1 rm -f", "rm", false),
            ("sudo", "sudo", false),
            ("then ! grep x", "grep", false),
            ("env -- -x rm", "-x", false),
            ("env A=b rm x", "rm", false),
            ("env A=b", "env", false),
            ("sudo A=b -u root rm x", "rm", true),
            ("env _A1=b rm x", "rm", false),
            ("env 1A=b rm x", "1A=b", false),
            ("env A-B=c rm x", "A-B=c", false),
            ("env - rm x", "-", false),
        ] {
            let found = commands(line);
            let program = found[0].program().unwrap();
            assert_eq!((program.name, program.elevated), (name, elevated), "{line}");
        }
        assert_eq!(commands("A=b")[0].program(), None);
    }

    #[test]
    fn only_a_shell_is_handed_a_line() {
        assert_eq!(words("bash -c 'ls'"), ["bash -c ls", "ls"]);
        assert_eq!(words("gcc -c 'main.c'"), ["gcc -c main.c"]);
        for option in ["-l", "--norc", "script.c"] {
            assert_eq!(words(&format!("bash {option} 'ls'")), [format!("bash {option} ls")]);
        }
    }

    #[test]
    fn a_list_of_words_is_a_command_and_the_commands_it_passes_to_a_shell() {
        let list = ["sh", "-lc", "ls; rm"].map(str::to_owned).to_vec();
        let found = commands_of_words(list).iter().map(|command| command.words.join(" ")).collect::<Vec<_>>();
        assert_eq!(found, ["sh -lc ls; rm", "ls", "rm"]);
    }

    #[test]
    fn a_function_that_is_defined_is_not_a_command_that_runs() {
        let found = commands("f() { ls; }; f");
        let defines: Vec<_> = found.iter().map(|command| command.defines).collect();
        assert_eq!(defines.first(), Some(&true), "{found:?}");
        assert!(defines.iter().skip(1).all(|defines| !defines), "{found:?}");
    }

    #[test]
    fn lines_within_lines_are_read_up_to_a_depth() {
        let evals = |depth: usize| format!("{}ls", "eval ".repeat(depth));
        let texts = |depth: usize| {
            (0..depth).fold("ls\n".to_owned(), |text, level| format!("sh <<E{level}\n{text}E{level}\n"))
        };
        for line in [evals, texts] {
            for (depth, found) in [(1, true), (DEEPEST, true), (DEEPEST + 1, false), (DEEPEST + 3, false)] {
                let words = words(&line(depth));
                assert_eq!(words.contains(&"ls".to_owned()), found, "{depth}: {words:?}");
            }
        }
    }

    #[test]
    fn backquotes_are_one_level_like_every_substitution() {
        for (depth, found) in [(DEEPEST - 1, true), (DEEPEST, false)] {
            let line = (0..depth)
                .fold("echo `ls`\n".to_owned(), |text, level| format!("sh <<E{level}\n{text}E{level}\n"));
            let words = words(&line);
            assert_eq!(words.contains(&"ls".to_owned()), found, "{depth}: {words:?}");
        }
    }

    #[test]
    fn substitutions_below_the_depth_are_read_like_the_commands_beside_them() {
        for (start, words) in [("a $(", "a $"), ("a <(", "a")] {
            let nested = |depth: usize| format!("{}ls{}; rm", start.repeat(depth), ")".repeat(depth));
            let deepest = commands(&nested(DEEPEST));
            let program = |command: &ShellCommand| command.words.join(" ");
            assert_eq!(deepest.first().map(program).as_deref(), Some("ls"), "{deepest:?}");
            assert_eq!(deepest.last().map(program).as_deref(), Some("rm"), "{deepest:?}");
            let deeper = commands(&nested(DEEPEST + 1));
            assert_eq!(deeper.iter().take(2).map(program).collect::<Vec<_>>(), [words, "ls"], "{deeper:?}");
            assert_eq!(deeper.last().map(program).as_deref(), Some("rm"), "{deeper:?}");
        }
    }

    #[test]
    fn only_a_pipe_passes_output_on() {
        let piped = |line: &str| commands(line).iter().map(|command| command.piped).collect::<Vec<_>>();
        assert_eq!(piped("a | b |& c || d; e"), [false, true, true, false, false]);
        assert_eq!(piped("{ a; }|b"), [false, true]);
    }

    #[test]
    fn redirected_output_is_recorded() {
        let found = commands("cat x > /dev/sda 2>/dev/null; dd &> log <in");
        assert_eq!(found[0].writes, ["/dev/sda", "/dev/null"]);
        assert_eq!(found[1].writes, ["log"]);
    }

    #[test]
    fn reading_is_bounded() {
        assert_eq!(commands(&"a;".repeat(9000)).len(), MOST_COMMANDS);
        let deep = format!("{}rm{}", "$(".repeat(5000), ")".repeat(5000));
        assert!(commands(&deep).len() <= MOST_COMMANDS);
        for (blanks, found) in [(16_000, true), (17_000, false)] {
            assert_eq!(!commands(&format!("{}ls", " ".repeat(blanks))).is_empty(), found, "{blanks}");
        }
        let shells = "bash -c ".repeat(500);
        assert!(commands(&shells).len() <= MOST_COMMANDS);
    }
}
