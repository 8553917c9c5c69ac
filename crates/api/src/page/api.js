// Requests to the gateway. The token is stored for this tab and sent to the gateway only.

const PLACE = "steadfast-admin-token";

export const token = {
  get: () => sessionStorage.getItem(PLACE),
  set: (text) => sessionStorage.setItem(PLACE, text),
  clear: () => sessionStorage.removeItem(PLACE),
};

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  return fetch(path, { ...options, headers, cache: "no-store", redirect: "error" });
}

async function read(response) {
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  throw new Refused(response.status, body?.error?.message ?? `the gateway answers ${response.status}`);
}

export const get = async (path) => read(await request(path));

// A path with these query parameters; those without a value are omitted.
export function query(path, fields) {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined && value !== null);
  return given.length > 0 ? `${path}?${new URLSearchParams(given)}` : path;
}

// Requests all pages of a list and merges their rows.
export async function all(path, fields) {
  const whole = await get(query(path, { ...fields, limit: 1000 }));
  while (whole.next) {
    const page = await get(query(path, { ...fields, limit: 1000, after: whole.next }));
    for (const [name, value] of Object.entries(page)) {
      if (Array.isArray(value)) whole[name].push(...value);
    }
    whole.next = page.next;
  }
  return whole;
}

const send = (method) => async (path, body) =>
  read(await request(path, { method, headers: { "content-type": "application/json", "steadfast-surface": "dashboard" }, body: JSON.stringify(body ?? {}) }));

export const post = send("POST");
export const put = send("PUT");

const opens = (path) => async (text) => {
  const response = await fetch(path, { headers: { authorization: `Bearer ${text}` }, cache: "no-store" });
  return response.status !== 401 && response.status !== 403;
};

// Checks if a token allows changes, and if it allows reading.
export const isAdmin = opens("/v1/audit?limit=1");
export const mayLook = opens("/v1/series");
