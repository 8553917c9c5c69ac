use super::Story;
use crate::invariants::Broken;
use crate::rng::Rng;

pub(super) fn check(_rng: &mut Rng, _story: &mut Story) -> Result<(), Broken> {
    Ok(())
}
