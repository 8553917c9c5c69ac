//! Rules over the message text of a fault.
//!
//! A message is searched only in the places where a program would put its error: in the first line (of a traceback: the
//! last), at its start and after each `: `. Every pattern is anchored there and allows only a few words of subject. So
//! error words inside a file, a log or a page within the message decide nothing. In a message that is a JSON object,
//! its own error member is read first.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use steadfast_json::{JsonDocument, JsonLimits};

use super::failure_fields;
use super::verdict::RuleVerdict;
use super::{
    AttemptFault, AttemptReach, FaultSource, FaultSourceKind, ModelMistake, Severity, TransportError, cut,
};
use crate::code::Code;

/// The maximum number of bytes of a message that are searched.
pub(super) const SEARCHED: usize = 4096;
/// The maximum number of bytes of a line that are searched.
const STATEMENT: usize = 400;
/// The maximum number of places of a line that are tried.
const CLAUSES: usize = 8;

/// The facts of a fault: its structure, and facts that its message states as clearly as structure.
#[derive(Debug)]
pub(super) struct FaultFacts<'f> {
    pub(super) kind: FaultSourceKind,
    pub(super) transport: Option<TransportError>,
    pub(super) exit: Option<i32>,
    pub(super) status: Option<u16>,
    pub(super) json_rpc: Option<i64>,
    pub(super) close: Option<u16>,
    /// First part of the message, unchanged.
    pub(super) head: &'f str,
    statement: Cow<'f, str>,
}

impl<'f> FaultFacts<'f> {
    pub(super) fn of(fault: &'f AttemptFault) -> Self {
        let head = cut(&fault.message, SEARCHED);
        let body = error_body(&fault.message);
        let (body_status, statement) = match body {
            Some((status, message)) => (status, Cow::Owned(statement(&message).into_owned())),
            None => (None, statement(head)),
        };
        let mut facts = Self {
            kind: fault.source.kind(),
            transport: None,
            exit: fault.exit,
            status: body_status,
            json_rpc: None,
            close: None,
            head,
            statement,
        };
        facts.status = facts.status.or_else(|| number_by(&facts, &*STATUSES));
        facts.json_rpc = number_by(&facts, std::slice::from_ref(&*RPC_CODE));
        facts.close = number_by(&facts, std::slice::from_ref(&*CLOSE_CODE));
        match fault.source {
            FaultSource::Transport { error, .. } => facts.transport = Some(error),
            FaultSource::Http { status } => facts.status = Some(status),
            FaultSource::JsonRpc { code } => facts.json_rpc = Some(code),
            FaultSource::WebSocket { code } => facts.close = Some(code),
            FaultSource::Exit { code, .. } => facts.exit = code,
            FaultSource::SessionLost
            | FaultSource::IsError
            | FaultSource::Tool
            | FaultSource::Timeout { .. }
            | FaultSource::Panic
            | FaultSource::BadAnswer
            | FaultSource::TooLarge => {}
        }
        facts
    }

    /// Returns the places at which a pattern may begin: the statement, and the text after each colon or dash in it.
    pub(super) fn clauses(&self) -> impl Iterator<Item = &str> {
        let text = &*self.statement;
        let after = |mark: &'static str| text.match_indices(mark).map(|(at, mark)| at + mark.len());
        let mut starts: Vec<usize> = std::iter::once(0).chain(after(": ")).chain(after(" - ")).collect();
        starts.sort_unstable();
        starts.into_iter().take(CLAUSES).filter_map(|start| text.get(start..))
    }
}

/// Returns the first rule that matches the message, and its verdict on an error thrown in place of a result.
pub(super) fn decide(facts: &FaultFacts<'_>) -> Option<(RuleVerdict, &'static str)> {
    RULES
        .iter()
        .find(|(_, pattern)| has_matching_clause(facts, pattern))
        .map(|(rule, _)| (rule.verdict, rule.name))
}

/// Returns the mistake of the model that the message names, if any.
pub(super) fn mistake(facts: &FaultFacts<'_>) -> Option<ModelMistake> {
    RULES
        .iter()
        .find_map(|(rule, pattern)| rule.verdict.mistake.filter(|_| has_matching_clause(facts, pattern)))
}

pub(super) fn mentions_lost_session(facts: &FaultFacts<'_>) -> bool {
    has_matching_clause(facts, &LOST_SESSION)
}

pub(super) fn mentions_certificate(facts: &FaultFacts<'_>) -> bool {
    has_matching_clause(facts, &CERTIFICATE)
}

fn has_matching_clause(facts: &FaultFacts<'_>, pattern: &Regex) -> bool {
    facts.clauses().any(|clause| pattern.is_match(clause))
}

fn number_by<N: std::str::FromStr>(facts: &FaultFacts<'_>, patterns: &[Regex]) -> Option<N> {
    patterns.iter().find_map(|pattern| {
        let found = facts.clauses().find_map(|clause| pattern.captures(clause))?;
        found.get(1)?.as_str().parse().ok()
    })
}

/// Returns the line in which a program would report the error.
fn statement(head: &str) -> Cow<'_, str> {
    let mut lines = head.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let Some(first) = lines.next() else { return Cow::Borrowed("") };
    let first = first.trim_start();
    if first.starts_with("Traceback (most recent call last)") {
        let last = lines.rfind(|line| !line.starts_with([' ', '\t']));
        return Cow::Borrowed(cut(last.unwrap_or(first), STATEMENT));
    }
    match lines.next() {
        // "Error executing command:" and similar. The error is on the next line.
        Some(next) if first.ends_with(':') => {
            Cow::Owned(format!("{} {}", cut(first, STATEMENT / 2), cut(next.trim_start(), STATEMENT / 2)))
        }
        _ => Cow::Borrowed(cut(first, STATEMENT)),
    }
}

/// Returns the status and text of a message that is a JSON object with an error in it.
fn error_body(message: &str) -> Option<(Option<u16>, String)> {
    let text = message.trim();
    if !text.starts_with('{') {
        return None;
    }
    let document = JsonDocument::parse(text.as_bytes(), JsonLimits { bytes: SEARCHED, depth: 16 }).ok()?;
    let found = failure_fields::failure_in(document.root())?;
    Some((found.http_status, found.message))
}

/// A rule over message texts. It contains texts that it must and must not match, and a test checks them.
struct TextRule {
    name: &'static str,
    pattern: &'static str,
    verdict: RuleVerdict,
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test of the rules"))]
    matches: &'static [&'static str],
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test of the rules"))]
    misses: &'static [&'static str],
}

/// The rules in order. The first that matches decides. Invalid calls come first because they are the most exact. Transient
/// failures come before words like "invalid" or "expected", which appear in many sentences.
static TABLE: &[TextRule] = &[
    TextRule {
        name: "text.unknown-tool",
        pattern: r#"^(?:unknown (?:tool|function)\b|no such tool\b|no tool (?:named|called)\b|no executor registered\b|tool not found\b|(?:the )?tool ["'`]?[a-z0-9_.:/@-]+["'`]? (?:(?:was |is |could )?not (?:be )?(?:found|known|registered)|does not exist|doesn't exist)(?:$|[.,:;!(]))"#,
        verdict: RuleVerdict::mistake(AttemptReach::Answered, ModelMistake::UnknownTool),
        matches: &[
            "Unknown tool: invalid_tool_name",
            "Tool raed not found",
            "Error: Tool \"x.y/z\" does not exist",
            "No executor registered for raed",
        ],
        misses: &["Tool output not found in cache", "the file is not found by this tool"],
    },
    TextRule {
        name: "text.arguments",
        pattern: r#"^(?:validation failed for tool\b|input validation error\b|missing required\b|missing parameters? for\b|\S+\(\) (?:missing \d+ required|got an unexpected keyword argument)\b|expected .+?(?:,| but) received\b|invalid arguments\b|invalid (?:tool |function |call ){0,2}(?:arguments|params|parameters)\b|\d+ validation errors? for\b|["'`]?[a-z0-9_.\[\]-]+["'`]? is a required property\b|must have required propert|required (?:parameter|argument|property|field)\b)"#,
        verdict: RuleVerdict::mistake(AttemptReach::Answered, ModelMistake::Arguments),
        matches: &[
            "Missing required parameter: path",
            "Missing parameters for edit: oldText",
            "Expected string but received undefined",
            "Expected string, received undefined",
            "Validation failed for tool \"read\":\n  - path: must have required properties path\n\nReceived arguments:\n{}",
            "MCP error -32602: Input validation error: Invalid arguments for tool x: []",
            "1 validation error for call[search]\nquery\n  Missing required argument",
            "read() missing 1 required positional argument: 'path'",
            "'path' is a required property",
        ],
        misses: &[
            "TypeError: x is undefined",
            "type mismatch error",
            "expected JSON but connection terminated",
            "function read(path) { throw 'Missing required parameter: path' }",
        ],
    },
    TextRule {
        name: "text.disk-full",
        pattern: r"^<w>{0,4}?(?:enospc\b|edquot\b|no space left on device\b|disk quota exceeded\b)",
        verdict: RuleVerdict::permanent(AttemptReach::Answered, Severity::ServerError),
        matches: &[
            "ENOSPC: no space left on device, write",
            "tar: x: Cannot write: No space left on device",
            "Disk quota exceeded",
        ],
        misses: &["Quota exceeded"],
    },
    TextRule {
        name: "text.rate-limit",
        pattern: r"^<w>{0,6}?(?:rate[- _]?limit(?:s|ed|ing)?(?:$|[.!,:(]| \(| (?:was |has been |is )?(?:exceeded|reached|hit|error)\b)|too many requests\b|(?:quota|rate limit) (?:was |has been |is )?(?:exceeded|exhausted|reached)\b|quota$|exceeded (?:your|the) (?:current )?(?:quota|rate limit)\b|throttl(?:ed|ing)\b|throttlingexception\b|resource[_ ]exhausted\b)",
        verdict: RuleVerdict::transient(
            AttemptReach::Answered,
            Severity::Transient,
            Code::UpstreamUnavailable,
        ),
        matches: &[
            "rate limit",
            "API rate limit exceeded for user 1",
            "Too Many Requests",
            "You exceeded your current quota, please check your plan",
            "You are being rate limited.",
            "ThrottlingException: slow down",
        ],
        misses: &["rate limit must be a positive number", "docs: the chapter about what a rate limit is"],
    },
    TextRule {
        name: "text.timeout",
        pattern: r"^<w>{0,8}?(?:timed[- ]out\b|time-?out(?:$|[.!,;:(]| \(| \d| (?:after|exceeded|error|expired|elapsed|reached|was reached|while|waiting|of|during|occurred)\b)|deadline[ _]exceeded\b|(?:net::)?err_timed_out\b)|^<w>{0,3}?(?:etimedout|esockettimedout|und_err_(?:connect|headers|body)_timeout)\b",
        verdict: RuleVerdict::transient(AttemptReach::Unknown, Severity::Timeout, Code::Timeout),
        matches: &[
            "timeout",
            "Connection timeout after 30s",
            "Tool timeout after 30s",
            "MCP error -32001: Request timed out",
            "The operation timed out.",
            "timeout of 1000ms exceeded",
            "Timeout 30000ms exceeded.",
            "context deadline exceeded",
            "connect ETIMEDOUT 10.0.0.1:443",
            "HTTPSConnectionPool(host='x', port=443): Read timed out. (read timeout=5)",
            "Traceback (most recent call last):\n  File \"x.py\", line 1, in <module>\n    get()\nTimeoutError: timed out",
        ],
        misses: &[
            "Invalid timeout value",
            "timeout must be a positive number",
            "1: fn main() {\n2: // the request timed out\n3: }",
        ],
    },
    TextRule {
        name: "text.connection",
        pattern: r"^<w>{0,6}?(?:connection (?:(?:was|has been|is|got|unexpectedly|forcibly|prematurely) ){0,2}(?:refused|reset|closed|terminated|lost|aborted|dropped|failed|broken|interrupted|error)\b|socket (?:hang up|closed)\b|fetch failed\b|network (?:error|failure|is unreachable|is down)\b|broken pipe\b|no route to host\b|no such host\b|name or service not known\b|temporary failure in name resolution\b|could not resolve host\b|server disconnected\b|other side closed\b|(?:net::)?err_(?:connection|network|internet|name)_[a-z_]+|(?:failed|unable) to connect\b|(?:could not|cannot) connect\b)|^<w>{0,3}?(?:econnrefused|econnreset|econnaborted|epipe|enotfound|eai_again|ehostunreach|enetunreach|enetdown|ehostdown|enotconn)\b",
        verdict: RuleVerdict::transient(
            AttemptReach::Unknown,
            Severity::Transient,
            Code::UpstreamUnavailable,
        ),
        matches: &[
            "connect ECONNREFUSED 127.0.0.1:5432",
            "request to http://x/ failed, reason: connect ECONNREFUSED 127.0.0.1:80",
            "read ECONNRESET",
            "write EPIPE",
            "getaddrinfo ENOTFOUND api.example.com",
            "getaddrinfo EAI_AGAIN api.example.com",
            "MCP error -32000: Connection closed",
            "expected JSON but connection terminated",
            "TypeError: fetch failed",
            "socket hang up",
            "page.goto: net::ERR_NAME_NOT_RESOLVED at http://x/",
            "dial tcp: lookup x.example: no such host",
            "ConnectionResetError: [Errno 104] Connection reset by peer",
        ],
        misses: &[
            "1 #define ECONNREFUSED 111 /* see also: nothing */\n2 ECONNRESET",
            "# Notes\n\nThe log says ECONNREFUSED.",
            "the database password is wrong",
        ],
    },
    TextRule {
        name: "text.busy",
        pattern: r"^<w>{0,6}?(?:(?:resource|server|model|system) (?:is )?(?:temporarily |currently )?(?:busy|overloaded|starting)\b|overloaded(?:_error)?(?:$|[.!:])|resource temporarily unavailable\b|please try again later\b|service restart\b)",
        verdict: RuleVerdict::transient(
            AttemptReach::Answered,
            Severity::Transient,
            Code::UpstreamUnavailable,
        ),
        matches: &[
            "Overloaded",
            "The server is busy",
            "fork: Resource temporarily unavailable",
            "service restart",
        ],
        misses: &["the overloaded operator + cannot be applied"],
    },
    TextRule {
        name: "text.server-error",
        pattern: r"^<w>{0,6}?(?:service (?:is )?(?:temporarily |currently )?unavailable\b|(?:temporarily|currently) unavailable\b|internal server error\b|bad gateway\b|upstream connect error\b)",
        verdict: RuleVerdict::transient(
            AttemptReach::Unknown,
            Severity::ServerError,
            Code::UpstreamUnavailable,
        ),
        matches: &["Service Unavailable", "Internal Server Error", "The service is temporarily unavailable"],
        misses: &["the page on how a service becomes unavailable"],
    },
    TextRule {
        name: "text.permission",
        pattern: r"^<w>{0,8}?(?:permission (?:was )?denied\b|access (?:is |was )?denied\b|(?:un|not )authorized\b|unauthenticated\b|forbidden\b|authentication (?:failed|failure|required|error)\b|(?:eacces|eperm)\b|operation not permitted\b|insufficient (?:permissions?|privileges?|scopes?)\b|invalid (?:api[- ]?key|(?:access |auth )?token|credentials?|password)\b|token (?:has |is )?expired\b)",
        verdict: RuleVerdict::permanent(AttemptReach::Answered, Severity::Permission),
        matches: &[
            "Permission denied",
            "cat: /protected/secrets: Permission denied",
            "Access denied",
            "Unauthorized",
            "EACCES: permission denied, open '/x'",
            "Invalid API key provided",
            "Authentication failed",
        ],
        misses: &["chapter one: how to ask for permission"],
    },
    TextRule {
        name: "text.not-found",
        pattern: r"^<w>{0,10}?(?:not found\b|(?:does not|doesn't|do not) exist\b|no such (?:file|directory|object|key|table|column|process|device|container|image|module|package|resource)\b|enoent\b|(?:cannot|could not|couldn't|unable to) find\b|no \S+ found\b)",
        verdict: RuleVerdict::permanent(AttemptReach::Answered, Severity::NotFound),
        matches: &[
            "File not found: /x",
            "The issue PROJ-1 does not exist",
            "ENOENT: no such file or directory, open '/x'",
            "spawn uvx ENOENT",
            "No session found with label: main",
            "bash: line 1: foo: command not found",
        ],
        misses: &["all of them were found"],
    },
    TextRule {
        name: "text.invalid",
        pattern: r"^(?:(?:invalid|malformed|illegal|missing|expected)\b|<w>{0,8}?(?:(?:is|are|was) (?:required|invalid|malformed|not (?:a )?valid)\b|required$|must (?:not )?be\b|(?:was|were) expected\b))",
        verdict: RuleVerdict::permanent(AttemptReach::Answered, Severity::InvalidInput),
        matches: &[
            "Invalid airport code: XYZ",
            "Invalid timeout value",
            "limit must be a positive number",
            "path is required",
            "Expected a number",
        ],
        misses: &["Unexpected end of the story", "a list of what one must do"],
    },
];

static RULES: LazyLock<Vec<(&'static TextRule, Regex)>> =
    LazyLock::new(|| TABLE.iter().map(|rule| (rule, built_in(rule.pattern))).collect());

/// A status in the message: after `HTTP` or `status`, before its reason phrase, or in parentheses at the end of a
/// clause.
static STATUSES: LazyLock<[Regex; 4]> = LazyLock::new(|| {
    [
        r"^[^:]+\((?:(?:http|status|code|error)(?: code)?:? ?)?([45]\d\d)\)[.!]?(?:$|:)",
        r"^<w>{0,6}?(?:http(?:/\d(?:\.\d)?)?|https?)(?: (?:status|error|response))?(?: code)?[ :=]{1,2}\(?([45]\d\d)\b",
        r"^<w>{0,6}?(?:(?:response |http )?status(?: code)?(?: was| is| of)?|error code)[ :=]{1,2}\(?([45]\d\d)\b",
        r#"^<w>{0,4}?["']?([45]\d\d) (?:bad request|unauthorized|payment required|forbidden|not found|method not allowed|not acceptable|request time-?out|conflict|gone|length required|precondition failed|payload too large|content too large|request entity too large|uri too long|unsupported media type|unprocessable (?:entity|content)|locked|too early|too many requests|internal server error|server error|client error|not implemented|bad gateway|service (?:temporarily )?unavailable|gateway time-?out|http version not supported)\b"#,
    ]
    .map(built_in)
});

/// A JSON-RPC code as the MCP SDKs write it before their messages.
static RPC_CODE: LazyLock<Regex> = LazyLock::new(|| built_in(r"^mcp error (-\d{3,6})\b"));

/// A WebSocket close code, as in `gateway closed (1012): service restart`.
static CLOSE_CODE: LazyLock<Regex> = LazyLock::new(|| {
    built_in(r"^<w>{0,4}?(?:closed|close|closure)(?: with)? (?:\((?:code )?|code[ :=]{1,2})([134]\d{3})\b")
});

/// Phrases by which servers report an unknown session, beside a code that may mean it.
static LOST_SESSION: LazyLock<Regex> = LazyLock::new(|| {
    built_in(
        r"^(?:(?:mcp )?session (?:(?:was|has|is) )?(?:not found|terminated|expired|closed|unknown)\b|(?:no valid|invalid|unknown|missing) (?:mcp )?session\b|(?:the )?server (?:is )?not initialized\b|not initialized\b)",
    )
});

static CERTIFICATE: LazyLock<Regex> = LazyLock::new(|| {
    built_in(
        r"^<w>{0,8}?(?:(?:self[- ]signed|invalid|untrusted|expired|peer)? ?certificate\b|cert_[a-z_]+|unknownissuer\b|unable_to_(?:get|verify)_[a-z_]+)",
    )
});

/// A word of the subject that may come before the main text of a pattern: a name, a number or a path, quoted or not,
/// but nothing that looks like code, a bullet or a comment. Patterns write it as `<w>`. Classes are ASCII and unbounded
/// (the statement is bounded) because counted Unicode classes compile to megabytes.
const WORD: &str = r#"(?:["'`(\[]?[/~.@]?[a-z0-9_][a-z0-9_.,'"`@/()\[\]=+-]* )"#;

/// The maximum memory of a built-in pattern.
const LARGEST_PATTERN: usize = 1 << 17;

#[expect(clippy::expect_used, reason = "a test compiles every pattern of this file")]
fn built_in(pattern: &str) -> Regex {
    regex::RegexBuilder::new(&pattern.replace("<w>", WORD))
        .case_insensitive(true)
        .size_limit(LARGEST_PATTERN)
        .build()
        .expect("the built-in patterns are valid regular expressions")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided_by(message: &str) -> Option<&'static str> {
        decide(&FaultFacts::of(&AttemptFault::new(FaultSource::Tool, message))).map(|(_, rule)| rule)
    }

    #[test]
    fn every_text_rule_matches_its_examples_and_misses_its_counter_examples() {
        for rule in TABLE {
            for example in rule.matches {
                assert_eq!(decided_by(example), Some(rule.name), "{example}");
            }
            for example in rule.misses {
                assert_ne!(decided_by(example), Some(rule.name), "{example}");
            }
        }
    }

    #[test]
    fn numbers_are_taken_only_from_where_a_program_states_them() {
        for (message, status) in [
            ("Authentication failed (401)", Some(401)),
            ("Rate limit exceeded (429).", Some(429)),
            ("Service unavailable (HTTP 503): retry", Some(503)),
            ("HTTP 503", Some(503)),
            ("HTTP/1.1 503 Service Unavailable", Some(503)),
            ("HTTP Error 404: Not Found", Some(404)),
            ("Request failed with status code 502", Some(502)),
            ("Unexpected status code: 500", Some(500)),
            ("Error code: 429 - {'error': 'slow down'}", Some(429)),
            ("503 Service Unavailable", Some(503)),
            ("404 Client Error: Not Found for url: http://x/", Some(404)),
            ("Client error '404 Not Found' for url 'http://x/'", Some(404)),
            ("{\"error\":\"boom\",\"status_code\":503}", Some(503)),
            ("{\"error\":{\"message\":\"HTTP 404\"}}", Some(404)),
            ("Query returned 500 rows", None),
            ("line 404 of the file", None),
            ("order 503 shipped", None),
            ("(see note 404) and read on", None),
            ("first line\nHTTP 503", None),
            ("Error executing command:\nHTTP 503", Some(503)),
            ("HTTP 200", None),
        ] {
            assert_eq!(
                FaultFacts::of(&AttemptFault::new(FaultSource::Tool, message)).status,
                status,
                "{message}"
            );
        }
        for (message, close) in [
            ("gateway closed (1012): service restart", Some(1012)),
            ("gateway closed (1006)", Some(1006)),
            ("Error: WebSocket closed with code 1013", Some(1013)),
            ("closed 1024 files", None),
        ] {
            assert_eq!(
                FaultFacts::of(&AttemptFault::new(FaultSource::Tool, message)).close,
                close,
                "{message}"
            );
        }
        let facts = AttemptFault::new(FaultSource::Tool, "McpError: MCP error -32602: no");
        assert_eq!(FaultFacts::of(&facts).json_rpc, Some(-32602));
    }
}
