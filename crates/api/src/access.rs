//! Who may ask for what.
//!
//! A page of a stranger can reach every port of this machine through its visitor's browser, so the name that is asked for and
//! the page that asks are checked before anything else. Beyond that there are three kinds of token: those of clients, with
//! which agents make calls, those of viewers, who see everything and do nothing, and that of the admin, which lets a person see
//! and steer. As long as no client has a token, which is only so on the loopback interface, whoever is on this machine may
//! call and look; steering needs the admin token even there, because agents run on this machine too.

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Uri};
use steadfast_core::id::ActorId;
use steadfast_mcp::http::front::{
    AdminToken, Follower, Holder, Names, Principal, Tokens, bearer, target_host,
};

use crate::problem::Problem;

/// Who may ask for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Whoever reaches us.
    Anyone,
    /// Whoever may make calls.
    Caller,
    /// Whoever may see what happens here.
    Looker,
    /// The person who runs this, and nobody else.
    Admin,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The person who runs this.
    Admin,
    /// One who has the token of a client.
    Client(Principal),
    /// One who has the token of a viewer.
    Viewer(ActorId),
    /// Somebody on this machine, where clients need no token.
    Local,
    /// Somebody without a token where one is needed.
    Stranger,
}

impl Caller {
    /// Returns the principal whose event streams count. Strangers follow none.
    pub(crate) fn follower(&self) -> Follower {
        match self {
            Self::Admin => Follower::Admin,
            Self::Client(principal) => Follower::Client(principal.clone()),
            Self::Viewer(name) => Follower::Viewer(name.clone()),
            Self::Local | Self::Stranger => Follower::Local,
        }
    }
}

/// What lets people in.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The names that we may be asked for by.
    pub names: Names,
    /// The tokens of clients and viewers.
    pub tokens: Tokens,
    /// Who can reach us at all.
    pub reach: Reach,
    /// The admin token; without one nobody can steer.
    pub admin: Option<AdminToken>,
    /// The user who runs this: the calls of those who need no token, and of the admin, are theirs unless an envelope names
    /// somebody else.
    pub user: Option<ActorId>,
}

/// Who makes the calls of a request that do not say it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sender(pub(crate) Option<ActorId>);

/// Who can reach us at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Those on this machine. They need no token as long as no client has one.
    #[default]
    ThisMachine,
    /// Others too.
    Others,
}

impl Access {
    /// Who asks for something that is for these.
    pub(crate) fn admit(&self, who: Who, uri: &Uri, headers: &HeaderMap) -> Result<Caller, Problem> {
        let caller = self.caller(uri, headers)?;
        who.admits(&caller)?;
        Ok(caller)
    }

    /// Returns true if a request has the admin token or that of a viewer.
    pub(crate) fn is_operating(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        matches!(self.caller(uri, headers), Ok(Caller::Admin | Caller::Viewer(_)))
    }

    /// Who makes the calls of this caller that do not say it.
    pub(crate) fn sender(&self, caller: &Caller) -> Sender {
        Sender(match caller {
            Caller::Client(principal) => Some(principal.actor.clone()),
            Caller::Admin | Caller::Local => self.user.clone(),
            Caller::Viewer(_) | Caller::Stranger => None,
        })
    }

    /// Who asks; refused where a page or a name is not ours, and where a token is given that is nobody's.
    fn caller(&self, uri: &Uri, headers: &HeaderMap) -> Result<Caller, Problem> {
        self.names.admit(uri, headers).map_err(|why| Problem::new(why.status, "forbidden", why.text))?;
        if !is_of_our_page(uri, headers) {
            return Err(Problem::forbidden("asked from a page that is not ours"));
        }
        let Some(given) = bearer(headers) else {
            let is_open = self.reach == Reach::ThisMachine && !self.tokens.have_clients();
            return Ok(if is_open { Caller::Local } else { Caller::Stranger });
        };
        if self.admin.as_ref().is_some_and(|token| token.is(given)) {
            return Ok(Caller::Admin);
        }
        match self.tokens.holder(given) {
            Some(Holder::Client(principal)) => Ok(Caller::Client(principal)),
            Some(Holder::Viewer(name)) => Ok(Caller::Viewer(name)),
            None => Err(Problem::unauthorized("this token is not known here")),
        }
    }
}

/// Whether it was asked by a program, or by the page that we show ourselves. Pages of other programs on this machine pass where
/// MCP clients are taken, which send what no page can send without asking first; here a page could call a tool blindly.
fn is_of_our_page(uri: &Uri, headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, rest)| rest);
    let host = target_host(uri).or_else(|| headers.get(HOST)?.to_str().ok());
    matches!((authority, host), (Some(authority), Some(host)) if authority.eq_ignore_ascii_case(host))
}

impl Who {
    /// Whether this one may.
    fn admits(self, caller: &Caller) -> Result<(), Problem> {
        match (self, caller) {
            (Self::Anyone, _)
            | (Self::Caller, Caller::Admin | Caller::Client(_) | Caller::Local)
            | (Self::Looker, Caller::Admin | Caller::Viewer(_) | Caller::Local)
            | (Self::Admin, Caller::Admin) => Ok(()),
            (Self::Admin, Caller::Client(_)) => {
                Err(Problem::forbidden("the token of a client makes calls; to steer takes the admin token"))
            }
            (Self::Admin, Caller::Viewer(_)) => Err(Problem::forbidden(
                "the token of a viewer changes nothing; to steer takes the admin token",
            )),
            (Self::Caller, Caller::Viewer(_)) => {
                Err(Problem::forbidden("the token of a viewer makes no calls; send that of a client"))
            }
            (Self::Admin, Caller::Local | Caller::Stranger) => Err(Problem::unauthorized(
                "send the admin token: `Authorization: Bearer …`; it lies in the folder of the state as `admin-token`",
            )),
            (Self::Caller, Caller::Stranger) => Err(Problem::unauthorized(
                "send the token of a client: `Authorization: Bearer …`; it is set in [tokens.NAME] or STEADFAST_TOKEN",
            )),
            (Self::Looker, Caller::Client(_)) => Err(Problem::forbidden(
                "the token of a client makes calls; to see what happens here takes that of a viewer or the admin token",
            )),
            (Self::Looker, Caller::Stranger) => Err(Problem::unauthorized(
                "send the token of a viewer, or the admin token, which lies in the state folder: `Authorization: Bearer …`",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::AUTHORIZATION;
    use http::{HeaderName, StatusCode};

    use super::*;

    fn access(with_clients: bool) -> Access {
        let tokens = Tokens::default();
        tokens.add("watcher", Holder::Viewer(ActorId::new("w").unwrap()));
        if with_clients {
            tokens.add("agent", Holder::Client(Principal::new(ActorId::new("a").unwrap())));
        }
        Access { tokens, admin: AdminToken::new("person"), ..Access::default() }
    }

    fn ask(access: &Access, who: Who, headers: &[(HeaderName, &str)]) -> Result<(), StatusCode> {
        let mut all = HeaderMap::new();
        all.insert(HOST, "127.0.0.1:8080".parse().unwrap());
        for (name, value) in headers {
            all.insert(name.clone(), value.parse().unwrap());
        }
        let admitted = access.admit(who, &Uri::from_static("/v1/status"), &all);
        admitted.map(drop).map_err(|why| why.status())
    }

    #[test]
    fn sf_7_looking_needs_the_admin_token_unless_everybody_here_is_trusted() {
        let (open, closed) = (access(false), access(true));
        assert_eq!(ask(&open, Who::Looker, &[]), Ok(()));
        assert_eq!(ask(&closed, Who::Looker, &[]), Err(StatusCode::UNAUTHORIZED));
        assert_eq!(ask(&closed, Who::Anyone, &[]), Ok(()));
        for access in [&open, &closed] {
            assert_eq!(ask(access, Who::Looker, &[(AUTHORIZATION, "Bearer person")]), Ok(()));
            let wrong = ask(access, Who::Anyone, &[(AUTHORIZATION, "Bearer perso")]);
            assert_eq!(wrong, Err(StatusCode::UNAUTHORIZED));
        }
        let client = ask(&closed, Who::Looker, &[(AUTHORIZATION, "Bearer agent")]);
        assert_eq!(client, Err(StatusCode::FORBIDDEN), "an agent does not see what others do");
    }

    #[test]
    fn sf_7_calling_needs_a_token_where_clients_have_one() {
        let (open, closed) = (access(false), access(true));
        assert_eq!(ask(&open, Who::Caller, &[]), Ok(()));
        assert_eq!(ask(&closed, Who::Caller, &[]), Err(StatusCode::UNAUTHORIZED));
        assert_eq!(ask(&closed, Who::Caller, &[(AUTHORIZATION, "Bearer agent")]), Ok(()));
        assert_eq!(ask(&closed, Who::Caller, &[(AUTHORIZATION, "Bearer person")]), Ok(()));
    }

    #[test]
    fn sf_7_steering_needs_the_admin_token_on_this_machine_too() {
        for access in [access(false), access(true)] {
            assert_eq!(ask(&access, Who::Admin, &[]), Err(StatusCode::UNAUTHORIZED));
            assert_eq!(ask(&access, Who::Admin, &[(AUTHORIZATION, "Bearer person")]), Ok(()));
        }
        let client = ask(&access(true), Who::Admin, &[(AUTHORIZATION, "Bearer agent")]);
        assert_eq!(client, Err(StatusCode::FORBIDDEN));
        let nobody = Access { admin: None, ..access(false) };
        assert_eq!(ask(&nobody, Who::Admin, &[(AUTHORIZATION, "Bearer ")]), Err(StatusCode::UNAUTHORIZED));
    }

    #[test]
    fn sf_7_a_viewer_sees_and_neither_calls_nor_steers() {
        let viewer = [(AUTHORIZATION, "Bearer watcher")];
        for access in [access(false), access(true)] {
            assert_eq!(ask(&access, Who::Looker, &viewer), Ok(()));
            assert_eq!(ask(&access, Who::Caller, &viewer), Err(StatusCode::FORBIDDEN));
            assert_eq!(ask(&access, Who::Admin, &viewer), Err(StatusCode::FORBIDDEN));
        }
    }

    #[test]
    fn sf_7_who_can_be_reached_by_others_is_open_to_nobody_without_a_token() {
        // The last token of a client was taken away while it ran.
        let reached = Access { reach: Reach::Others, ..access(false) };
        assert_eq!(ask(&reached, Who::Looker, &[]), Err(StatusCode::UNAUTHORIZED));
        assert_eq!(ask(&reached, Who::Caller, &[]), Err(StatusCode::UNAUTHORIZED));
    }

    #[test]
    fn sf_7_strange_pages_and_names_are_refused_before_tokens_are_looked_at() {
        let access = access(false);
        let evil = [(ORIGIN, "https://evil.example"), (AUTHORIZATION, "Bearer person")];
        assert_eq!(ask(&access, Who::Anyone, &evil), Err(StatusCode::FORBIDDEN));
        let guessing = [(ORIGIN, "https://evil.example"), (AUTHORIZATION, "Bearer perso")];
        assert_eq!(ask(&access, Who::Anyone, &guessing), Err(StatusCode::FORBIDDEN), "it learns nothing");
        assert_eq!(ask(&access, Who::Anyone, &[(HOST, "evil.example")]), Err(StatusCode::FORBIDDEN));
        assert_eq!(ask(&access, Who::Anyone, &[(ORIGIN, "http://127.0.0.1:8080")]), Ok(()), "our own page");
        for other in ["http://127.0.0.1:3000", "http://localhost:8080", "null"] {
            let page = ask(&access, Who::Caller, &[(ORIGIN, other)]);
            assert_eq!(page, Err(StatusCode::FORBIDDEN), "the page of another program here: {other}");
        }
    }

    #[test]
    fn sf_7_a_page_is_compared_with_the_authority_of_an_absolute_target() {
        let access = access(false);
        let ask = |target: &'static str, origin: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, "127.0.0.1:3000".parse().unwrap());
            headers.insert(ORIGIN, origin.parse().unwrap());
            access.admit(Who::Anyone, &Uri::from_static(target), &headers).is_ok()
        };
        assert!(ask("http://127.0.0.1:8080/v1/status", "http://127.0.0.1:8080"));
        assert!(!ask("http://127.0.0.1:8080/v1/status", "http://127.0.0.1:3000"));
        assert!(!ask("http://evil.example/v1/status", "http://evil.example"));
    }

    #[test]
    fn sf_6_tokens_are_not_shown() {
        let shown = format!("{:?}", access(true));
        assert!(["person", "agent", "watcher"].iter().all(|secret| !shown.contains(secret)), "{shown}");
    }
}
