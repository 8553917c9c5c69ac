//! Who may come in over HTTP, and what they are known by: the tokens of the configuration and of the environment, while it runs.

use std::collections::BTreeMap;
use std::env;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use steadfast::{Config, Role, Steadfast, Token};
use steadfast_api::Reach;
use steadfast_core::id::{ActorId, Digest};
use steadfast_gateway::{Connection, Listener};
use steadfast_mcp::http::front::{Holder, Principal, Tokens};
use tokio::sync::broadcast::error::RecvError;

use crate::admin_token;
use crate::failure::Failure;

/// The variable with a token of no tenant.
pub(crate) const VARIABLE: &str = "STEADFAST_TOKEN";

/// Who may come in.
#[derive(Clone, Default)]
pub(crate) struct Access {
    pub(crate) tokens: Tokens,
    /// Who asks without a token as long as no client has one; nobody where others than those of this machine can ask.
    pub(crate) local: Option<ActorId>,
    /// Those of the configuration that the tokens were taken from.
    configured: BTreeMap<ActorId, Token>,
}

impl Access {
    /// Whoever can reach us, on this machine.
    pub(crate) fn of_everybody_here() -> Self {
        Self { local: Some(Connection::of_parent().actor), ..Self::default() }
    }

    /// As configuration and environment say it. Others can reach an address that is not of this machine alone: that takes a
    /// token.
    pub(crate) fn to(address: SocketAddr, config: &Config) -> Result<Self, Failure> {
        let tokens = tokens_of(config).map_err(|why| Failure::Configuration(format!("error: {why}")))?;
        if !address.ip().is_loopback() && !tokens.have_clients() {
            return Err(Failure::Usage(format!(
                "{address} can be reached from other machines: give clients tokens in [tokens.NAME], set {VARIABLE} to a secret that they must send, or listen on 127.0.0.1"
            )));
        }
        let local = address.ip().is_loopback().then(|| Connection::of_parent().actor);
        Ok(Self { tokens, local, configured: config.tokens().clone() })
    }

    pub(crate) fn reach(&self) -> Reach {
        match self.local {
            Some(_) => Reach::ThisMachine,
            None => Reach::Others,
        }
    }

    /// Takes the tokens of the configuration as they change, for as long as it is let.
    pub(crate) async fn follow(mut self, steadfast: Steadfast, listeners: Vec<Arc<Listener>>) {
        let mut news = steadfast.config_news();
        loop {
            // Looked at before the first news too: it may have changed since it was opened.
            let config = steadfast.config();
            if *config.tokens() != self.configured {
                self.renew(&config, &listeners);
            }
            match news.recv().await {
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn renew(&mut self, config: &Config, listeners: &[Arc<Listener>]) {
        let before = mem::replace(&mut self.configured, config.tokens().clone());
        let tokens = match tokens_of(config) {
            Ok(tokens) => tokens,
            Err(why) => {
                tracing::error!(event = "tokens.kept", why, "the tokens stay as they were");
                return;
            }
        };
        self.tokens.replace(&tokens);
        let (has_clients, after) = (tokens.have_clients(), &self.configured);
        tracing::info!(event = "tokens.replaced", tokens = after.len());
        if self.local.is_none() && !has_clients {
            tracing::warn!(
                event = "tokens.none",
                "no client has a token any more, so that nobody can come in"
            );
        }
        // Otherwise whoever holds a stream open would go on hearing what is not for them any more.
        let is_out = |principal: &Principal| {
            let token = before.get(&principal.actor);
            let is_changed = token.is_some_and(|token| after.get(&principal.actor) != Some(token));
            let is_local = self.local.as_ref() == Some(&principal.actor);
            is_changed || (is_local && has_clients)
        };
        for listener in listeners {
            listener.turn_out(is_out);
        }
    }
}

/// The token that the environment gives to clients. Blanks at its ends get lost on the way.
pub(crate) fn given() -> Option<String> {
    let token = env::var(VARIABLE).ok()?.trim().to_owned();
    (!token.is_empty()).then_some(token)
}

/// Everybody who has a token.
fn tokens_of(config: &Config) -> Result<Tokens, String> {
    let tokens = Tokens::default();
    if let Some(token) = given() {
        // Another token is somebody else, who must not find what this one left.
        let name = format!("token:{}", Digest::of(token.as_bytes()).fingerprint());
        let actor = ActorId::new(name).map_err(|why| why.to_string())?;
        tokens.add(&token, Holder::Client(Principal::new(actor)));
    }
    for Token { name, secret, role } in config.tokens().values() {
        let holder = match role {
            Role::Client { tenant } => {
                Holder::Client(Principal { actor: name.clone(), tenant: tenant.clone() })
            }
            Role::Viewer => Holder::Viewer(name.clone()),
        };
        tokens.add(secret.expose(), holder);
    }
    // Whoever had it could steer.
    let admin = admin_token::find(config);
    match admin.and_then(|admin| tokens.holder(admin.expose().as_bytes())) {
        None => Ok(tokens),
        Some(Holder::Client(Principal { actor, .. }) | Holder::Viewer(actor)) => Err(format!(
            "the token of `{actor}` is the admin token: give it one of its own, or whoever has it steers the gateway"
        )),
    }
}
