//! The page for the person who runs this: one document, its style and its scripts, as they lie in `page/`.
//!
//! Whoever reaches us may load it, because it holds nothing: what it shows it asks for like everybody else, by the same
//! endpoints and with the same token. Its policy lets it run nothing but its own scripts and talk to nobody but us, so
//! that a name or an argument that finds a way into it can still do nothing.

use axum::Router;
use axum::response::Response;
use axum::routing::get;
use http::header::CONTENT_SECURITY_POLICY;
use http::{HeaderValue, StatusCode};

use crate::State;
use crate::answer::whole;

/// Nothing but what is ours.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! files {
    ($($file:literal: $kind:expr,)*) => {
        &[$((concat!("/page/", $file), $kind, include_str!(concat!("page/", $file)))),*]
    };
}

/// All that the document asks for: where, of what type, and the text.
const FILES: &[(&str, &str, &str)] = files! {
    "page.css": CSS,
    "icon.svg": SVG,
    "main.js": SCRIPT,
    "act.js": SCRIPT,
    "api.js": SCRIPT,
    "dom.js": SCRIPT,
    "words.js": SCRIPT,
    "live.js": SCRIPT,
    "keys.js": SCRIPT,
    "now.js": SCRIPT,
    "domains.js": SCRIPT,
    "tenants.js": SCRIPT,
    "approvals.js": SCRIPT,
    "unknown.js": SCRIPT,
    "notifications.js": SCRIPT,
    "breakers.js": SCRIPT,
    "calls.js": SCRIPT,
    "story.js": SCRIPT,
    "turns.js": SCRIPT,
    "waterfall.js": SCRIPT,
    "tools.js": SCRIPT,
    "tool.js": SCRIPT,
    "guard.js": SCRIPT,
    "numbers.js": SCRIPT,
    "servers.js": SCRIPT,
};

/// Where the page and its parts are.
pub(crate) fn routes() -> Router<State> {
    let router = Router::new().route("/", get(async || part(HTML, include_str!("page/index.html"))));
    FILES.iter().fold(router, |router, &(path, kind, text)| {
        router.route(path, get(move || async move { part(kind, text) }))
    })
}

fn part(kind: &'static str, text: &'static str) -> Response {
    let mut response = whole(StatusCode::OK, kind, text);
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stands behind each of these words in a text, up to the next quotation mark.
    fn named<'t>(text: &'t str, words: &'t str) -> impl Iterator<Item = &'t str> {
        text.split(words).skip(1).filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn all_that_the_page_asks_for_is_there_and_is_asked_for() {
        let document = include_str!("page/index.html");
        let scripts = FILES.iter().filter(|(_, kind, _)| *kind == SCRIPT).map(|(.., text)| *text);
        let mut asked: Vec<String> = named(document, "src=\"")
            .chain(named(document, "href=\"/"))
            .map(|path| if path.starts_with('/') { path.to_owned() } else { format!("/{path}") })
            .collect();
        asked.extend(scripts.flat_map(|text| {
            named(text, "from \"./").map(|file| format!("/page/{file}")).collect::<Vec<_>>()
        }));
        for path in &asked {
            assert!(FILES.iter().any(|(file, ..)| file == path), "{path} is not served");
        }
        for (file, ..) in FILES {
            assert!(asked.iter().any(|path| path == file), "{file} is asked for by nobody");
        }
    }

    #[test]
    fn sf_7_no_string_becomes_markup_or_a_script_and_nobody_else_is_named() {
        let texts = FILES.iter().map(|&(file, _, text)| (file, text));
        for (file, text) in texts.chain([("/", include_str!("page/index.html"))]) {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "srcdoc",
                "javascript:",
            ] {
                assert!(!text.contains(word), "{file} has {word}");
            }
            let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
            assert!(
                !elsewhere.contains("http://") && !elsewhere.contains("https://"),
                "{file} names an address"
            );
        }
    }
}
