//! The script, its requests and its replies. The head of `decide.lua` documents the protocol.

use redis::{Cmd, ErrorKind, ServerErrorKind, Value};
use steadfast_core::Timestamp;

use crate::link::CommandError;
use crate::value::ContentStamp;

/// The expected value of a key, for a decision to hold.
#[derive(Clone, Debug)]
pub(crate) enum ExpectedValue {
    /// The key is missing.
    Absent,
    /// The value has this stamp.
    Stamped(ContentStamp),
    /// The value is the name of a record, or begins with it.
    Names(String),
    /// Any value.
    Anything,
}

/// A decision for the server to execute.
#[derive(Debug)]
pub(crate) struct ScriptRequest {
    /// Without the marker.
    keys: Vec<String>,
    expects: Vec<ExpectedValue>,
    indexed: bool,
    ops: Vec<ScriptArgument>,
}

/// A part of the writes.
#[derive(Debug)]
enum ScriptArgument {
    Fixed(&'static str),
    Number(u64),
    Bytes(Vec<u8>),
    Text(String),
}

/// The period in which a decision may be executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionValidity {
    /// Time of the decision.
    pub(crate) from: Timestamp,
    /// Time after which it is void.
    pub(crate) until: Timestamp,
}

impl DecisionValidity {
    /// Never: the server only returns the current values.
    pub(crate) const NEVER: Self = Self { from: Timestamp::ZERO, until: Timestamp::ZERO };
}

/// A reply of the script.
#[derive(Debug)]
pub(crate) struct ScriptReply {
    /// Its time, in microseconds.
    pub(crate) micros: u64,
    pub(crate) body: DecisionOutcome,
}

/// The result of a decision.
#[derive(Debug)]
pub(crate) enum DecisionOutcome {
    /// The decision was executed.
    Done,
    /// The decision does not hold. Contains the current values, in the order of the reads, and then the value that
    /// the index points to if it is none of these.
    Found(Vec<Option<Vec<u8>>>),
    /// The store has another marker.
    OtherMarker,
}

/// The waiters that a write wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeTarget {
    /// None: waiters must continue to wait.
    NoOne,
    /// All waiters of the record.
    Waiters,
}

impl ScriptRequest {
    /// Creates a request that is based on this value, which is read first.
    pub(crate) fn new(own: String, expect: ExpectedValue) -> Self {
        let mut keys = Vec::with_capacity(4);
        keys.push(own);
        Self { keys, expects: vec![expect], indexed: false, ops: Vec::with_capacity(8) }
    }

    /// Adds the index of equal arguments. If used, it must be the second read.
    pub(crate) fn check_index(&mut self, key: String, expect: ExpectedValue) {
        self.indexed = true;
        self.check(key, expect);
    }

    /// Adds a read. All reads come before all writes.
    pub(crate) fn check(&mut self, key: String, expect: ExpectedValue) {
        self.keys.push(key);
        self.expects.push(expect);
    }

    /// Returns the names that are read, in order.
    pub(crate) fn looked(&self) -> &[String] {
        self.keys.get(..self.expects.len()).unwrap_or_default()
    }

    /// Writes a value. A lifetime of `None` means for ever.
    pub(crate) fn put(&mut self, key: &str, value: Vec<u8>, lifetime_ms: Option<u64>, wake: WakeTarget) {
        let (value, lifetime_ms) = (ScriptArgument::Bytes(value), lifetime(lifetime_ms));
        if self.keys.first().is_some_and(|own| own == key) {
            let operation = match wake {
                WakeTarget::NoOne => "own",
                WakeTarget::Waiters => "end",
            };
            self.ops.extend([ScriptArgument::Fixed(operation), value, lifetime_ms]);
            return;
        }
        let key = self.position(key);
        self.ops.extend([ScriptArgument::Fixed("put"), ScriptArgument::Number(key), value, lifetime_ms]);
        if wake == WakeTarget::Waiters {
            self.ops.extend([ScriptArgument::Fixed("wake"), ScriptArgument::Number(key)]);
        }
    }

    /// Extends the life of a value, if it is this one.
    pub(crate) fn keep(&mut self, key: &str, value: &str, lifetime_ms: Option<u64>) {
        let key = self.position(key);
        self.ops.extend([
            ScriptArgument::Fixed("keep"),
            ScriptArgument::Number(key),
            ScriptArgument::Text(value.to_owned()),
            lifetime(lifetime_ms),
        ]);
    }

    /// Replaces the first bytes of a value.
    pub(crate) fn head(&mut self, key: &str, bytes: &[u8]) {
        let key = self.position(key);
        self.ops.extend([
            ScriptArgument::Fixed("head"),
            ScriptArgument::Number(key),
            ScriptArgument::Bytes(bytes.to_vec()),
        ]);
    }

    /// Removes a value, and wakes its waiters.
    pub(crate) fn drop_key(&mut self, key: &str) {
        let key = self.position(key);
        self.ops.extend([ScriptArgument::Fixed("drop"), ScriptArgument::Number(key)]);
    }

    /// Removes a value if it is this one.
    pub(crate) fn drop_if(&mut self, key: &str, value: &str) {
        let key = self.position(key);
        self.ops.extend([
            ScriptArgument::Fixed("dropif"),
            ScriptArgument::Number(key),
            ScriptArgument::Text(value.to_owned()),
        ]);
    }

    /// Adds a member to a set.
    pub(crate) fn add(&mut self, key: &str, member: &str) {
        let key = self.position(key);
        self.ops.extend([
            ScriptArgument::Fixed("add"),
            ScriptArgument::Number(key),
            ScriptArgument::Text(member.to_owned()),
        ]);
    }

    /// Removes a member from a set.
    pub(crate) fn remove(&mut self, key: &str, member: &str) {
        let key = self.position(key);
        self.ops.extend([
            ScriptArgument::Fixed("remove"),
            ScriptArgument::Number(key),
            ScriptArgument::Text(member.to_owned()),
        ]);
    }

    /// Publishes a message.
    pub(crate) fn publish(&mut self, channel: String, message: String) {
        self.ops.extend([
            ScriptArgument::Fixed("tell"),
            ScriptArgument::Text(channel),
            ScriptArgument::Text(message),
        ]);
    }

    /// Returns the command: the script by digest or as text, with the name and the value of the marker.
    pub(crate) fn command(
        &self,
        script: &RedisScript,
        reference: ScriptReference,
        marker: (&str, &[u8]),
        valid: DecisionValidity,
    ) -> Cmd {
        let count = 8 + self.keys.len() + self.expects.len() + self.ops.len();
        let mut command = script.command(reference, count, 512 + self.size());
        command.arg(1 + self.keys.len()).arg(marker.0).arg(&self.keys).arg(marker.1);
        let micros = |at: Timestamp| at.as_millis().saturating_mul(1000);
        let looked = i64::try_from(self.expects.len()).unwrap_or(i64::MAX);
        command.arg(micros(valid.from)).arg(micros(valid.until)).arg(if self.indexed {
            -looked
        } else {
            looked
        });
        for expect in &self.expects {
            match expect {
                ExpectedValue::Absent => command.arg(""),
                ExpectedValue::Stamped(stamp) => command.arg(stamp.as_bytes()),
                ExpectedValue::Names(name) => command.arg(name),
                ExpectedValue::Anything => command.arg("*"),
            };
        }
        for word in &self.ops {
            match word {
                ScriptArgument::Fixed(text) => command.arg(text),
                ScriptArgument::Number(number) => command.arg(number),
                ScriptArgument::Bytes(bytes) => command.arg(bytes),
                ScriptArgument::Text(text) => command.arg(text),
            };
        }
        command
    }

    /// Returns the approximate size.
    fn size(&self) -> usize {
        let keys: usize = self.keys.iter().map(String::len).sum();
        let ops: usize = self
            .ops
            .iter()
            .map(|word| match word {
                ScriptArgument::Fixed(_) | ScriptArgument::Number(_) => 16,
                ScriptArgument::Bytes(bytes) => bytes.len(),
                ScriptArgument::Text(text) => text.len(),
            })
            .sum();
        keys + ops + self.expects.len() * 96
    }

    /// Returns the index of a key as Lua counts, after the marker.
    fn position(&mut self, key: &str) -> u64 {
        let position = self.keys.iter().position(|known| known == key).unwrap_or_else(|| {
            self.keys.push(key.to_owned());
            self.keys.len() - 1
        });
        u64::try_from(position + 2).unwrap_or(u64::MAX)
    }
}

/// The reference to the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptReference {
    /// By its digest, which is short, but the server may not have the script yet.
    Digest,
    /// By its text, which the server then caches.
    Text,
}

/// A script and its digest.
#[derive(Debug)]
pub(crate) struct RedisScript {
    text: &'static str,
    digest: String,
}

impl RedisScript {
    pub(crate) fn new(text: &'static str) -> Self {
        Self { text, digest: redis::Script::new(text).get_hash().to_owned() }
    }

    /// Returns the script that executes decisions.
    pub(crate) fn decisions() -> Self {
        Self::new(include_str!("decide.lua"))
    }

    /// Starts a command that runs the script, with this capacity in words and bytes.
    pub(crate) fn command(&self, reference: ScriptReference, words: usize, bytes: usize) -> Cmd {
        let (name, script) = match reference {
            ScriptReference::Digest => ("EVALSHA", self.digest.as_str()),
            ScriptReference::Text => ("EVAL", self.text),
        };
        let mut command = Cmd::with_capacity(words, bytes);
        command.arg(name).arg(script);
        command
    }
}

/// Returns true if the server does not have the script yet.
pub(crate) fn is_unknown_script(failed: &CommandError) -> bool {
    failed.error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Reads a reply, or returns `None` if it is not from the script.
#[expect(clippy::wildcard_enum_match_arm, reason = "the enums of the client library grow")]
pub(crate) fn read(value: Value) -> Option<ScriptReply> {
    match value {
        Value::Int(micros) if micros < 0 => {
            Some(ScriptReply { micros: micros.unsigned_abs(), body: DecisionOutcome::OtherMarker })
        }
        Value::Int(micros) => {
            Some(ScriptReply { micros: micros.unsigned_abs(), body: DecisionOutcome::Done })
        }
        Value::Array(parts) => {
            let mut parts = parts.into_iter();
            let Value::Int(micros) = parts.next()? else { return None };
            let values =
                parts.map(|value| if let Value::BulkString(bytes) = value { Some(bytes) } else { None });
            Some(ScriptReply {
                micros: u64::try_from(micros).ok()?,
                body: DecisionOutcome::Found(values.collect()),
            })
        }
        _ => None,
    }
}

fn lifetime(lifetime_ms: Option<u64>) -> ScriptArgument {
    // An expired value lives for a moment more, because zero would mean for ever.
    ScriptArgument::Number(lifetime_ms.map_or(0, |millis| millis.max(1)))
}

#[cfg(test)]
mod tests {
    use steadfast_testkit::redis::RedisServer;

    use super::*;

    #[tokio::test]
    async fn a_decision_is_carried_out_in_its_time_and_for_its_store_only() {
        let server = RedisServer::start();
        server.command(&["SET", "marker", "here"]);
        let client = redis::Client::open(server.url()).unwrap();
        let patience = Some(std::time::Duration::from_secs(120));
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(patience)
            .set_response_timeout(patience);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
        let time: (u64, u64) = redis::cmd("TIME").query_async(&mut connection).await.unwrap();
        let at = |seconds: i64| Timestamp::from_millis(1000 * time.0.saturating_add_signed(seconds));
        let script = RedisScript::decisions();
        let found =
            |body: &DecisionOutcome| matches!(body, DecisionOutcome::Found(values) if values[..] == [None]);
        for (marker, from, until, becomes) in [
            ("here", 3600, 7200, "the server's clock was set back since: not yet"),
            ("here", -7200, -3600, "its caller has gone: void"),
            ("there", -3600, 3600, "another store"),
            ("here", -3600, 3600, "done"),
        ] {
            let mut request = ScriptRequest::new("own".to_owned(), ExpectedValue::Absent);
            request.put("own", b"value".to_vec(), None, WakeTarget::NoOne);
            let valid = DecisionValidity { from: at(from), until: at(until) };
            let command =
                request.command(&script, ScriptReference::Text, ("marker", marker.as_bytes()), valid);
            let answer = read(command.query_async(&mut connection).await.unwrap()).unwrap();
            let done = match becomes {
                "done" => matches!(answer.body, DecisionOutcome::Done),
                "another store" => matches!(answer.body, DecisionOutcome::OtherMarker),
                _ => found(&answer.body),
            };
            assert!(done, "{becomes}: {:?}", answer.body);
            let stored = server.command(&["GET", "own"]);
            assert_eq!(stored == "value", becomes == "done", "{becomes}");
        }
    }
}
