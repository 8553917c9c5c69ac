//! Circuit breakers for operators: views, and changes that open or reset one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::Serialize;
use steadfast_core::Timestamp;
use steadfast_core::breaker::{BreakerCounts, BreakerDetails, BreakerTransition, CircuitBreaker, State};
use steadfast_core::id::{Domain, Namespace, TenantId, ToolName, ToolRef};
use steadfast_core::policy::{CallPolicy, EnforcementMode};
use steadfast_store::DocumentKind;

use crate::engine::api::{Engine, EngineInner};
use crate::observe::audit::{AuditAction, AuditChange, OperatorIdentity};
use crate::observe::listener::SystemEvent;
use crate::shared::cells::{DependencyKey, ToolKey};
use crate::shared::persistence::DirtyDocument;

/// The key of a circuit breaker of a tenant. Its text form can stand in a URL unchanged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BreakerKey {
    /// The breaker of a tool.
    Tool(ToolRef),
    /// The breaker of a dependency of several tools: a host, a server, or `*` for everything.
    Dependency(Arc<str>),
}

/// A name with its bytes [escaped](escape), as a regular expression.
macro_rules! name_pattern {
    () => {
        concat!(
            "([-0-9A-Za-z_.~*]",
            // One byte, without the plain characters.
            "|=(2[0-9BCF]|3[A-F]|40|5[B-E]|60|7[BCD])",
            // Two bytes. Below C2 A0 are control characters.
            "|=C2=[AB][0-9A-F]|=(C[3-9A-F]|D[0-9A-F])=[89AB][0-9A-F]",
            // Three bytes, without surrogates.
            "|=E0=[AB][0-9A-F]=[89AB][0-9A-F]|=ED=[89][0-9A-F]=[89AB][0-9A-F]",
            "|=E[1-9A-CEF](=[89AB][0-9A-F]){2}",
            // Four bytes, up to U+10FFFF.
            "|=F0=[9AB][0-9A-F](=[89AB][0-9A-F]){2}|=F4=8[0-9A-F](=[89AB][0-9A-F]){2}",
            "|=F[123](=[89AB][0-9A-F]){3}",
            "){1,256}"
        )
    };
}

/// A text that is not a valid breaker key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid breaker key: use tool:SERVER:TOOL or dependency:NAME, as in the list of breakers")]
pub struct InvalidBreakerKey;

/// Bytes that URLs may change are written as `=` and two digits, so that URL decoding does not change the name.
impl fmt::Display for BreakerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tool(tool) => {
                f.write_str("tool:")?;
                escape(f, tool.namespace.as_str())?;
                f.write_str(":")?;
                escape(f, tool.tool.as_str())
            }
            Self::Dependency(name) => {
                f.write_str("dependency:")?;
                escape(f, name)
            }
        }
    }
}

impl BreakerKey {
    /// Regular expression that matches exactly the valid keys: names of 1 to 256 characters, each plain, or as the
    /// bytes of its UTF-8 if it is neither plain nor a control character.
    pub const PATTERN: &str =
        concat!("^(tool:", name_pattern!(), ":", name_pattern!(), "|dependency:", name_pattern!(), ")$");
}

impl FromStr for BreakerKey {
    type Err = InvalidBreakerKey;

    fn from_str(text: &str) -> Result<Self, InvalidBreakerKey> {
        let mut parts = text.split(':');
        let key = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("tool"), Some(namespace), Some(tool), None) => {
                let namespace = Namespace::new(unescape(namespace)?).map_err(|_| InvalidBreakerKey)?;
                let tool = ToolName::new(unescape(tool)?).map_err(|_| InvalidBreakerKey)?;
                Self::Tool(ToolRef { namespace, tool })
            }
            (Some("dependency"), Some(name), None, None) => {
                let name = Domain::new(unescape(name)?).map_err(|_| InvalidBreakerKey)?;
                Self::Dependency(name.to_shared())
            }
            _ => return Err(InvalidBreakerKey),
        };
        // Keys have one text form each, so that two texts are never the same breaker.
        if key.to_string() == text { Ok(key) } else { Err(InvalidBreakerKey) }
    }
}

impl Serialize for BreakerKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for BreakerKey {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "BreakerKey".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": Self::PATTERN })
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~*".contains(&byte)
}

fn escape(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    text.bytes().try_for_each(|byte| {
        if is_plain(byte) { write!(f, "{}", char::from(byte)) } else { write!(f, "={byte:02X}") }
    })
}

fn unescape(text: &str) -> Result<String, InvalidBreakerKey> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'=' {
            let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
            let (Some(high), Some(low)) = (digit(bytes.next()), digit(bytes.next())) else {
                return Err(InvalidBreakerKey);
            };
            plain.push(u8::try_from(high * 16 + low).map_err(|_| InvalidBreakerKey)?);
        } else {
            plain.push(byte);
        }
    }
    String::from_utf8(plain).map_err(|_| InvalidBreakerKey)
}

/// A circuit breaker for views.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BreakerView {
    /// Its key, for changes.
    pub key: BreakerKey,
    /// The tool or dependency that it protects.
    pub about: BreakerSubject,
    /// Mode: off, shadow or enforce.
    pub mode: EnforcementMode,
    /// Its state.
    #[serde(flatten)]
    pub view: BreakerDetails,
}

/// The subject of a circuit breaker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum BreakerSubject {
    /// A tool.
    Tool {
        /// The server or group that it belongs to.
        namespace: Namespace,
        /// Its name.
        tool: ToolName,
    },
    /// A dependency of several tools.
    Dependency {
        /// Its name. `*` is everything.
        name: Arc<str>,
    },
}

/// A change of a circuit breaker by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerOverride {
    /// Force it open: refuse every call.
    Open {
        /// Time after which one call runs as a probe. Without it, the breaker stays open until it is reset.
        until: Option<Timestamp>,
    },
    /// Close it, and clear its counts.
    Reset,
}

/// Result of a change of a circuit breaker.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BreakerChange {
    /// The breaker after the change.
    pub breaker: BreakerView,
    /// Its state before the change.
    pub before: State,
    /// The transition, if its state changed.
    pub change: Option<BreakerTransition>,
    /// True if the breaker was known before. If not, its name may be mistyped, or the tool was never called.
    pub known: bool,
    /// Processes that the change applies to.
    pub reach: ChangeScope,
}

/// Processes that a change applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeScope {
    /// The change is stored and applies to all processes that share the store.
    Everywhere,
    /// The store failed. The change applies to this process, and to the others when the store recovers.
    OnlyHere,
}

impl Engine {
    /// Returns the breakers of a tenant, those of tools first. The stored ones are loaded before, so that the list
    /// includes breakers that this process has removed or never used.
    pub async fn breakers(&self, tenant: Option<&TenantId>) -> Vec<BreakerView> {
        let inner = &self.inner;
        inner.load_kind(DocumentKind::Breaker).await;
        let tenant = tenant.cloned();
        let tools = inner.machines.tools.all().into_iter().filter(|(key, _)| key.tenant == tenant);
        let tools = tools.map(|(key, _)| BreakerKey::Tool(key.tool));
        let dependencies = inner.machines.dependencies.all().into_iter();
        // Every server has an entry for its retry budget. Its breaker is listed only if callers use it.
        let used = dependencies.filter(|(key, cell)| {
            let breaker = cell.breaker.lock();
            key.tenant == tenant && (breaker.epoch() > 0 || breaker.counts() != BreakerCounts::default())
        });
        let dependencies = used.map(|(key, _)| BreakerKey::Dependency(key.name));
        tools.chain(dependencies).map(|key| inner.breaker_view(&tenant, key)).collect()
    }

    /// Opens or resets a breaker, also for other processes that share the store and for later ones. The stored state is
    /// loaded first. Attempts in flight no longer count for it. For operators.
    pub async fn update_breaker(
        &self,
        tenant: Option<&TenantId>,
        key: &BreakerKey,
        steer: BreakerOverride,
        by: &OperatorIdentity,
    ) -> BreakerChange {
        let inner = &self.inner;
        let owner = tenant.cloned();
        let marked = key.marked(&owner);
        let policy = inner.policy_of_breaker(&owner, key);
        let mut found = None;
        let change = |breaker: &mut CircuitBreaker| {
            let now = inner.clock.now();
            found.get_or_insert((breaker.state(&policy.breaker, now), breaker.epoch() > 0));
            match steer {
                BreakerOverride::Open { until } => breaker.force_open(until, now),
                BreakerOverride::Reset => breaker.reset(now),
            }
        };
        let was_here = inner.knows_breaker(&marked);
        let (change, stored) = inner.change_breaker(&marked, change).await;
        let reach = match stored {
            Ok(()) => ChangeScope::Everywhere,
            Err(error) => {
                inner.store_trouble(&*inner.store, &error);
                inner.marks.mark(marked);
                ChangeScope::OnlyHere
            }
        };
        let (before, changed_before) = found.unwrap_or((State::Closed, false));
        if let Some(change) = &change {
            inner.telemetry_hooks.outside(&SystemEvent::Breaker { tenant, key, change });
        }
        let breaker = inner.breaker_view(&owner, key.clone());
        let after = match steer {
            BreakerOverride::Open { until: Some(until) } => format!("FORCED_OPEN until {until}"),
            BreakerOverride::Open { until: None } => "FORCED_OPEN until reset".to_owned(),
            BreakerOverride::Reset => word(breaker.view.state).to_owned(),
        };
        let deed = match steer {
            BreakerOverride::Open { .. } => AuditAction::BreakerForcedOpen,
            BreakerOverride::Reset => AuditAction::BreakerReset,
        };
        let (on, before_word) = (key.to_string(), Some(word(before).to_owned()));
        inner.audited(by, AuditChange { deed, tenant, on, before: before_word, after: Some(after) }).await;
        BreakerChange { breaker, before, change, known: was_here || changed_before, reach }
    }
}

fn word(state: State) -> &'static str {
    match state {
        State::Closed => "CLOSED",
        State::Open => "OPEN",
        State::HalfOpen => "HALF_OPEN",
        State::ForcedOpen => "FORCED_OPEN",
    }
}

impl BreakerKey {
    fn marked(&self, tenant: &Option<TenantId>) -> DirtyDocument {
        let tenant = tenant.clone();
        match self {
            Self::Tool(tool) => DirtyDocument::Tool(ToolKey { tenant, tool: tool.clone() }),
            Self::Dependency(name) => DirtyDocument::Dependency(DependencyKey { tenant, name: name.clone() }),
        }
    }
}

impl EngineInner {
    fn breaker_view(&self, tenant: &Option<TenantId>, key: BreakerKey) -> BreakerView {
        let policy = self.policy_of_breaker(tenant, &key);
        let now = self.clock.now();
        let see = |breaker: &CircuitBreaker| breaker.view(&policy.breaker, now);
        let (view, about) = match &key {
            BreakerKey::Tool(tool) => {
                let cell = self.machines.tools.get(&ToolKey { tenant: tenant.clone(), tool: tool.clone() });
                let view = see(&cell.lock().breaker);
                (view, BreakerSubject::Tool { namespace: tool.namespace.clone(), tool: tool.tool.clone() })
            }
            BreakerKey::Dependency(name) => {
                let dependency = DependencyKey { tenant: tenant.clone(), name: name.clone() };
                let cell = self.machines.dependencies.get(&dependency);
                let view = see(&cell.breaker.lock());
                (view, BreakerSubject::Dependency { name: name.clone() })
            }
        };
        BreakerView { key, about, mode: policy.modes.breaker, view }
    }

    /// Returns the policy of the last call. Without one, returns that of a call with no further details.
    fn policy_of_breaker(&self, tenant: &Option<TenantId>, key: &BreakerKey) -> Arc<CallPolicy> {
        match key {
            BreakerKey::Tool(tool) => self.policy_of_tool(tenant, tool),
            BreakerKey::Dependency(name) => {
                let dependency = DependencyKey { tenant: tenant.clone(), name: name.clone() };
                let seen = self.machines.dependencies.find(&dependency);
                let seen = seen.and_then(|cell| cell.policy.lock().clone());
                seen.unwrap_or_else(|| self.policy_at(tenant, name))
            }
        }
    }

    fn knows_breaker(&self, marked: &DirtyDocument) -> bool {
        match marked {
            DirtyDocument::Tool(key) => self.machines.tools.find(key).is_some(),
            DirtyDocument::Dependency(key) => self.machines.dependencies.find(key).is_some(),
            DirtyDocument::Trust(_) | DirtyDocument::Session(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_every_url_and_means_one_breaker() {
        let tool = |namespace: &str, tool: &str| {
            let (namespace, tool) = (Namespace::new(namespace).unwrap(), ToolName::new(tool).unwrap());
            BreakerKey::Tool(ToolRef { namespace, tool })
        };
        for (key, text) in [
            (tool("bank", "pay"), "tool:bank:pay"),
            (tool("a:b", "c/d e%41=ä"), "tool:a=3Ab:c=2Fd=20e=2541=3D=C3=A4"),
            (BreakerKey::Dependency("*".into()), "dependency:*"),
            (BreakerKey::Dependency("api.example.com:443".into()), "dependency:api.example.com=3A443"),
        ] {
            assert_eq!(key.to_string(), text);
            assert_eq!(text.parse(), Ok(key));
        }
        for wrong in [
            "",
            "tool",
            "tool:a",
            "tool:a:b:c",
            "tool::b",
            "dependency:",
            "dependency:=2",
            "dependency:=GG",
            "dependency:=C3",
            "dependency:=61",
            "dependency:=3a",
            "dependency:a b",
            "server:a",
            "dependency:=0A",
        ] {
            assert_eq!(wrong.parse::<BreakerKey>(), Err(InvalidBreakerKey), "{wrong}");
        }
    }
}
