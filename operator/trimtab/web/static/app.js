// @ts-check
// The frame around all pages: where to go, whether what is seen is fresh, and what was left out.
import { Component, render } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useRef, useState } from "./vendor/hooks.js";
import { signal } from "./vendor/signals-core.js";
import { html } from "./parts.js";
import { applied, columns, lastLine, link, linkText, run, signIn, signOut, signedIn, tick, trouble, tryNow, whoami } from "./store.js";
import { duration } from "./format.js";

const PAGES = /** @type {[string, string, string][]} */ ([
  ["overview", "Overview", ""], ["cluster", "Cluster", "nodes"], ["timeline", "Timeline", ""], ["jobs", "Jobs", ""],
  ["queues", "Queues", "queues"], ["plan", "Plan", "plan"], ["whatif", "What if", "whatif"], ["policies", "Policies", ""], ["doctor", "Doctor", "doctor"],
]);
const RIGHTS = /** @type {Record<string, string>} */ ({
  nodes: "to list and watch nodes and gpunodes", queues: "to list and watch queues", plan: "to list nodes",
  whatif: "to list jobs in all namespaces", doctor: "to list nodes and jobs in all namespaces",
});

/** `#/jobs/team-a/x?why=1` -> ["jobs", "team-a", "x"] and its query. */
function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: (path || "overview").split("/").map(decodeURIComponent), query: new URLSearchParams(query || "") };
}
const where = signal(route());
addEventListener("hashchange", () => { where.value = route(); });

function SignIn() {
  const field = useRef(/** @type {any} */ (null));
  useEffect(() => field.current?.focus(), []);
  return html`<main class="signin" id="main"><form onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); signIn(field.current.value); }}>
    <h1>Sign in</h1><p>Paste a token of this cluster; Trimtab asks the cluster whose it is, and shows what that user may see.</p>
    <label for="token">Token</label><input id="token" ref=${field} type="password" autocomplete="off" spellcheck=${false} required />
    ${linkText.value && html`<p class="notice" role="alert">${linkText.value}</p>`}
    <p class="dim">For example: <code>kubectl create token NAME</code>. It is kept until this tab is closed, and is never part of an address.</p>
    <button class="main">Sign in</button></form></main>`;
}

function Freshness() {
  const [, again] = useState(0);
  useEffect(() => { const timer = setInterval(() => again((n) => n + 1), 1000); return () => clearInterval(timer); }, []);
  const age = (Date.now() - lastLine.value) / 1000, live = link.value === "live";
  const said = live ? (trouble.value ? "Old" : "Live") : link.value === "away" ? "Away" : "Connecting";
  return html`<span class=${`fresh f-${said}`} role="status"><i aria-hidden="true"></i>${said}${!live && lastLine.value ? ` · ${duration(age)} old` : ""}</span>`;
}

function Banners() {
  const me = whoami.value, left = me?.leftOut;
  const hidden = left && (left.namespaces || left.jobs);
  return html`${link.value === "away" && html`<div class="banner bad" role="alert"><strong>The server does not answer.</strong> ${lastLine.value ? "What is shown is what was known then." : ""} ${linkText.value} <button class="plain" onClick=${tryNow}>Try now</button></div>`}
    ${link.value === "denied" && html`<div class="banner bad" role="alert"><strong>Not allowed.</strong> ${linkText.value}</div>`}
    ${link.value === "live" && trouble.value && html`<div class="banner warn" role="alert"><strong>The cluster's state may be old.</strong> ${trouble.value}</div>`}
    ${me?.unseen && html`<div class="banner" role="note"><strong>Part of the cluster is left out.</strong> Your kubeconfig may see ${me.namespaces ? html`namespace ${me.namespaces.join(", ")} only` : "the jobs"}. Not seen: ${me.unseen}.</div>`}
    ${hidden ? html`<div class="banner" role="note"><strong>Part of the cluster is left out.</strong> You may not see ${left.jobs} job${left.jobs === 1 ? "" : "s"}${left.namespaces ? ` in ${left.namespaces} namespace${left.namespaces === 1 ? "" : "s"}` : ""}: on the map they are “somebody else's job”.</div>` : null}`;
}

function Search() {
  const field = useRef(/** @type {any} */ (null));
  const [text, type] = useState(""), [at, move] = useState(0);
  useEffect(() => {
    const press = (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "/" || /INPUT|TEXTAREA|SELECT/.test(document.activeElement?.tagName || "")) return;
      event.preventDefault();
      field.current.focus();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  const wanted = text.trim().toLowerCase();
  const found = [];
  if (wanted) {
    for (const key of columns["job.key"] || []) if (key.toLowerCase().includes(wanted) && found.length < 6) found.push({ href: `#/jobs/${key}`, what: "job", name: key });
    for (const name of columns["node.name"] || []) if (name.toLowerCase().includes(wanted) && found.length < 10) found.push({ href: `#/cluster?node=${encodeURIComponent(name)}`, what: "node", name });
  }
  const go = (/** @type {string} */ href) => { location.hash = href; type(""); field.current.blur(); };
  return html`<div class="search"><input ref=${field} type="search" role="combobox" aria-expanded=${found.length > 0} aria-controls="found" aria-label="Find a job or a node" placeholder="Find a job or node  ( / )" value=${text} autocomplete="off"
      aria-activedescendant=${found.length ? `found-${at}` : undefined}
      onInput=${(/** @type {any} */ event) => { type(event.target.value); move(0); }} onBlur=${() => type("")}
      onKeyDown=${(/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Enter" && found[at]) go(found[at].href);
        if (event.key === "Escape") type("");
        if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); move(Math.max(0, Math.min(found.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)))); }
      }} />
    <ul id="found" role="listbox" aria-label="Found" hidden=${!found.length}>${found.map((each, n) => html`<li key=${each.href} id=${`found-${n}`} role="option" aria-selected=${n === at} onMouseDown=${() => go(each.href)}><span class="dim">${each.what}</span> ${each.name}</li>`)}</ul></div>`;
}

/** Loads the code of a page when it is first opened, and says so where that fails. */
class Page extends Component {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.state = { view: null, error: null };
  }
  async load() {
    const name = this.props.name;
    try {
      const view = (await import(`./pages/${name}.js`)).default;
      if (this.props.name === name) this.setState({ view: { name, view }, error: null });
    } catch (error) {
      this.setState({ error });
    }
  }
  componentDidMount() { this.load(); }
  /** @param {any} before */
  componentDidUpdate(before) { if (before.name !== this.props.name) this.load(); }
  /** @param {any} error */
  componentDidCatch(error) { console.error(error); this.setState({ error }); }
  render() {
    const { view, error } = this.state, { name, parts, query } = this.props;
    if (error) return html`<div class="notice bad" role="alert"><strong>This page could not be shown.</strong> ${String(error.message || error)} <button class="plain" onClick=${() => { this.setState({ error: null }); this.load(); }}>Try again</button></div>`;
    return view?.name === name ? html`<${view.view} parts=${parts} query=${query} key=${parts.join("/")} />` : html`<p class="dim working" role="status">Opening …</p>`;
  }
}

function App() {
  const { parts, query } = where.value, me = whoami.value;
  const known = PAGES.find(([name]) => name === parts[0]);
  const main = useRef(/** @type {any} */ (null)), first = useRef(true);
  useLayoutEffect(() => { // at once: later it would take the focus from whoever has gone on already
    document.title = `${parts.length > 2 ? parts.slice(1).join("/") : known?.[1] || "Not found"} · Trimtab`;
    if (!first.current) main.current?.focus({ preventScroll: true });
    first.current = false;
    document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }); // a narrow menu scrolls
    scrollTo(0, 0);
  }, [parts.join("/")]);
  if (link.value === "token") return html`<${SignIn} />`;
  const name = parts[0] === "jobs" && parts.length > 2 ? "job" : known?.[0], right = known?.[2];
  const denied = right && me?.can && me.can[right] === false;
  return html`<a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => { event.preventDefault(); main.current.focus(); }}>Skip to content</a>
    <header class="top"><a class="brand" href="#/overview"><img src="icon.svg" alt="" width="22" height="22" /> Trimtab</a><${Search} /><${Freshness} />
      ${me?.mode === "cluster" && html`<span class="user"><span title=${me.user}>${me.user}</span> ${signedIn() && html`<button class="plain" onClick=${signOut}>Sign out</button>`}</span>`}</header>
    <nav class="side" aria-label="Pages"><ul>${PAGES.map(([key, title, need]) => html`<li key=${key}><a href=${`#/${key}`} aria-current=${known?.[0] === key ? "page" : undefined} class=${need && me?.can?.[need] === false ? "locked" : ""}>${title}</a></li>`)}</ul>
      <p class="dim small">${me ? html`${me.version && `v${me.version}`}<br />${me.server?.replace(/^https?:\/\//, "")}` : ""}</p></nav>
    <div class="body"><${Banners} />
    <main id="main" tabindex="-1" ref=${main}>
      ${!name ? html`<div class="notice" role="alert"><strong>There is no such page.</strong> <a href="#/overview">Overview</a></div>`
        : denied ? html`<h1>${known?.[1]}</h1><div class="notice" role="alert"><strong>Not allowed.</strong> This page needs the right ${RIGHTS[right]}. Ask whoever runs the cluster for the role trimtab-viewer.</div>`
        : html`<${Page} name=${name} parts=${parts} query=${query} />`}
    </main></div>`;
}

const root = /** @type {HTMLElement} */ (document.getElementById("app"));
root.textContent = "";
render(html`<${App} />`, root);
run();
// For whoever measures from outside: what the page holds, never a token.
Object.defineProperty(globalThis, "trimtab", { value: { columns, tick, applied } });
