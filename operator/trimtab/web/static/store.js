// @ts-check
// What the page knows: answers of the API, the columns of the stream, and how fresh they are.
// Tokens live in memory and sessionStorage, and travel in a header: never in an address.
import { signal, batch } from "./vendor/signals-core.js";

const DEAD_AFTER = 40_000; // milliseconds without a line: the contract promises a ping every 15 s
const LONGEST_PAUSE = 10_000;
const TOKEN = "trimtab.token";

/** Columns by name, changed in place; `tick` counts the changes. @type {Record<string, any[]>} */
export const columns = {};
export const tick = signal(0);
/** Milliseconds that the last lines of the stream took to be read and applied, for whoever measures. @type {number[]} */
export const applied = [];
/** Server's clock minus ours, in seconds. */
export const skew = signal(0);
/** "connecting", "live", "away" (nothing answers), "token" (wanted), "denied". */
export const link = signal("connecting");
export const linkText = signal("");
/** What the server itself says is wrong with its view of the cluster. */
export const trouble = signal("");
export const whoami = signal(/** @type {any} */ (null));
export const lastLine = signal(0);
/** How often each GET answer has become another one, by its name. @type {Record<string, import("./vendor/signals-core.js").Signal<number>>} */
const versions = {};
/** The time that a test has fixed, or now, in the server's seconds. */
export const now = () => Date.now() / 1000 + skew.value;

let token = sessionStorage.getItem(TOKEN) || "";
let wake = () => {};

/** An answer that is not 200, with what helps. */
export class ApiError extends Error {
  /** @param {number} status @param {string} message @param {string} help */
  constructor(status, message, help = "") {
    super(message);
    this.status = status;
    this.help = help;
  }
}

/** @param {string} text */
export function signIn(text) {
  token = text.trim();
  sessionStorage.setItem(TOKEN, token);
  link.value = "connecting";
  wake();
}
export function signOut() {
  token = "";
  sessionStorage.removeItem(TOKEN);
  location.reload();
}
export const signedIn = () => token !== "";
export const tryNow = () => wake();

const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});

/** One request. @param {string} path @param {any} [body] @param {AbortSignal} [abort] @returns {Promise<any>} */
export async function api(path, body, abort) {
  const options = body === undefined ? { headers: headers() } : {
    method: "POST", headers: { ...headers(), "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  let answer;
  try {
    answer = await fetch(`api/v1/${path}`, { ...options, cache: "no-store", credentials: "omit", signal: abort });
  } catch (error) {
    if (abort?.aborted) throw error;
    throw new ApiError(0, "The console's server does not answer.", "The page tries again by itself; is trimtab ui, or the Deployment, still running?");
  }
  if (answer.ok) return answer.json();
  throw await failure(answer);
}

/** @param {Response} answer */
async function failure(answer) {
  let told = { message: `The server answered ${answer.status}.`, help: "" };
  try {
    told = { ...told, ...(await answer.json()).error };
  } catch { /* not the console's own words: a proxy's; its number says enough */ }
  if (answer.status === 401) {
    link.value = "token";
    linkText.value = told.message;
  }
  return new ApiError(answer.status, told.message, told.help);
}

/** A counter that goes up when the GET answer `name` has changed. @param {string} name */
export const version = (name) => (versions[name] ??= signal(0));

/** Change the columns as a delta says. @param {Record<string, any>} delta */
export function applyDelta(delta) {
  for (const name in delta) {
    const change = delta[name];
    if (change.all) {
      columns[name] = change.all;
      continue;
    }
    const column = columns[name];
    let at = -1;
    for (let k = 0; k < change.at.length; k++) {
      at += change.at[k];
      column[at] = change.to[k];
    }
  }
}

let lastId = "";
/** @param {any} line */
function take(line) {
  if (line.event === "denied") { // another token is wanted, or it is asked anew what this one may see
    lastId = "";
    if (line.status === 401) link.value = "token";
    linkText.value = line.message || "";
    throw new ApiError(0, line.message || "");
  }
  if (line.event === "delta" && line.from !== lastId) {
    lastId = "";
    throw new Error("a delta is missing: a new snapshot is asked for");
  }
  batch(() => {
    if (line.time) skew.value = line.time - Date.now() / 1000;
    if (line.event === "snapshot") {
      for (const name in columns) delete columns[name];
      Object.assign(columns, line.columns);
    } else if (line.event === "delta") applyDelta(line.columns);
    if (line.event !== "ping") {
      tick.value++;
      for (const name of line.changed || []) version(name).value++;
    } else trouble.value = line.trouble || "";
    if (line.trouble !== undefined) trouble.value = line.trouble;
    lastId = line.id;
    link.value = "live";
    linkText.value = "";
    lastLine.value = Date.now();
  });
}

/** Read the stream until it ends. @param {AbortController} abort */
async function listen(abort) {
  let timer = setTimeout(() => abort.abort(), DEAD_AFTER);
  try {
    const answer = await fetch(`api/v1/stream${lastId ? `?since=${encodeURIComponent(lastId)}` : ""}`, {
      headers: headers(), cache: "no-store", credentials: "omit", signal: abort.signal,
    });
    if (!answer.ok || !answer.body) throw await failure(answer);
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), DEAD_AFTER);
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop() || "";
      for (const line of lines) {
        if (!line) continue;
        const began = performance.now();
        take(JSON.parse(line));
        applied.push(performance.now() - began);
        if (applied.length > 240) applied.shift();
      }
    }
  } finally {
    clearTimeout(timer);
    abort.abort();
  }
}

const stopped = () => link.value === "token" || link.value === "denied";

/** Keep the stream open for as long as the page is. */
export async function run() {
  let pause = 500;
  for (;;) {
    const before = lastLine.value;
    try {
      whoami.value = await api("whoami");
      trouble.value = whoami.value.trouble || "";
      await listen(new AbortController());
    } catch (error) {
      if (error instanceof ApiError && error.status === 403) link.value = "denied";
      if (!stopped()) linkText.value = error instanceof ApiError ? error.message : "The stream of changes was cut.";
    }
    if (!stopped()) link.value = "away";
    pause = lastLine.value > before ? 500 : Math.min(LONGEST_PAUSE, pause * 1.7);
    const wait = stopped() ? 2 ** 30 : pause;
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, wait);
      wake = () => { clearTimeout(timer); resolve(undefined); };
    });
    for (const name in versions) if (!stopped()) versions[name].value++;
  }
}
