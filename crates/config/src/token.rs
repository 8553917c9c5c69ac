//! Tokens of clients and viewers.

use std::sync::LazyLock;

use serde_json::{Value as Json, json};
use steadfast_core::id::{ActorId, TenantId};
use steadfast_redact::Redacted;

use crate::kind::{ExpandedText, OptionalKind, SettingKind, WordKind, expanded};
use crate::node::ConfigNode;
use crate::read_context::ReadContext;
use crate::setting::{Setting, setting};

/// A client or viewer with a token of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Name of the client or viewer.
    pub name: ActorId,
    /// Secret that it sends.
    pub secret: Redacted<String>,
    /// Permissions.
    pub role: TokenRole,
}

/// Permissions of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenRole {
    /// May make calls.
    Client {
        /// Tenant on whose behalf it calls. Data of one tenant is not visible to another.
        tenant: Option<TenantId>,
    },
    /// May see everything, but cannot call or change anything.
    Viewer,
}

/// The written settings of a token.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenDraft {
    secret: Option<Redacted<String>>,
    tenant: Option<TenantId>,
    is_viewer: bool,
}

/// Reason for which a draft is not a valid token, with advice.
pub(crate) struct InvalidToken {
    pub(crate) problem: &'static str,
    pub(crate) help: &'static str,
}

impl TokenDraft {
    pub(crate) fn finish(self, name: ActorId) -> Result<Token, InvalidToken> {
        let missing =
            InvalidToken { problem: "has no token", help: "add `token = \"${NAME_OF_A_VARIABLE}\"`" };
        let secret = self.secret.ok_or(missing)?;
        let role = match (self.is_viewer, self.tenant) {
            (false, tenant) => TokenRole::Client { tenant },
            (true, None) => TokenRole::Viewer,
            // The views are not separated by tenant.
            (true, Some(_)) => {
                return Err(InvalidToken {
                    problem: "is a viewer of one tenant, and viewers see everything",
                    help: "leave `tenant` out, or write `role = \"client\"`",
                });
            }
        };
        Ok(Token { name, secret, role })
    }
}

/// Returns the table of settings.
pub(crate) fn settings() -> &'static [Setting<TokenDraft>] {
    static SETTINGS: LazyLock<Vec<Setting<TokenDraft>>> = LazyLock::new(|| {
        vec![
            setting!(
                TokenDraft,
                "token",
                secret,
                TokenSecretKind,
                "The value that is sent as `Authorization: Bearer …`. Write `${NAME}` and keep it in the \
                 environment."
            ),
            setting!(
                TokenDraft,
                "tenant",
                tenant,
                OptionalKind(TenantKind),
                "The tenant on whose behalf its calls are made. Records, approvals, sessions, server processes, \
                 breakers, trust and scores of one tenant are not visible to another."
            ),
            setting!(
                TokenDraft,
                "role",
                is_viewer,
                WordKind(&[("client", false), ("viewer", true)]),
                "A client makes calls. A viewer sees all views, including `/metrics`, and can neither call nor \
                 change anything."
            ),
        ]
    });
    &SETTINGS
}

/// Minimum number of characters. A shorter token can be guessed.
const LEAST: usize = 16;
const MOST: usize = 1024;

/// A secret that fits into a header and cannot be guessed.
struct TokenSecretKind;

impl SettingKind<Option<Redacted<String>>> for TokenSecretKind {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<Option<Redacted<String>>> {
        let text = expanded(node, cx, &self.takes())?;
        let length = text.chars().count();
        let wrong = if text.is_empty() {
            "is empty".to_owned()
        } else if length < LEAST {
            format!("has {length} characters, which can be guessed")
        } else if length > MOST {
            format!("has {length} characters, more than a header should carry")
        } else if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            "has a blank or another sign that no header can carry".to_owned()
        } else {
            return Some(Some(Redacted::new(text)));
        };
        let help =
            format!("take {LEAST} to {MOST} letters, digits and signs, as `openssl rand -hex 32` makes them");
        cx.refuse(&node.place, format!("`{}` {wrong}", cx.name), help);
        None
    }

    fn show(&self, _: &Option<Redacted<String>>) -> String {
        format!("\"{}\"", steadfast_redact::MASK)
    }

    fn takes(&self) -> String {
        ExpandedText.takes()
    }

    fn schema(&self) -> Json {
        ExpandedText.schema()
    }
}

/// Name of a tenant.
struct TenantKind;

impl SettingKind<TenantId> for TenantKind {
    fn read(&self, node: &ConfigNode, cx: &mut ReadContext<'_>) -> Option<TenantId> {
        let tenant = node.text().and_then(|text| TenantId::new(text).ok());
        if tenant.is_none() {
            cx.wrong(node, &self.takes(), format!("write for example {}", cx.with("\"acme\"")));
        }
        tenant
    }

    fn show(&self, value: &TenantId) -> String {
        format!("{:?}", value.as_str())
    }

    fn takes(&self) -> String {
        "the name of a tenant".to_owned()
    }

    fn schema(&self) -> Json {
        json!({ "type": "string", "minLength": 1, "maxLength": 256 })
    }
}
