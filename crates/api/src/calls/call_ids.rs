//! Ids for calls that hosts run. The engine numbers the calls. An id contains a proof, so that a caller cannot guess
//! the id of another caller's call.

use steadfast::call::HostCallId;
use steadfast_gateway::SealKey;
use steadfast_mcp::http::server::Principal;

use crate::access::Requester;

/// The secret for the ids of this process.
#[derive(Clone)]
pub(crate) struct CallIdSeal(SealKey);

impl CallIdSeal {
    /// Creates a random secret. Returns `None` if the system has no randomness.
    pub(crate) fn new() -> Option<Self> {
        SealKey::new().map(Self)
    }

    /// Returns the id of a call for this caller.
    pub(super) fn name(&self, call: HostCallId, caller: &Requester) -> String {
        let number = format!("{:x}", call.0);
        format!("{number}-{}", self.0.seal(&sealed_text(&number, caller)))
    }

    /// Returns the call of this id if this caller got the id.
    pub(super) fn call(&self, name: &str, caller: &Requester) -> Option<HostCallId> {
        let (number, seal) = name.split_once('-')?;
        let call = HostCallId(u64::from_str_radix(number, 16).ok()?);
        self.0.verifies(&sealed_text(number, caller), seal).then_some(call)
    }
}

/// Identities are quoted, so that different ones never have equal texts.
fn sealed_text(number: &str, caller: &Requester) -> String {
    match caller {
        Requester::Admin => format!("{number} admin"),
        Requester::Local => format!("{number} local"),
        Requester::Unauthenticated => format!("{number} stranger"),
        Requester::Client(Principal { actor, tenant }) => format!("{number} client {tenant:?} {actor:?}"),
        Requester::Viewer(name) => format!("{number} viewer {name:?}"),
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::id::{ActorId, TenantId};

    use super::*;

    #[test]
    fn sf_7_an_id_is_valid_for_its_caller_only_and_cannot_be_forged() {
        let seal = CallIdSeal::new().unwrap();
        let named = |name: &str| Principal::new(ActorId::new(name).unwrap());
        let of = |tenant: &str| Some(TenantId::new(tenant).unwrap());
        let (ann, bob) = (Requester::Client(named("ann")), Requester::Client(named("bob")));
        let namesake = Requester::Client(Principal { tenant: of("acme"), ..named("ann") });
        let name = seal.name(HostCallId(7), &ann);
        assert_eq!(seal.call(&name, &ann), Some(HostCallId(7)));
        for other in [&bob, &namesake, &Requester::Admin, &Requester::Local] {
            assert_eq!(seal.call(&name, other), None);
        }
        assert_eq!(CallIdSeal::new().unwrap().call(&name, &ann), None);
        for made_up in [
            "7",
            "7-",
            "",
            "-",
            "x-1",
            &format!("0{name}"),
            &format!("+{name}"),
            &name.replacen('7', "8", 1),
            &name[..name.len() - 1],
        ] {
            assert_eq!(seal.call(made_up, &ann), None, "{made_up}");
        }
    }
}
