//! Authentication of HTTP clients by the tokens of the configuration and the environment, updated while the gateway
//! runs.

use std::collections::BTreeMap;
use std::env;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use steadfast::Steadfast;
use steadfast::config::{Config, Token, TokenRole};
use steadfast_api::NetworkReach;
use steadfast_core::id::{ActorId, Digest};
use steadfast_gateway::{ClientIdentity, Listener};
use steadfast_mcp::http::server::{BearerTokens, Principal, TokenHolder};
use tokio::sync::broadcast::error::RecvError;

use crate::support::admin_token;
use crate::support::failure::CommandFailure;

/// Variable with a token that belongs to no tenant.
pub(crate) const VARIABLE: &str = "STEADFAST_TOKEN";

/// Tokens that are accepted.
#[derive(Clone, Default)]
pub(crate) struct AcceptedTokens {
    pub(crate) tokens: BearerTokens,
    /// Identity of a caller without a token, as long as no client has one. `None` if other machines can connect.
    pub(crate) local: Option<ActorId>,
    /// Tokens of the configuration that the accepted tokens were made from.
    configured: BTreeMap<ActorId, Token>,
}

impl AcceptedTokens {
    /// Accepts every caller on this machine.
    pub(crate) fn all_local_callers() -> Self {
        Self { local: Some(ClientIdentity::of_parent().actor), ..Self::default() }
    }

    /// Returns the tokens of configuration and environment. An address that other machines can reach requires a token.
    pub(crate) fn to(address: SocketAddr, config: &Config) -> Result<Self, CommandFailure> {
        let tokens =
            tokens_of(config).map_err(|reason| CommandFailure::Configuration(format!("error: {reason}")))?;
        if !address.ip().is_loopback() && !tokens.have_clients() {
            return Err(CommandFailure::Usage(format!(
                "{address} can be reached from other machines: give clients tokens in [tokens.NAME], set {VARIABLE} to a secret that they must send, or listen on 127.0.0.1"
            )));
        }
        let local = address.ip().is_loopback().then(|| ClientIdentity::of_parent().actor);
        Ok(Self { tokens, local, configured: config.tokens().clone() })
    }

    pub(crate) fn reach(&self) -> NetworkReach {
        match self.local {
            Some(_) => NetworkReach::ThisMachine,
            None => NetworkReach::Others,
        }
    }

    /// Follows changes of the tokens in the configuration.
    pub(crate) async fn follow(mut self, steadfast: Steadfast, listeners: Vec<Arc<Listener>>) {
        let mut changes = steadfast.config_events();
        loop {
            // Checked before the first change too: the configuration may have changed since it was opened.
            let config = steadfast.config();
            if *config.tokens() != self.configured {
                self.renew(&config, &listeners);
            }
            match changes.recv().await {
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn renew(&mut self, config: &Config, listeners: &[Arc<Listener>]) {
        let before = mem::replace(&mut self.configured, config.tokens().clone());
        let tokens = match tokens_of(config) {
            Ok(tokens) => tokens,
            Err(reason) => {
                tracing::error!(event = "tokens.kept", "why" = reason, "the tokens are unchanged");
                return;
            }
        };
        self.tokens.replace(&tokens);
        let (has_clients, after) = (tokens.have_clients(), &self.configured);
        tracing::info!(event = "tokens.replaced", tokens = after.len());
        if self.local.is_none() && !has_clients {
            tracing::warn!(
                event = "tokens.none",
                "no client token is configured, so all requests are refused"
            );
        }
        // Otherwise the owner of a removed token would continue to receive events on an open stream.
        let is_out = |principal: &Principal| {
            let token = before.get(&principal.actor);
            let is_changed = token.is_some_and(|token| after.get(&principal.actor) != Some(token));
            let is_local = self.local.as_ref() == Some(&principal.actor);
            is_changed || (is_local && has_clients)
        };
        for listener in listeners {
            listener.end_sessions(is_out);
        }
    }
}

/// Returns the client token of the environment. Leading and trailing blanks are removed, because they get lost in
/// transit.
pub(crate) fn given() -> Option<String> {
    let token = env::var(VARIABLE).ok()?.trim().to_owned();
    (!token.is_empty()).then_some(token)
}

/// Returns all tokens.
fn tokens_of(config: &Config) -> Result<BearerTokens, String> {
    let tokens = BearerTokens::default();
    if let Some(token) = given() {
        // A different token is a different caller, which must not see the data of this one.
        let name = format!("token:{}", Digest::of(token.as_bytes()).fingerprint());
        let actor = ActorId::new(name).map_err(|reason| reason.to_string())?;
        tokens.add(&token, TokenHolder::Client(Principal::new(actor)));
    }
    for Token { name, secret, role } in config.tokens().values() {
        let holder = match role {
            TokenRole::Client { tenant } => {
                TokenHolder::Client(Principal { actor: name.clone(), tenant: tenant.clone() })
            }
            TokenRole::Viewer => TokenHolder::Viewer(name.clone()),
        };
        tokens.add(secret.expose(), holder);
    }
    // Its owner could use the admin API.
    let admin = admin_token::find(config);
    match admin.and_then(|admin| tokens.holder(admin.expose().as_bytes())) {
        None => Ok(tokens),
        Some(TokenHolder::Client(Principal { actor, .. }) | TokenHolder::Viewer(actor)) => Err(format!(
            "the token of `{actor}` is the admin token: give it a different token, because the admin token authorizes operators"
        )),
    }
}
