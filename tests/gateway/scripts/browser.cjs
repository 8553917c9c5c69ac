// One Chromium for all tests of the dashboard. Each input line is a command for one of its pages, and each output line its
// result:
//
//   {"id": 1, "page": "a", "open": "http://…", "context": {…}}     a page of its own, as this kind of visitor
//   {"id": 2, "page": "a", "code": "return await page.title()"}     code with `page`, `context` and `wait` at hand
//   {"id": 3, "page": "a", "close": true}                           answers with everything that should not have happened
//
// It ends with its input.

const { chromium } = require("playwright-core");
const readline = require("node:readline");

const AsyncFunction = (async () => {}).constructor;
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  // No process is started before a page needs it, and none for drawing.
  "--in-process-gpu",
  "--process-per-site",
  "--disable-features=SpareRendererForSitePerProcess",
];

// Timeout that ends a test that hangs. It is not measured.
const PATIENCE = 120_000;

// Its profile is new and empty each time, and removed with it.
const browser = chromium.launch({ executablePath: process.argv[2], headless: true, args: FLAGS, timeout: PATIENCE });
const pages = new Map();

async function open({ open: url, context: settings }) {
  const context = await (await browser).newContext({ serviceWorkers: "block", reducedMotion: "reduce", ...settings });
  const page = await context.newPage();
  const complaints = [];
  page.setDefaultTimeout(PATIENCE);
  // Status messages disappear after a moment. They are kept for tests that look later.
  await page.addInitScript(() => {
    window.statusMessages = [];
    const keep = (change) => change.target.id === "status-message" && change.addedNodes.forEach((note) => window.statusMessages.push(note.textContent));
    new MutationObserver((changes) => changes.forEach(keep)).observe(document, { childList: true, subtree: true });
  });
  page.on("pageerror", (error) => complaints.push(`an error in a script: ${error.message}`));
  page.on("dialog", async (dialog) => {
    complaints.push(`a foreign script ran: ${dialog.message()}`);
    await dialog.dismiss();
  });
  page.on("console", (message) => {
    // Missing and forbidden resources are expected, because the page probes for them.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) complaints.push(message.text());
  });
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== new URL(url).origin) complaints.push(`request to another host: ${request.url()}`);
  });
  await page.goto(url);
  return { context, page, complaints };
}

// Waits until this is true for the page.
const waiting = (page) => (is, argument) => page.waitForFunction(is, argument, { polling: 100 });

async function carry(line) {
  if (line.open) {
    pages.set(line.page, await open(line));
    return null;
  }
  const { context, page, complaints } = pages.get(line.page);
  if (line.close) {
    // Pending requests of a page do not matter, and their failure would end this script and all other pages.
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await context.close();
    pages.delete(line.page);
    return complaints;
  }
  const value = await new AsyncFunction("page", "context", "wait", line.code)(page, context, waiting(page));
  return value ?? null;
}

const lines = readline.createInterface({ input: process.stdin });
lines.on("line", async (text) => {
  const line = JSON.parse(text);
  try {
    process.stdout.write(`${JSON.stringify({ id: line.id, value: await carry(line) })}\n`);
  } catch (error) {
    process.stdout.write(`${JSON.stringify({ id: line.id, error: String(error.stack ?? error) })}\n`);
  }
});
lines.on("close", async () => {
  await (await browser).close();
  process.exit();
});
