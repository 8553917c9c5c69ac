//! Turns, and how they went.

use std::cmp::Reverse;

use schemars::JsonSchema;
use serde::Serialize;
use steadfast::{Engine, StoreError, TurnHead, TurnStory, TurnsWanted};
use steadfast_core::id::{SessionKey, TenantId, TurnId};
use steadfast_store::Position;

use super::paging::asks;

asks! {
    /// Which turns are asked for.
    TracesAsked {
        /// Of this tenant.
        tenant: TenantId,
        /// Of this conversation.
        session: SessionKey,
        /// Under this name.
        turn: TurnId,
    }
}

impl TracesAsked {
    /// What is meant, or what is wrong with it.
    pub fn read(self) -> Result<TurnsWanted, String> {
        let page = self.page::<Reverse<Position>>()?;
        Ok(TurnsWanted {
            tenant: self.tenant,
            session: self.session,
            turn: self.turn,
            behind: page.after.map(|Reverse(place)| place),
            limit: page.limit,
        })
    }
}

/// A page of turns.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Traces {
    /// Those first that began last.
    pub turns: Vec<TurnHead>,
    /// What to ask for `after` next; nothing at the end. Where few of many fit there may be more behind a short page, or an
    /// empty one.
    pub next: Option<String>,
}

/// The turns that are asked for.
pub async fn traces(engine: &Engine, wanted: &TurnsWanted) -> Result<Traces, StoreError> {
    let part = engine.turns(wanted).await?;
    Ok(Traces { turns: part.found, next: part.next.map(|place| place.to_string()) })
}

/// A story as lines of JSON: the head, then spans and events, each an object with one field that says which.
pub fn lines(story: &TurnStory) -> String {
    fn line(kind: &str, content: &impl Serialize, lines: &mut String) {
        // Everything in a story can be written.
        let text = serde_json::to_string(content).unwrap_or_default();
        lines.push_str(&format!("{{\"{kind}\":{text}}}\n"));
    }
    let mut lines = String::new();
    line("turn", &story.turn, &mut lines);
    story.spans.iter().for_each(|span| line("span", span, &mut lines));
    story.events.iter().for_each(|event| line("event", event, &mut lines));
    lines
}
