//! One real Chromium for all tests, driven through a script, and its pages.
//!
//! `cargo xtask setup` installs Debian's Chromium and its driver. A test that does not find them fails.

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

/// Timeout that ends a test that hangs. It is not measured. It is longer than that of the script, whose message says
/// more.
const TEST_TIMEOUT: Duration = Duration::from_secs(180);

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
        // The browser of the script lives as long as the script's input, which ends with this process.
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

    fn request(&self, mut line: Value) -> Result<Value, String> {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        line["id"] = json!(id);
        let (sender, answer) = channel();
        self.waiting.lock().insert(id, sender);
        let written = writeln!(self.input.lock(), "{line}");
        written.map_err(|error| format!("the browser is gone: {error}"))?;
        let mut answer = answer.recv_timeout(TEST_TIMEOUT).map_err(|_| format!("no answer to {line}"))?;
        match answer["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer["value"].take()),
        }
    }
}

/// An open page, isolated from all others.
pub(crate) struct BrowserPage {
    name: String,
    closed: bool,
}

impl BrowserPage {
    /// Opens the page of the gateway at this address, with an ordinary screen and a light theme.
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::open_as(
            address,
            json!({ "colorScheme": "light", "viewport": { "width": 1200, "height": 900 } }),
        )
    }

    /// Opens it for this kind of visitor.
    pub(crate) fn open_as(address: SocketAddr, visitor: Value) -> Self {
        let name = format!("page {}", NEXT.fetch_add(1, Ordering::Relaxed));
        let line = json!({ "page": name, "open": format!("http://{address}/"), "context": visitor });
        BROWSER.request(line).unwrap_or_else(|error| panic!("the page cannot be opened: {error}"));
        Self { name, closed: false }
    }

    /// Runs this code in the script that drives the browser, where `page` is this one.
    #[track_caller]
    pub(crate) fn run(&self, code: &str) -> Value {
        BROWSER
            .request(json!({ "page": self.name, "code": code }))
            .unwrap_or_else(|error| panic!("in {code}: {error}\nthe page says:\n{}", self.text()))
    }

    /// Returns its text.
    fn text(&self) -> String {
        let read = json!({ "page": self.name, "code": "return await page.innerText('body')" });
        BROWSER.request(read).map_or_else(|error| error, |text| text.as_str().unwrap_or_default().to_owned())
    }

    /// Waits until this part of the page contains this text.
    #[track_caller]
    pub(crate) fn wait_for_text(&self, place: &str, text: &str) {
        self.run(&format!(
            "await wait(([place, text]) => [...document.querySelectorAll(place)].some((one) => one.innerText.includes(text)), {})",
            json!([place, text])
        ));
    }

    /// Waits until a status message has contained this text, even if it is gone by then.
    #[track_caller]
    pub(crate) fn wait_for_status(&self, text: &str) {
        self.run(&format!(
            "await wait((text) => window.statusMessages.some((message) => message.includes(text)), {})",
            json!(text)
        ));
    }

    /// Waits until the text is gone.
    #[track_caller]
    pub(crate) fn wait_until_absent(&self, place: &str, text: &str) {
        self.run(&format!(
            "await wait(([place, text]) => ![...document.querySelectorAll(place)].some((one) => one.innerText.includes(text)), {})",
            json!([place, text])
        ));
    }

    /// Clicks the button of this name in this part of the page.
    #[track_caller]
    pub(crate) fn click(&self, place: &str, button: &str) {
        self.run(&format!(
            "await page.locator({}).getByRole('button', {{ name: {} }}).first().click()",
            json!(place),
            json!(button)
        ));
    }

    #[track_caller]
    pub(crate) fn press(&self, key: &str) {
        self.run(&format!("await page.keyboard.press({})", json!(key)));
    }

    /// Enters the admin token in its dialog.
    #[track_caller]
    pub(crate) fn enter_token(&self, token: &str) {
        self.run(&format!(
            "await page.fill('#admin-token', {}); await page.getByRole('button', {{ name: 'Unlock', exact: true }}).last().click()",
            json!(token)
        ));
    }

    /// Checks that nothing extends beyond the side of the screen.
    #[track_caller]
    pub(crate) fn assert_fits_screen(&self) {
        let wide = self.run(
            "return await page.evaluate(() => [document.scrollingElement.scrollWidth, innerWidth, \
             [...document.querySelectorAll('main *')].filter((one) => one.getBoundingClientRect().right > innerWidth + 1) \
             .map((one) => one.outerHTML.slice(0, 120)).slice(0, 5)])",
        );
        assert!(wide[0].as_u64() <= wide[1].as_u64() && wide[2] == json!([]), "{wide:#}");
    }

    /// Closes it. Checks that there was no error, no third-party script, and no request to other hosts.
    #[track_caller]
    pub(crate) fn close(mut self) {
        self.closed = true;
        let complaints = BROWSER.request(json!({ "page": self.name, "close": true })).unwrap();
        assert_eq!(complaints, json!([]));
    }

    /// Takes a screenshot for the documentation, if that is requested.
    pub(crate) fn save_screenshot(&self, name: &str, options: &Value) {
        let Some(folder) = env::var_os("STEADFAST_SCREENSHOTS") else { return };
        let path = PathBuf::from(folder).join(name);
        self.run(&format!(
            "await page.screenshot({{ path: {}, animations: 'disabled', ...{options} }})",
            json!(path.display().to_string())
        ));
    }
}

impl Drop for BrowserPage {
    fn drop(&mut self) {
        if !self.closed {
            let _ = BROWSER.request(json!({ "page": self.name, "close": true }));
        }
    }
}

/// Returns the headless browser, or the full one on a machine that has no other.
fn chromium() -> PathBuf {
    let search = env::var_os("PATH").unwrap_or_default();
    let find = |name| env::split_paths(&search).map(|folder| folder.join(name)).find(|file| file.exists());
    let found = ["chromium-headless-shell", "chromium"].into_iter().find_map(find);
    found.expect("chromium is not installed; run `cargo xtask setup`")
}

/// Returns the folder where `cargo xtask setup` installed this kind.
fn installed(kind: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below the target folder");
    let folder = target.join("xtask/real").join(kind);
    let is_whole = fs::exists(folder.join("installed")).is_ok_and(|there| there);
    assert!(is_whole, "what the page is tested with is not installed: run `cargo xtask setup`");
    folder
}
