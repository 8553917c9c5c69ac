//! The dashboard: one HTML document with its style sheet and scripts, from the folder `page/`.
//!
//! It can be loaded without a token, because it contains no data: it gets its data from the endpoints of the API, with
//! a token. Its content security policy allows its own scripts and connections to this server only, so that a malicious
//! name or argument that is shown has no effect.

use axum::Router;
use axum::response::Response;
use axum::routing::get;
use http::header::CONTENT_SECURITY_POLICY;
use http::{HeaderValue, StatusCode};

use crate::State;
use crate::encoding::whole;

/// The content security policy: own resources only.
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

/// The files of the dashboard: path, media type and content.
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

/// Returns the routes of the dashboard and its files.
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

    /// The texts that follow these words, up to the next quotation mark.
    fn named<'t>(text: &'t str, words: &'t str) -> impl Iterator<Item = &'t str> {
        text.split(words).skip(1).filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn every_file_of_the_page_is_served_and_used() {
        let document = include_str!("page/index.html");
        let scripts = FILES.iter().filter(|(_, kind, _)| *kind == SCRIPT).map(|(.., text)| *text);
        let mut referenced: Vec<String> = named(document, "src=\"")
            .chain(named(document, "href=\"/"))
            .map(|path| if path.starts_with('/') { path.to_owned() } else { format!("/{path}") })
            .collect();
        referenced.extend(scripts.flat_map(|text| {
            named(text, "from \"./").map(|file| format!("/page/{file}")).collect::<Vec<_>>()
        }));
        for path in &referenced {
            assert!(FILES.iter().any(|(file, ..)| file == path), "{path} is not served");
        }
        for (file, ..) in FILES {
            assert!(referenced.iter().any(|path| path == file), "{file} is asked for by nobody");
        }
    }

    #[test]
    fn sf_7_the_page_has_no_markup_from_strings_and_no_foreign_address() {
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
