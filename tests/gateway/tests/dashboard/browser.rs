//! One real Chromium for all tests, driven through a script, and the pages that it shows.
//!
//! Debian's Chromium and what drives it are installed by `cargo xtask setup`. A test that does not find them fails.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use std::{env, fs, thread};

use parking_lot::Mutex;
use serde_json::{Value, json};

/// Guards against a test that hangs, and nothing that is measured. Longer than the same guard of the script, which says more.
const PATIENCE: Duration = Duration::from_secs(180);

static BROWSER: LazyLock<Browser> = LazyLock::new(Browser::start);
static NEXT: AtomicU64 = AtomicU64::new(1);

struct Browser {
    input: Mutex<ChildStdin>,
    waiting: &'static Mutex<HashMap<u64, Sender<Value>>>,
}

impl Browser {
    fn start() -> Self {
        static WAITING: LazyLock<Mutex<HashMap<u64, Sender<Value>>>> = LazyLock::new(Mutex::default);
        let installed = installed("node");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/browser.cjs");
        let mut command = Command::new(installed.join("node_modules/.bin/node"));
        command.arg(script).arg(chromium()).env("NODE_PATH", installed.join("node_modules"));
        // The browser that is started by it lives as long as its input does, which ends with this process.
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let input = Mutex::new(child.stdin.take().unwrap());
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let answer: Value = serde_json::from_str(&line).unwrap();
                if let Some(waiting) = WAITING.lock().remove(&answer["id"].as_u64().unwrap()) {
                    let _ = waiting.send(answer);
                }
            }
            child.wait()
        });
        Self { input, waiting: &WAITING }
    }

    fn ask(&self, mut line: Value) -> Result<Value, String> {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        line["id"] = json!(id);
        let (sender, answer) = channel();
        self.waiting.lock().insert(id, sender);
        let written = writeln!(self.input.lock(), "{line}");
        written.map_err(|error| format!("the browser is gone: {error}"))?;
        let mut answer = answer.recv_timeout(PATIENCE).map_err(|_| format!("no answer to {line}"))?;
        match answer["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer["value"].take()),
        }
    }
}

/// A page that somebody has open, with nothing in common with those of others.
pub(crate) struct Page {
    name: String,
    closed: bool,
}

impl Page {
    /// The page of the gateway at this address, for a visitor with an ordinary screen in the light.
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::open_as(
            address,
            json!({ "colorScheme": "light", "viewport": { "width": 1200, "height": 900 } }),
        )
    }

    /// The same for this kind of visitor.
    pub(crate) fn open_as(address: SocketAddr, visitor: Value) -> Self {
        let name = format!("page {}", NEXT.fetch_add(1, Ordering::Relaxed));
        let line = json!({ "page": name, "open": format!("http://{address}/"), "context": visitor });
        BROWSER.ask(line).unwrap_or_else(|error| panic!("the page cannot be opened: {error}"));
        Self { name, closed: false }
    }

    /// Runs this in the script that drives the browser, where `page` is this one.
    #[track_caller]
    pub(crate) fn run(&self, code: &str) -> Value {
        BROWSER
            .ask(json!({ "page": self.name, "code": code }))
            .unwrap_or_else(|error| panic!("in {code}: {error}\nthe page says:\n{}", self.text()))
    }

    /// What is to be read on it.
    fn text(&self) -> String {
        let read = json!({ "page": self.name, "code": "return await page.innerText('body')" });
        BROWSER.ask(read).map_or_else(|error| error, |text| text.as_str().unwrap_or_default().to_owned())
    }

    /// Waits until this part of the page says this.
    #[track_caller]
    pub(crate) fn sees(&self, place: &str, text: &str) {
        self.run(&format!(
            "await wait(([place, text]) => [...document.querySelectorAll(place)].some((one) => one.innerText.includes(text)), {})",
            json!([place, text])
        ));
    }

    /// Waits until it has said this in passing, whether it still stands there or not.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) {
        self.run(&format!(
            "await wait((text) => window.saidInPassing.some((said) => said.includes(text)), {})",
            json!(text)
        ));
    }

    /// Waits until it says so no more.
    #[track_caller]
    pub(crate) fn sees_no_more(&self, place: &str, text: &str) {
        self.run(&format!(
            "await wait(([place, text]) => ![...document.querySelectorAll(place)].some((one) => one.innerText.includes(text)), {})",
            json!([place, text])
        ));
    }

    /// Clicks the button of this name in this part of the page.
    #[track_caller]
    pub(crate) fn clicks(&self, place: &str, button: &str) {
        self.run(&format!(
            "await page.locator({}).getByRole('button', {{ name: {} }}).first().click()",
            json!(place),
            json!(button)
        ));
    }

    #[track_caller]
    pub(crate) fn presses(&self, key: &str) {
        self.run(&format!("await page.keyboard.press({})", json!(key)));
    }

    /// Gives the admin token to the dialog that asks for it.
    #[track_caller]
    pub(crate) fn gives_token(&self, token: &str) {
        self.run(&format!(
            "await page.fill('#admin-token', {}); await page.getByRole('button', {{ name: 'Unlock', exact: true }}).last().click()",
            json!(token)
        ));
    }

    /// Nothing stands out to the side of the screen.
    #[track_caller]
    pub(crate) fn fits_the_screen(&self) {
        let wide = self.run(
            "return await page.evaluate(() => [document.scrollingElement.scrollWidth, innerWidth, \
             [...document.querySelectorAll('main *')].filter((one) => one.getBoundingClientRect().right > innerWidth + 1) \
             .map((one) => one.outerHTML.slice(0, 120)).slice(0, 5)])",
        );
        assert!(wide[0].as_u64() <= wide[1].as_u64() && wide[2] == json!([]), "{wide:#}");
    }

    /// Closes it. Nothing may have happened in it that should not: no error, no script of others, no word to anybody else.
    #[track_caller]
    pub(crate) fn close(mut self) {
        self.closed = true;
        let complaints = BROWSER.ask(json!({ "page": self.name, "close": true })).unwrap();
        assert_eq!(complaints, json!([]));
    }

    /// Makes a picture of it for the documentation, if pictures are wanted.
    pub(crate) fn pictured(&self, name: &str, options: &Value) {
        let Some(folder) = env::var_os("STEADFAST_SCREENSHOTS") else { return };
        let path = PathBuf::from(folder).join(name);
        self.run(&format!(
            "await page.screenshot({{ path: {}, animations: 'disabled', ...{options} }})",
            json!(path.display().to_string())
        ));
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if !self.closed {
            let _ = BROWSER.ask(json!({ "page": self.name, "close": true }));
        }
    }
}

/// The browser without windows, or the whole one on a machine that has no other.
fn chromium() -> PathBuf {
    let search = env::var_os("PATH").unwrap_or_default();
    let find = |name| env::split_paths(&search).map(|folder| folder.join(name)).find(|file| file.exists());
    let found = ["chromium-headless-shell", "chromium"].into_iter().find_map(find);
    found.expect("chromium is not installed; run `cargo xtask setup`")
}

/// Where `cargo xtask setup` put what it installed.
fn installed(kind: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below the target folder");
    let folder = target.join("xtask/real").join(kind);
    let is_whole = fs::exists(folder.join("installed")).is_ok_and(|there| there);
    assert!(is_whole, "what the page is tested with is not installed: run `cargo xtask setup`");
    folder
}
