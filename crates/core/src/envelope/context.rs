//! The context of a call from its envelope, bounded and redacted.

use super::CallEnvelope;
use crate::dedupe::CallContext;

impl CallEnvelope {
    /// Returns the context of the call, or `None` if it has none. The idempotency key is not included: it may
    /// contain user data and is stored only as a hash.
    pub fn context(&self) -> Option<CallContext> {
        let short = |text: &str| steadfast_redact::excerpt(text, LONGEST);
        let (target, control) = (&self.target, &self.control);
        let context = CallContext {
            agent_id: target.agent_id.as_ref().map(|id| steadfast_redact::text(id.as_str()).into_owned()),
            correlation_id: target.correlation_id.as_ref().map(|id| match self.trace_id() {
                // It looks like a secret, but is public: it is in every trace.
                Some(trace) if trace == id.as_str() => trace.to_owned(),
                Some(_) | None => steadfast_redact::text(id.as_str()).into_owned(),
            }),
            request_tags: control.request_tags.iter().take(MOST).map(|tag| short(tag)).collect(),
            from_hook: control.from_hook.as_deref().map(short),
            baggage_keys: self.trace.baggage.keys().take(MOST).map(|name| short(name)).collect(),
        };
        (context != CallContext::default()).then_some(context)
    }
}

/// The maximum stored bytes of a tag, a hook or a name.
const LONGEST: usize = 64;
/// The maximum number of stored tags and names.
const MOST: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::UnknownFieldPolicy;

    fn context(control: &str, trace: &str) -> Option<CallContext> {
        let text = format!(
            r#"{{"contractVersion":"1.1","requestId":"r","toolName":"pay","toolNamespace":"bank",
                "target":{{"sessionKey":"s","actorId":"ann"}},"payload":{{"version":"1.0","params":{{}}}},
                "control":{control},"trace":{trace}}}"#
        );
        CallEnvelope::parse(text.as_bytes(), UnknownFieldPolicy::Keep).unwrap().context()
    }

    #[test]
    fn the_context_of_a_call_is_bounded_and_without_secrets() {
        assert_eq!(context("{}", "{}"), None);
        let secret = "Bearer abcdefghijklmnopqrstuvwxyz0123456789";
        let tags: Vec<_> = (0..40).map(|number| format!("{number} {}", "x".repeat(99))).collect();
        let control = serde_json::json!({ "requestTags": tags, "fromHook": secret }).to_string();
        let trace = serde_json::json!({ "baggage": { "user": "value-of-ann" } }).to_string();
        let stored = context(&control, &trace).unwrap();
        assert_eq!(stored.request_tags.len(), MOST);
        assert!(stored.request_tags.iter().all(|tag| tag.len() <= LONGEST + '…'.len_utf8()), "{stored:?}");
        let text = serde_json::to_string(&stored).unwrap();
        assert!(!text.contains("abcdefghijklm") && !text.contains("value-of-ann"), "{text}");
        assert_eq!(stored.baggage_keys, ["user"]);
    }
}
