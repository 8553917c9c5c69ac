//! Ids for calls that hosts run. The engine numbers the calls. An id contains a proof, so that a caller cannot guess
//! the id of another caller's call.

use steadfast::call::HostCallId;
use steadfast_core::id::Digest;
use steadfast_mcp::http::server::Principal;
use subtle::ConstantTimeEq as _;

use crate::access::Requester;

/// The secret for the ids of this process.
#[derive(Clone)]
pub(crate) struct CallIdSeal([u8; 32]);

impl CallIdSeal {
    /// Creates a random secret. Returns `None` if the system has no randomness.
    pub(crate) fn new() -> Option<Self> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).ok()?;
        Some(Self(secret))
    }

    /// Returns the id of a call for this caller.
    pub(super) fn name(&self, call: HostCallId, caller: &Requester) -> String {
        let who = match caller {
            Requester::Admin => "admin",
            Requester::Local => "local",
            Requester::Stranger => "stranger",
            // Quoted, so that different identities never have equal texts.
            Requester::Client(Principal { actor, tenant }) => &format!("client {tenant:?} {actor:?}"),
            Requester::Viewer(name) => &format!("viewer {name:?}"),
        };
        // The secret is on both sides, so that nothing can be appended to the sealed text.
        let sealed = [&self.0[..], &call.0.to_be_bytes(), who.as_bytes(), &self.0].concat();
        let proof = Digest::of(&sealed).to_hex();
        format!("{:x}-{}", call.0, proof.get(..PROOF).unwrap_or(&proof))
    }

    /// Returns the call of this id if this caller got the id.
    pub(super) fn call(&self, name: &str, caller: &Requester) -> Option<HostCallId> {
        let (number, _) = name.split_once('-')?;
        let call = HostCallId(u64::from_str_radix(number, 16).ok()?);
        let is_ours: bool = self.name(call, caller).as_bytes().ct_eq(name.as_bytes()).into();
        is_ours.then_some(call)
    }
}

/// The length of the proof: 128 bits in hexadecimal digits.
const PROOF: usize = 32;

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
        for made_up in ["7", "7-", "", "-", "x-1", &name.replacen('7', "8", 1), &name[..name.len() - 1]] {
            assert_eq!(seal.call(made_up, &ann), None, "{made_up}");
        }
    }
}
