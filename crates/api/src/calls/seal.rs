//! Names for calls that hosts run. The engine counts them; whoever is told a name must not be able to make up that of
//! another caller's call, so it carries a proof that we gave it to them.

use steadfast::Ticket;
use steadfast_core::id::Digest;
use steadfast_mcp::http::front::Principal;
use subtle::ConstantTimeEq as _;

use crate::access::Caller;

/// What the names of this process are sealed with.
#[derive(Clone)]
pub(crate) struct Seal([u8; 32]);

impl Seal {
    /// One that nobody has; nothing where the machine has no randomness to give.
    pub(crate) fn new() -> Option<Self> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).ok()?;
        Some(Self(secret))
    }

    /// The name of this call for this caller.
    pub(super) fn name(&self, call: Ticket, caller: &Caller) -> String {
        let who = match caller {
            Caller::Admin => "admin",
            Caller::Local => "local",
            Caller::Stranger => "stranger",
            // In quotes, so that no two of them read the same.
            Caller::Client(Principal { actor, tenant }) => &format!("client {tenant:?} {actor:?}"),
            Caller::Viewer(name) => &format!("viewer {name:?}"),
        };
        // The secret on both sides, so that nothing can be added to what was sealed.
        let sealed = [&self.0[..], &call.0.to_be_bytes(), who.as_bytes(), &self.0].concat();
        let proof = Digest::of(&sealed).to_hex();
        format!("{:x}-{}", call.0, proof.get(..PROOF).unwrap_or(&proof))
    }

    /// The call of this name, if this caller was given it.
    pub(super) fn call(&self, name: &str, caller: &Caller) -> Option<Ticket> {
        let (number, _) = name.split_once('-')?;
        let call = Ticket(u64::from_str_radix(number, 16).ok()?);
        let is_ours: bool = self.name(call, caller).as_bytes().ct_eq(name.as_bytes()).into();
        is_ours.then_some(call)
    }
}

/// 128 bits of proof, in hexadecimal digits.
const PROOF: usize = 32;

#[cfg(test)]
mod tests {
    use steadfast_core::id::{ActorId, TenantId};

    use super::*;

    #[test]
    fn sf_7_a_name_is_good_for_whoever_got_it_and_cannot_be_made_up() {
        let seal = Seal::new().unwrap();
        let named = |name: &str| Principal::new(ActorId::new(name).unwrap());
        let of = |tenant: &str| Some(TenantId::new(tenant).unwrap());
        let (ann, bob) = (Caller::Client(named("ann")), Caller::Client(named("bob")));
        let namesake = Caller::Client(Principal { tenant: of("acme"), ..named("ann") });
        let name = seal.name(Ticket(7), &ann);
        assert_eq!(seal.call(&name, &ann), Some(Ticket(7)));
        for other in [&bob, &namesake, &Caller::Admin, &Caller::Local] {
            assert_eq!(seal.call(&name, other), None);
        }
        assert_eq!(Seal::new().unwrap().call(&name, &ann), None);
        for made_up in ["7", "7-", "", "-", "x-1", &name.replacen('7', "8", 1), &name[..name.len() - 1]] {
            assert_eq!(seal.call(made_up, &ann), None, "{made_up}");
        }
    }
}
