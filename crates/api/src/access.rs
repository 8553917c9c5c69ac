//! Who may ask for what.
//!
//! A page of a stranger can reach every port of this machine through its visitor's browser, so the name that is asked for and
//! the page that asks are checked before anything else. Beyond that there are two kinds of token: that of the clients, with
//! which agents make calls, and that of the admin, which lets a person see and steer. Where no token is set for clients,
//! which is only so on the loopback interface, whoever is on this machine may look; steering needs the admin token even
//! there, because agents run on this machine too.

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Uri};
use steadfast_mcp::http::front::{Names, Principal, Tokens, bearer};
use subtle::ConstantTimeEq as _;

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
    /// One who has the token of the clients.
    Client(Principal),
    /// Somebody on this machine, where clients need no token.
    Local,
    /// Somebody without a token where one is needed.
    Stranger,
}

/// What lets people in.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The names that we may be asked for by.
    pub names: Names,
    /// The tokens of clients. None means that whoever reaches us is on this machine.
    pub clients: Option<Tokens>,
    /// The admin token; without one nobody can steer.
    pub admin: Option<AdminToken>,
}

/// The secret of whoever runs this.
#[derive(Clone)]
pub struct AdminToken(Box<[u8]>);

impl AdminToken {
    /// This secret. An empty one is none.
    pub fn new(secret: &str) -> Option<Self> {
        (!secret.is_empty()).then(|| Self(secret.as_bytes().into()))
    }
}

/// Says nothing.
impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminToken")
    }
}

impl Access {
    /// Who asks; refused where a page or a name is not ours, and where a token is given that is nobody's.
    pub(crate) fn caller(&self, uri: &Uri, headers: &HeaderMap) -> Result<Caller, Problem> {
        self.names.admit(uri, headers).map_err(|why| Problem::new(why.status, "forbidden", why.text))?;
        if !is_of_our_page(headers) {
            return Err(Problem::forbidden("asked from a page that is not ours"));
        }
        let Some(given) = bearer(headers) else {
            return Ok(if self.clients.is_none() { Caller::Local } else { Caller::Stranger });
        };
        if self.admin.as_ref().is_some_and(|token| token.0.ct_eq(given).into()) {
            return Ok(Caller::Admin);
        }
        match self.clients.as_ref().and_then(|tokens| tokens.principal(given)) {
            Some(principal) => Ok(Caller::Client(principal.clone())),
            None => Err(Problem::unauthorized("this token is not known here")),
        }
    }
}

/// Whether it was asked by a program, or by the page that we show ourselves. Pages of other programs on this machine pass where
/// MCP clients are taken, which send what no page can send without asking first; here a page could call a tool blindly.
fn is_of_our_page(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, rest)| rest);
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    matches!((authority, host), (Some(authority), Some(host)) if authority.eq_ignore_ascii_case(host))
}

impl Who {
    /// Whether this one may.
    pub(crate) fn admits(self, caller: &Caller) -> Result<(), Problem> {
        match (self, caller) {
            (Self::Anyone, _)
            | (Self::Caller, Caller::Admin | Caller::Client(_) | Caller::Local)
            | (Self::Looker, Caller::Admin | Caller::Local)
            | (Self::Admin, Caller::Admin) => Ok(()),
            (Self::Admin, Caller::Client(_)) => {
                Err(Problem::forbidden("the token of a client makes calls; to steer takes the admin token"))
            }
            (Self::Admin, Caller::Local | Caller::Stranger) => Err(Problem::unauthorized(
                "send the admin token: `Authorization: Bearer …`; it lies in the folder of the state as `admin-token`",
            )),
            (Self::Caller, Caller::Stranger) => Err(Problem::unauthorized(
                "send the token of a client: `Authorization: Bearer …`; it is what STEADFAST_TOKEN was set to",
            )),
            (Self::Looker, Caller::Client(_)) => Err(Problem::forbidden(
                "the token of a client makes calls; to see what happens here takes the admin token",
            )),
            (Self::Looker, Caller::Stranger) => Err(Problem::unauthorized(
                "send the admin token: `Authorization: Bearer …`; it lies in the state folder",
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
        let mut tokens = Tokens::default();
        tokens.add("agent", Principal::new("a"));
        Access {
            names: Names::default(),
            clients: with_clients.then_some(tokens),
            admin: AdminToken::new("person"),
        }
    }

    fn ask(access: &Access, who: Who, headers: &[(HeaderName, &str)]) -> Result<(), StatusCode> {
        let mut all = HeaderMap::new();
        all.insert(HOST, "127.0.0.1:8080".parse().unwrap());
        for (name, value) in headers {
            all.insert(name.clone(), value.parse().unwrap());
        }
        let caller = access.caller(&Uri::from_static("/v1/status"), &all).map_err(|why| why.status())?;
        who.admits(&caller).map_err(|why| why.status())
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
        assert!(AdminToken::new("").is_none(), "an empty token would be everybody's");
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
    fn sf_6_tokens_are_not_shown() {
        let shown = format!("{:?}", access(true));
        assert!(!shown.contains("person") && !shown.contains("agent"), "{shown}");
    }
}
