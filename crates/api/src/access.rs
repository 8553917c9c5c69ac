//! Authorization of requests.
//!
//! A malicious web page can reach every port of this machine through the browser of a visitor, so the host name and the
//! origin of a request are checked first. There are three kinds of token. Client tokens let agents make calls. Viewer
//! tokens allow reading everything and changing nothing. The admin token allows reading and changing. While no client
//! token exists, which is possible on the loopback interface only, every local program may call and read. Changes
//! require the admin token even there, because agents run on the same machine.

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Uri};
use steadfast_core::id::{ActorId, TenantId};
use steadfast_mcp::http::server::{
    AdminToken, AllowedHosts, BearerTokens, Principal, StreamFollower, TokenHolder, bearer, target_host,
};

use crate::problem::ApiProblem;

/// The permission that an endpoint requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// None.
    Anyone,
    /// Permission to make calls.
    Caller,
    /// Permission to read the state.
    Viewer,
    /// The admin token.
    Admin,
}

/// The identity of a requester.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Requester {
    /// The operator, with the admin token.
    Admin,
    /// The holder of a client token.
    Client(Principal),
    /// The holder of a viewer token.
    Viewer(ActorId),
    /// A local program, while no client token exists.
    Local,
    /// A requester without a token where one is required.
    Unauthenticated,
}

impl Requester {
    /// Returns the principal whose event streams count. Strangers follow none.
    pub(crate) fn follower(&self) -> StreamFollower {
        match self {
            Self::Admin => StreamFollower::Admin,
            Self::Client(principal) => StreamFollower::Client(principal.clone()),
            Self::Viewer(name) => StreamFollower::Viewer(name.clone()),
            Self::Local | Self::Unauthenticated => StreamFollower::Local,
        }
    }
}

/// The access rules of the API.
#[derive(Clone, Debug, Default)]
pub struct AccessRules {
    /// The host names that requests may use.
    pub names: AllowedHosts,
    /// The tokens of clients and viewers.
    pub tokens: BearerTokens,
    /// The machines that can connect.
    pub reach: NetworkReach,
    /// The admin token. Without one, no changes are possible.
    pub admin: Option<AdminToken>,
    /// The user of this process. Calls without a token, and calls of the admin, are made as this actor unless the
    /// envelope names another.
    pub user: Option<ActorId>,
}

/// The actor of calls whose envelope names none.
#[derive(Clone, Debug, Default)]
pub(crate) struct DefaultActor(pub(crate) Option<ActorId>);

/// The machines that can connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkReach {
    /// Only this machine. No token is required while no client token exists.
    #[default]
    ThisMachine,
    /// Other machines too.
    Others,
}

impl AccessRules {
    /// Returns the identity of a requester if it has this permission.
    pub(crate) fn admit(
        &self,
        permission: Permission,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Requester, ApiProblem> {
        let caller = self.caller(uri, headers)?;
        permission.admits(&caller)?;
        Ok(caller)
    }

    /// Returns true if a request has the admin token or that of a viewer.
    pub(crate) fn is_operating(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        matches!(self.caller(uri, headers), Ok(Requester::Admin | Requester::Viewer(_)))
    }

    /// Returns the actor of this requester's calls whose envelope names none.
    pub(crate) fn sender(&self, caller: &Requester) -> DefaultActor {
        DefaultActor(match caller {
            Requester::Client(principal) => Some(principal.actor.clone()),
            Requester::Admin | Requester::Local => self.user.clone(),
            Requester::Viewer(_) | Requester::Unauthenticated => None,
        })
    }

    /// Returns the identity of a requester. Refuses a foreign origin or host name, and an unknown token.
    fn caller(&self, uri: &Uri, headers: &HeaderMap) -> Result<Requester, ApiProblem> {
        self.names
            .admit(uri, headers)
            .map_err(|refusal| ApiProblem::new(refusal.status, "forbidden", refusal.text))?;
        if !is_from_dashboard(uri, headers) {
            return Err(ApiProblem::forbidden("requests from this origin are not allowed"));
        }
        let Some(given) = bearer(headers) else {
            let is_open = self.reach == NetworkReach::ThisMachine && !self.tokens.have_clients();
            return Ok(if is_open { Requester::Local } else { Requester::Unauthenticated });
        };
        if self.admin.as_ref().is_some_and(|token| token.is(given)) {
            return Ok(Requester::Admin);
        }
        match self.tokens.holder(given) {
            Some(TokenHolder::Client(principal)) => Ok(Requester::Client(principal)),
            Some(TokenHolder::Viewer(name)) => Ok(Requester::Viewer(name)),
            None => Err(ApiProblem::unauthorized("this token is not valid")),
        }
    }
}

/// Returns true if the request comes from a program or from the dashboard. Other local origins may send MCP requests,
/// because browsers send those only after a preflight check. Here they are refused, because a page could call a tool
/// without one.
fn is_from_dashboard(uri: &Uri, headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, rest)| rest);
    let host = target_host(uri).or_else(|| headers.get(HOST)?.to_str().ok());
    matches!((authority, host), (Some(authority), Some(host)) if authority.eq_ignore_ascii_case(host))
}

impl Permission {
    /// Checks the permission of a requester.
    fn admits(self, caller: &Requester) -> Result<(), ApiProblem> {
        match (self, caller) {
            (Self::Anyone, _)
            | (Self::Caller, Requester::Admin | Requester::Client(_) | Requester::Local)
            | (Self::Viewer, Requester::Admin | Requester::Viewer(_) | Requester::Local)
            | (Self::Admin, Requester::Admin) => Ok(()),
            (Self::Admin, Requester::Client(_)) => Err(ApiProblem::forbidden(
                "a client token only allows calls; changes require the admin token",
            )),
            (Self::Admin, Requester::Viewer(_)) => Err(ApiProblem::forbidden(
                "a viewer token only allows reading; changes require the admin token",
            )),
            (Self::Caller, Requester::Viewer(_)) => {
                Err(ApiProblem::forbidden("a viewer token only allows reading; calls require a client token"))
            }
            (Self::Admin, Requester::Local | Requester::Unauthenticated) => Err(ApiProblem::unauthorized(
                "changes require the admin token: send `Authorization: Bearer …` with the content of `admin-token` in the state folder",
            )),
            (Self::Caller, Requester::Unauthenticated) => Err(ApiProblem::unauthorized(
                "calls require a client token: send `Authorization: Bearer …`; tokens are set in [tokens.NAME] or STEADFAST_TOKEN",
            )),
            (Self::Viewer, Requester::Client(_)) => Err(ApiProblem::forbidden(
                "a client token only allows calls; reading requires a viewer token or the admin token",
            )),
            (Self::Viewer, Requester::Unauthenticated) => Err(ApiProblem::unauthorized(
                "reading requires a viewer token, or the admin token in the state folder: send `Authorization: Bearer …`",
            )),
        }
    }
}

/// Returns the tenant of a request: for a client, the tenant of its token.
pub(crate) fn bound_tenant(
    caller: &Requester,
    requested: Option<TenantId>,
) -> Result<Option<TenantId>, ApiProblem> {
    let Requester::Client(Principal { tenant: own, .. }) = caller else { return Ok(requested) };
    match (own, requested) {
        (_, None) => Ok(own.clone()),
        (Some(own), Some(requested)) if *own == requested => Ok(Some(requested)),
        (Some(own), Some(_)) => Err(ApiProblem::forbidden(format!(
            "the token belongs to the tenant `{own}`, but the request names another one; omit it"
        ))),
        (None, Some(_)) => {
            Err(ApiProblem::forbidden("the token belongs to no tenant, but the request names one; omit it"))
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::AUTHORIZATION;
    use http::{HeaderName, StatusCode};

    use super::*;

    fn access(with_clients: bool) -> AccessRules {
        let tokens = BearerTokens::default();
        tokens.add("watcher", TokenHolder::Viewer(ActorId::new("w").unwrap()));
        if with_clients {
            tokens.add("agent", TokenHolder::Client(Principal::new(ActorId::new("a").unwrap())));
        }
        AccessRules { tokens, admin: AdminToken::new("person"), ..AccessRules::default() }
    }

    fn check_access(
        access: &AccessRules,
        permission: Permission,
        headers: &[(HeaderName, &str)],
    ) -> Result<(), StatusCode> {
        let mut all = HeaderMap::new();
        all.insert(HOST, "127.0.0.1:8080".parse().unwrap());
        for (name, value) in headers {
            all.insert(name.clone(), value.parse().unwrap());
        }
        let admitted = access.admit(permission, &Uri::from_static("/v1/status"), &all);
        admitted.map(drop).map_err(|problem| problem.status())
    }

    #[test]
    fn sf_7_reading_needs_a_token_unless_local_programs_are_trusted() {
        let (open, closed) = (access(false), access(true));
        assert_eq!(check_access(&open, Permission::Viewer, &[]), Ok(()));
        assert_eq!(check_access(&closed, Permission::Viewer, &[]), Err(StatusCode::UNAUTHORIZED));
        assert_eq!(check_access(&closed, Permission::Anyone, &[]), Ok(()));
        for access in [&open, &closed] {
            assert_eq!(check_access(access, Permission::Viewer, &[(AUTHORIZATION, "Bearer person")]), Ok(()));
            let wrong = check_access(access, Permission::Anyone, &[(AUTHORIZATION, "Bearer perso")]);
            assert_eq!(wrong, Err(StatusCode::UNAUTHORIZED));
        }
        let client = check_access(&closed, Permission::Viewer, &[(AUTHORIZATION, "Bearer agent")]);
        assert_eq!(client, Err(StatusCode::FORBIDDEN), "an agent does not see what others do");
    }

    #[test]
    fn sf_7_calling_needs_a_token_where_clients_have_one() {
        let (open, closed) = (access(false), access(true));
        assert_eq!(check_access(&open, Permission::Caller, &[]), Ok(()));
        assert_eq!(check_access(&closed, Permission::Caller, &[]), Err(StatusCode::UNAUTHORIZED));
        assert_eq!(check_access(&closed, Permission::Caller, &[(AUTHORIZATION, "Bearer agent")]), Ok(()));
        assert_eq!(check_access(&closed, Permission::Caller, &[(AUTHORIZATION, "Bearer person")]), Ok(()));
    }

    #[test]
    fn sf_7_changes_need_the_admin_token_on_this_machine_too() {
        for access in [access(false), access(true)] {
            assert_eq!(check_access(&access, Permission::Admin, &[]), Err(StatusCode::UNAUTHORIZED));
            assert_eq!(check_access(&access, Permission::Admin, &[(AUTHORIZATION, "Bearer person")]), Ok(()));
        }
        let client = check_access(&access(true), Permission::Admin, &[(AUTHORIZATION, "Bearer agent")]);
        assert_eq!(client, Err(StatusCode::FORBIDDEN));
        let no_admin = AccessRules { admin: None, ..access(false) };
        assert_eq!(
            check_access(&no_admin, Permission::Admin, &[(AUTHORIZATION, "Bearer ")]),
            Err(StatusCode::UNAUTHORIZED)
        );
    }

    #[test]
    fn sf_7_a_viewer_can_only_read() {
        let viewer = [(AUTHORIZATION, "Bearer watcher")];
        for access in [access(false), access(true)] {
            assert_eq!(check_access(&access, Permission::Viewer, &viewer), Ok(()));
            assert_eq!(check_access(&access, Permission::Caller, &viewer), Err(StatusCode::FORBIDDEN));
            assert_eq!(check_access(&access, Permission::Admin, &viewer), Err(StatusCode::FORBIDDEN));
        }
    }

    #[test]
    fn sf_7_a_token_is_required_if_other_machines_can_connect() {
        // The last client token was removed while the process was running.
        let reached = AccessRules { reach: NetworkReach::Others, ..access(false) };
        assert_eq!(check_access(&reached, Permission::Viewer, &[]), Err(StatusCode::UNAUTHORIZED));
        assert_eq!(check_access(&reached, Permission::Caller, &[]), Err(StatusCode::UNAUTHORIZED));
    }

    #[test]
    fn sf_7_foreign_origins_and_host_names_are_refused_before_tokens_are_checked() {
        let access = access(false);
        let evil = [(ORIGIN, "https://evil.example"), (AUTHORIZATION, "Bearer person")];
        assert_eq!(check_access(&access, Permission::Anyone, &evil), Err(StatusCode::FORBIDDEN));
        let guessing = [(ORIGIN, "https://evil.example"), (AUTHORIZATION, "Bearer perso")];
        assert_eq!(
            check_access(&access, Permission::Anyone, &guessing),
            Err(StatusCode::FORBIDDEN),
            "it learns nothing"
        );
        assert_eq!(
            check_access(&access, Permission::Anyone, &[(HOST, "evil.example")]),
            Err(StatusCode::FORBIDDEN)
        );
        assert_eq!(
            check_access(&access, Permission::Anyone, &[(ORIGIN, "http://127.0.0.1:8080")]),
            Ok(()),
            "our own page"
        );
        for other in ["http://127.0.0.1:3000", "http://localhost:8080", "null"] {
            let page = check_access(&access, Permission::Caller, &[(ORIGIN, other)]);
            assert_eq!(page, Err(StatusCode::FORBIDDEN), "the page of another program here: {other}");
        }
    }

    #[test]
    fn sf_7_a_page_is_compared_with_the_authority_of_an_absolute_target() {
        let access = access(false);
        let is_admitted = |target: &'static str, origin: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, "127.0.0.1:3000".parse().unwrap());
            headers.insert(ORIGIN, origin.parse().unwrap());
            access.admit(Permission::Anyone, &Uri::from_static(target), &headers).is_ok()
        };
        assert!(is_admitted("http://127.0.0.1:8080/v1/status", "http://127.0.0.1:8080"));
        assert!(!is_admitted("http://127.0.0.1:8080/v1/status", "http://127.0.0.1:3000"));
        assert!(!is_admitted("http://evil.example/v1/status", "http://evil.example"));
    }

    #[test]
    fn sf_6_tokens_are_not_shown() {
        let shown = format!("{:?}", access(true));
        assert!(["person", "agent", "watcher"].iter().all(|secret| !shown.contains(secret)), "{shown}");
    }
}
